// A layer whose cell has weights of its own, over a sequence, forward and backward through time.
//
// As in `engine.h` threads take rows of the batch and never wait, and the input is projected, and
// the gradients of the weights made, for a slab of steps at once. A cell is a struct, see `rru.h`:
// it has matrices, a step `forward`, one `backward`, which reads the inputs again if it `REREADS`,
// and `weights`, which adds up the gradients of a slab.

// A matrix of weights (out, in) as the right-hand side of a product, on the way there or back.
static Factor matrix_of(const float *weights, long out, long in, bool back) {
  if (back) return {weights, out, in, in, 1, nullptr};
  return {weights, in, out, 1, in, nullptr};
}

// The gradients of the weights, as one thread adds them up: the first in their place, the others
// in rooms of their own.
struct Sums {
  float *of[Loop::WEIGHTS];
  Sums(const Loop &c, long worker, Room &room) {
    for (long i = 0; i < Loop::WEIGHTS; i++)
      of[i] = worker && c.d_weights[i] ? room.take(c.lengths[i]) : c.d_weights[i];
  }
};

// A thread at step t, with rows first to last of the batch as its own.
struct Turn {
  const Loop &c;
  const Factor *factors;  // of the cell's matrices, and of the input's
  const long first, last, slab;
  const Sums &sums;
  Track x, d_x;            // (I)
  Track inputs, d_inputs;  // what the steps read
  Track noise, outputs, d_outputs, parts[Loop::PARTS], kept[Loop::KEPT];
  float *outer_room = nullptr;
  long t = 0;

  Turn(const Loop &c, const Factor *factors, const Sums &sums, bool back, long first, long last,
       long slab, Room &room)
      : c(c), factors(factors), first(first), last(last), slab(slab), sums(sums),
        x(given(c.x, c.input_width)), d_x(given(c.d_x, c.input_width)), inputs(x), d_inputs(d_x),
        noise(given(c.noise, c.noise_width)), outputs(given(c.outputs, c.output_width)),
        d_outputs(given(c.d_outputs, c.output_width)) {
    const long width = c.project_width;
    if (width) inputs = of_slab(width, room);
    if (width && back) d_inputs = of_slab(width, room);
    for (long i = 0; i < Loop::PARTS; i++)
      parts[i] = c.entering[i] ? Track(c.entering[i], c.part_width[i], c.rows, c.steps + 1)
                               : Track(room, c.part_width[i], first, last, 2);
    for (long i = 0; i < Loop::KEPT; i++)
      kept[i] = c.kept[i] ? given(c.kept[i], c.kept_width[i])
                          : Track(room, c.kept_width[i], first, last, 1);
  }

  Track given(float *tensor, long width) const { return Track(tensor, width, c.rows, c.steps); }
  // Room for the steps of a slab, side by side.
  Track of_slab(long width, Room &room) const { return Track(room, width, first, last, slab); }
  // The steps of the slab that begins at a step; 0 if none does.
  long slab_from(long t) const {
    if (t % slab) return 0;
    return c.steps - t < slab ? c.steps - t : slab;
  }
  // What the steps of a slab read.
  void project(long matrix, long from) const {
    if (const long steps = c.project_width ? slab_from(from) : 0)
      product(matrix, x.rows(from), inputs.rows(from), SET, c.weights[1], steps);
  }

  bool starts(long row) const { return c.starts && c.starts[t * c.rows + row]; }
  const float *state(long part, long row) const { return parts[part].row(t, row); }
  float *next(long part, long row) const { return parts[part].row(t + 1, row); }
  Rows<float> d_state(long part) const { return {c.d_state[part], c.part_width[part], 0}; }
  // Whether somebody waits for the gradient of the state that entered this step.
  bool carries() const { return t || c.wants_first; }

  // out (+)= a * matrix, for the rows of this thread.
  void product(long matrix, Rows<const float> a, Rows<float> out, Into into,
               const float *bias = nullptr, long steps = 1) const {
    multiply(factors[matrix], a, out, steps, first, last, into, bias);
  }
  // The gradients of a matrix and of its bias, or null, from those of what came out, `columns` of
  // d for each step of a slab, and what went in.
  void add(const Track &d, long column, long columns, Rows<const float> in, long width, long steps,
           float *matrix, float *bias) const {
    outer(d.row(t, first) + column, d.stride, columns, in, width, steps, first, last, ADD,
          {matrix, bias}, outer_room);
  }
};

// ---- the loop over time ------------------------------------------------------------------------

template <class Cell>
static void loop_forward(const Loop &c, const Factor *factors, const Sums &sums, long first,
                         long last, long slab, Room &room) {
  Turn at(c, factors, sums, false, first, last, slab, room);
  Cell cell(at, room);
  if (!room.at) return;
  auto each_part = [&](auto task) {
    for (long part = 0; part < Loop::PARTS; part++)
      for (long row = first; row < last; row++) {
        const long width = c.part_width[part];
        task(part, row, row * width, width * sizeof(float));
      }
  };
  each_part([&](long part, long row, long place, size_t size) {
    memcpy(at.parts[part].row(0, row), c.first[part] + place, size);
  });
  for (; at.t < c.steps; at.t++) {
    at.project(Cell::matrices(c), at.t);
    each_part([&](long part, long row, long place, size_t size) {
      if (at.starts(row)) memcpy(at.parts[part].row(at.t, row), c.fresh[part] + place, size);
    });
    cell.forward(at);
  }
  each_part([&](long part, long row, long place, size_t size) {
    memcpy(c.last[part] + place, at.state(part, row), size);
  });
}

