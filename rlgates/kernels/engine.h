// A layer over a whole sequence, forward and backward through time.
//
// One step is a product of the state with the weights, then the gates and the cell, a row at a
// time. Rows of a batch never meet, so threads take rows and run through time without waiting.
// The input is projected, and its gradient and that of the weights are made, for a slab of steps
// at once: the weights are read less often so, and what a step leaves for its slab, or a slab for
// its steps, is still in the cache.
//
// A cell is a struct whose `forward` and `backward` do one step for some rows: see `lstm.h`.

// The gradients of the weights, as one thread adds them up.
struct Gradients {
  Weights input, state, last;
  Into into = SET;

  // The first thread adds up in place, the others in rooms of their own.
  Gradients(const Call &c, long worker, Room &room) {
    auto own = [&](float *given, long floats) {
      return worker && given ? room.take(floats) : given;
    };
    input = {own(c.d_weight_ih, c.columns * c.inputs), own(c.d_bias_ih, c.columns)};
    state = {own(c.d_weight_hh, c.columns * c.units), nullptr};
    last = {state.matrix + c.joint * c.units, own(c.d_bias_hh, c.columns) + c.joint};
  }

  void add(const Step &at, long steps, float *room) {
    const Call &c = at.c;
    const Rows<float> entering = at.entering.rows(at.t);
    const float *d = at.d_gates.row(at.t, at.first);
    auto product = [&](const float *d, long stride, long columns, Rows<const float> with,
                       long width, Weights out) {
      outer(d, stride, columns, with, width, steps, at.first, at.last, into, out, room);
    };
    product(d, c.columns, c.columns, at.inputs(c.x), c.inputs, input);
    product(d, c.columns, c.joint, entering, c.units, state);
    if (c.cell == GRU_AFTER)
      product(at.d_extra.row(at.t, at.first), c.units, c.units, entering, c.units, last);
    if (c.cell == GRU_BEFORE)
      product(d + c.joint, c.columns, c.units, at.extra.rows(at.t), c.units,
              {last.matrix, nullptr});
    into = ADD;
  }
};

// ---- the loop over time ------------------------------------------------------------------------

template <class Cell>
static void forward(const Call &c, const Plan &plan, Gradients &, long first, long last,
                    Room &room) {
  Step at(c, plan, false, first, last, room);
  Cell cell(at, room);
  if (!room.at) return;
  for (; at.t < c.steps; at.t++) {
    if (const long steps = at.slab_here())
      at.product(plan.input, at.inputs(c.x), at.gates.rows(at.t), SET, plan.bias, steps);
    for (long row = first; row < last; row++)
      memcpy(at.entering.row(at.t, row), at.h_before(row), c.units * sizeof(float));
    cell.forward(at);
  }
  for (long row = first; row < last; row++) {
    const long wide = c.units;
    memcpy(c.last_h + row * wide, at.outputs.row(c.steps - 1, row), wide * sizeof(float));
    if (c.last_c)
      memcpy(c.last_c + row * wide, at.cells.row(c.steps - 1, row), wide * sizeof(float));
  }
}

template <class Cell>
static void backward(const Call &c, const Plan &plan, Gradients &weights, long first, long last,
                     Room &room) {
  Step at(c, plan, true, first, last, room);
  Cell cell(at, room);
  float *outer_room = room.take(DEPTH * (padded(c.columns) + MOST_VECTORS * LANES));
  if (!room.at) return;
  for (at.t = c.steps - 1; at.t >= 0; at.t--) {
    cell.backward(at);
    for (long row = first; row < last; row++)
      if (at.starts(row))
        for (Rows<float> d : {at.d_h, at.d_c})
          if (d.at) memset(d.row(row), 0, c.units * sizeof(float));
    const long steps = at.slab_here();
    if (!steps) continue;
    const Rows<float> d = at.d_gates.rows(at.t);
    if (c.d_x) at.product(plan.input, d, at.inputs(c.d_x), SET, nullptr, steps);
    if (c.d_weight_ih) weights.add(at, steps, outer_room);
  }
}
