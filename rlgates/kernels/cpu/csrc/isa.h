// The kernels for one instruction set. `module.cpp` includes this file once for each, inside a
// namespace of its own, with LANES (floats in a vector register) and SUMS (registers available for
// running sums).
//
// To add an activation: a struct in `simd/activations.h`. An auxiliary gate: two cases in
// `cells/gates.h`. A cell: a file like `cells/rru.h`, or like `cells/lstm.h` if it has the weights of
// an LSTM, and a case in `kernel_for`. Their names are in `rlgates/kernels/layout.py`; the compiler
// refuses one that is missing here.

#include "simd/vectors.h"
#include "simd/functions.h"
#include "simd/activations.h"
#include "cells/gates.h"
#include "gemm/tiles.h"
#include "gemm/packed_matrix.h"
#include "gemm/product.h"
#include "gemm/outer.h"
#include "drivers/context.h"
#include "drivers/layer.h"
#include "drivers/scan.h"
#include "cells/stacked.h"
#include "cells/lstm.h"
#include "cells/gru.h"
#include "cells/janet.h"
#include "cells/gato.h"
#include "cells/rru.h"
#include "cells/mogrifier.h"
#include "cells/nru.h"

static const Kernel *kernel_for(CellId cell) {
  switch (cell) {
    case LSTM: return &kernel_of<Lstm>;
    case GRU_AFTER: return &kernel_of<Gru<false>>;
    case GRU_BEFORE: return &kernel_of<Gru<true>>;
    case JANET: return &kernel_of<Janet>;
    case GATO: return &kernel_of<Gato>;
    case RRU: return &kernel_of<Rru>;
    case MOGRIFIER: return &kernel_of<Mogrifier>;
    case NRU: return &kernel_of<Nru>;
  }
  __builtin_unreachable();
}
template <bool back> static bool run(const LayerArgs &c) {
  return run_layer<back>(*kernel_for((CellId)c.cell), c);
}

static const Kernels kernels = {run<false>, run<true>, scan<false>, scan<true>};

#undef INLINE
#undef NOINLINE
#undef SHUFFLE