template <class Cell>
static void loop_backward(const Loop &c, const Factor *factors, const Sums &sums, long first,
                          long last, long slab, Room &room) {
  Turn at(c, factors, sums, true, first, last, slab, room);
  Cell cell(at, room);
  long widest = c.project_width;
  for (long i = 0; i < Cell::matrices(c); i++) {
    const long out = Cell::matrix(c, i, true).depth;
    widest = out > widest ? out : widest;
  }
  at.outer_room = room.take(DEPTH * (padded(widest) + MOST_VECTORS * LANES));
  if (!room.at) return;
  for (at.t = c.steps - 1; at.t >= 0; at.t--) {
    // It is made again, and not kept: there may be much of it.
    const bool above = at.t == c.steps - 1 || at.slab_from(at.t + 1);
    if (Cell::REREADS && above) at.project(Cell::matrices(c) + 1, at.t / slab * slab);
    cell.backward(at);
    for (long row = first; row < last; row++)
      for (long part = 0; at.starts(row) && part < Loop::PARTS; part++) {
        const long width = c.part_width[part];
        float *d = c.d_state[part] + row * width;
        add(c.d_fresh[part] + row * width, d, width);
        memset(d, 0, width * sizeof(float));
      }
    const long steps = at.slab_from(at.t);
    if (!steps) continue;
    if (c.project_width && c.d_x)
      at.product(Cell::matrices(c), at.d_inputs.rows(at.t), at.d_x.rows(at.t), SET, nullptr,
                 steps);
    if (!c.wants_weights) continue;
    if (c.project_width)
      at.add(at.d_inputs, 0, c.project_width, at.x.rows(at.t), c.input_width, steps, sums.of[0],
             sums.of[1]);
    cell.weights(at, steps);
  }
}

constexpr long IN_CACHE = 1 << 18;  // floats

typedef void (*LoopPass)(const Loop &, const Factor *, const Sums &, long first, long last,
                         long slab, Room &);
struct LoopCell {
  LoopPass forward, backward;
  long (*matrices)(const Loop &);
  Factor (*matrix)(const Loop &, long i, bool back);
  bool rereads;
};
template <class T>
constexpr LoopCell loop_cell = {loop_forward<T>, loop_backward<T>, T::matrices, T::matrix,
                                T::REREADS};

template <bool back> static bool run_loop(const LoopCell &cell, const Loop &c) {
  const LoopPass pass = back ? cell.backward : cell.forward;
  double weights = 16.0 * c.output_width;  // a function is worth some multiplications
  for (long i = 0; i < Loop::WEIGHTS; i++) weights += c.lengths[i];
  const long threads = workers(c.threads, c.rows, (double)c.steps * c.rows * weights);
  const long most = (c.rows + threads - 1) / threads;
  // Projected inputs may be wide: a slab of them stays in the cache.
  const long whole = slab_of(back, most, c.steps), fit = IN_CACHE / (most * c.project_width + 1);
  const long slab = fit < 1 ? 1 : fit < whole ? fit : whole;
  const long own = cell.matrices(c), again = back && cell.rereads;
  const long count = own + (c.project_width ? 1 + again : 0);
  const bool packs = back || c.steps * c.rows >= WORTH_PACKING;
  auto prepare = [&](Room &room) {
    Factor *factors = (Factor *)room.take(count * sizeof(Factor) / sizeof(float));
    for (long i = 0; i < count; i++) {
      Factor factor = i < own ? cell.matrix(c, i, back)
                              : matrix_of(c.weights[0], c.project_width, c.input_width,
                                          back && i == own);
      if (packs) factor.panels = room.take(factor.size());
      if (!room.at) continue;
      if (packs) pack(factor);
      factors[i] = factor;
    }
    return factors;
  };
  // At first all is done without memory, which only says how much it takes.
  Room shared = {}, each = {};
  prepare(shared);
  const Sums nowhere(c, threads - 1, each);
  pass(c, nullptr, nowhere, 0, most, slab, each);
  Memory memory(shared.used + threads * each.used);
  if (!memory.at) return false;
  shared = {memory.at, 0};
  const Factor *factors = prepare(shared);
  float *rooms = memory.at + shared.used;
  share(c.rows, threads, [&](long first, long last, long worker) {
    Room room = {rooms + worker * each.used, 0};
    const Sums sums(c, worker, room);
    if (worker) memset(room.at, 0, room.used * sizeof(float));
    pass(c, factors, sums, first, last, slab, room);
  });
  for (long worker = 1; back && c.wants_weights && worker < threads; worker++) {
    Room room = {rooms + worker * each.used, 0};
    const Sums sums(c, worker, room);
    for (long i = 0; i < Loop::WEIGHTS; i++)
      if (c.d_weights[i]) add(c.d_weights[i], sums.of[i], c.lengths[i]);
  }
  return true;
}
