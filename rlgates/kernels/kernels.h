// The kernels of one instruction set. `native.cpp` includes this file once for each, inside a
// namespace of its own, with LANES (floats in a vector register) and SUMS (registers that may
// hold running sums).
//
// A new activation is a struct in `activations.h`, a new auxiliary gate two cases in `gates.h`, a
// new cell a file like `lstm.h` and an entry in CELLS, or like `rru.h` and one in LOOPS, where its
// weights are not those of the LSTM; each has a name in `call.h`.

#include "vectors.h"
#include "functions.h"
#include "activations.h"
#include "gates.h"
#include "tiles.h"
#include "factor.h"
#include "product.h"
#include "outer.h"
#include "plan.h"
#include "step.h"
#include "engine.h"
#include "lstm.h"
#include "gru.h"
#include "janet.h"
#include "scan.h"
#include "loop.h"
#include "gato.h"
#include "rru.h"
#include "mogrifier.h"
#include "nru.h"

typedef void (*Pass)(const Call &, const Plan &, Gradients &, long first, long last, Room &);
struct Cell {
  Pass forward, backward;
};
template <class T> constexpr Cell cell = {forward<T>, backward<T>};
// In the order of `CellKind`.
static const Cell CELLS[] = {cell<Lstm>, cell<Gru<false>>, cell<Gru<true>>, cell<Janet>};

// The gradients of the weights from all threads, and those of the biases that share them.
static void total_gradients(const Call &c, long threads, float *rooms, long size) {
  const long both = summed_biases(c);
  share(c.columns, threads, [&](long first, long last, long) {
    const long columns = last - first, bias = first < both ? both : first;
    for (long worker = 1; worker < threads; worker++) {
      Room room = {rooms + worker * size, 0};
      Gradients part(c, worker, room);
      add(c.d_weight_ih + first * c.inputs, part.input.matrix + first * c.inputs,
          columns * c.inputs);
      add(c.d_weight_hh + first * c.units, part.state.matrix + first * c.units,
          columns * c.units);
      add(c.d_bias_ih + first, part.input.sums + first, columns);
      add(c.d_bias_hh + bias, part.last.sums + bias - c.joint, last - bias);
    }
  });
  memcpy(c.d_bias_hh, c.d_bias_ih, both * sizeof(float));
}

// In the order of `LoopKind`.
static const LoopCell LOOPS[] = {loop_cell<Gato>, loop_cell<Rru>, loop_cell<Mogrifier>,
                                 loop_cell<Nru>};
template <bool back> static bool run(const Loop &c) { return run_loop<back>(LOOPS[c.cell], c); }

template <bool back> static bool run(const Call &c) {
  const Pass pass = back ? CELLS[c.cell].backward : CELLS[c.cell].forward;
  const double work = (double)c.steps * c.rows * c.columns * (c.units + c.inputs);
  const long threads = workers(c.threads, c.rows, work), most = (c.rows + threads - 1) / threads;
  // At first all is done without memory, which only says how much it takes.
  Room shared = {}, own = {};
  Gradients nowhere(c, threads - 1, own);
  pass(c, plan(c, back, most, shared), nowhere, 0, most, own);
  Memory memory(shared.used + threads * own.used);
  if (!memory.at) return false;
  shared = {memory.at, 0};
  const Plan weights = plan(c, back, most, shared);
  float *rooms = memory.at + shared.used;
  share(c.rows, threads, [&](long first, long last, long worker) {
    Room room = {rooms + worker * own.used, 0};
    Gradients gradients(c, worker, room);
    pass(c, weights, gradients, first, last, room);
  });
  if (back && c.d_weight_ih) total_gradients(c, threads, rooms, own.used);
  return true;
}

static const Kernels kernels = {run<false>,  run<true>,  scan<false>,
                                scan<true>, run<false>, run<true>};

#undef INLINE
#undef APART
#undef PICK
