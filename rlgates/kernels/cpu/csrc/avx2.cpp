#include "instructions.h"

#ifdef HAS_X86_KERNELS
INSTRUCTIONS_ON("avx2,fma")
namespace avx2 {
#define LANES 8
#define SUMS 12
#include "isa.h"
}  // namespace avx2
INSTRUCTIONS_OFF
#endif
