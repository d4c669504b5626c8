#include "instructions.h"

namespace plain {
#define LANES 4
#ifdef __aarch64__
#define SUMS 24
#else
#define SUMS 12
#endif
#include "isa.h"
}  // namespace plain
