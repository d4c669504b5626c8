// The kernels for one instruction set. `avx512.cpp`, `avx2.cpp` and `plain.cpp` include this file, each
// inside a namespace of its own, with LANES (floats in a vector register) and SUMS (registers
// available for running sums).
//
// To add an activation: a struct in `simd/activations.h`. An auxiliary gate: two cases in
// `cells/gates.h`. A cell: a file like `cells/rru.h`, or like `cells/lstm.h` if it has the weights of
// an LSTM. Each has a row in `rlgates/kernels/layout.py`, which writes `layout.h` and `kernels.h`;
// the compiler refuses one that is missing here.

#include "simd/vectors.h"
#include "simd/functions.h"
#include "simd/rows.h"
#include "simd/activations.h"
#include "cells/gates.h"
#include "gemm/tiles.h"
#include "gemm/packed_matrix.h"
#include "gemm/product.h"
#include "gemm/outer.h"
#include "drivers/context.h"
#include "drivers/layer.h"
#include "drivers/scan.h"
#include "drivers/channels.h"
#include "drivers/each_head.h"
#include "drivers/memories.h"
#include "drivers/conv.h"
#include "drivers/attention.h"
#include "drivers/grid.h"
#include "drivers/heads.h"
#include "drivers/adam.h"
#include "cells/stacked.h"
#include "kernels.h"

template <bool back> static bool run(const LayerArgs &c) {
  return run_layer<back>(*kernel_for((CellId)c.cell), c);
}

extern const Kernels kernels = {run<false>, run<true>, scan<false>, scan<true>,
                                run_channels<false>, run_channels<true>, run_memories<false>,
                                run_memories<true>, run_conv<false>, run_conv<true>,
                                run_attention<false>, run_attention<true>, grid_forward,
                                grid_backward, heads<false>, heads<true>, adam_step};
