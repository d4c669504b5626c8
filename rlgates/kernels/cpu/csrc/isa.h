// The kernels for one instruction set. `module.cpp` includes this file once for each, inside a
// namespace of its own, with LANES (floats in a vector register) and SUMS (registers available for
// running sums).
//
// To add an activation: a struct in `simd/activations.h`. An auxiliary gate: two cases in
// `cells/gates.h`. A cell with the weights of an LSTM: a file like `cells/lstm.h` and an entry in
// GATED_CELLS; with other weights: a file like `cells/rru.h` and an entry in FUSED_CELLS. Each has
// an id in `abi.h`.

#include "simd/vectors.h"
#include "simd/functions.h"
#include "simd/activations.h"
#include "cells/gates.h"
#include "gemm/tiles.h"
#include "gemm/packed_matrix.h"
#include "gemm/product.h"
#include "gemm/outer.h"
#include "drivers/plan.h"
#include "drivers/context.h"
#include "drivers/gated.h"
#include "cells/lstm.h"
#include "cells/gru.h"
#include "cells/janet.h"
#include "drivers/scan.h"
#include "drivers/fused.h"
#include "cells/gato.h"
#include "cells/rru.h"
#include "cells/mogrifier.h"
#include "cells/nru.h"

template <class T> constexpr GatedKernels gated_kernels = {gated_forward<T>, gated_backward<T>};
// In the order of `GatedCellId`.
static const GatedKernels GATED_CELLS[] = {gated_kernels<Lstm>, gated_kernels<Gru<false>>,
                                           gated_kernels<Gru<true>>, gated_kernels<Janet>};
template <bool back> static bool run(const GatedArgs &c) {
  return run_gated<back>(GATED_CELLS[c.cell], c);
}

// In the order of `FusedCellId`.
static const FusedKernels FUSED_CELLS[] = {fused_kernels<Gato>, fused_kernels<Rru>,
                                           fused_kernels<Mogrifier>, fused_kernels<Nru>};
template <bool back> static bool run(const FusedArgs &c) {
  return run_fused<back>(FUSED_CELLS[c.cell], c);
}

static const Kernels kernels = {run<false>, run<true>,  scan<false>,
                                scan<true>, run<false>, run<true>};

#undef INLINE
#undef NOINLINE
#undef SHUFFLE
