#include "instructions.h"

#ifdef HAS_X86_KERNELS
INSTRUCTIONS_ON("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
namespace avx512 {
#define LANES 16
#define SUMS 24
#include "isa.h"
}  // namespace avx512
INSTRUCTIONS_OFF
#endif
