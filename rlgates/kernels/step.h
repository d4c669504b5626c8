// One step of a layer, as a thread sees it that owns some rows of the batch.

// A tensor (T, B, width) as its thread sees it: of all steps if it is given, else in the thread's
// own room, which holds the last `period` steps.
struct Track {
  float *at;
  long stride, step, period;

  Track() = default;
  Track(float *given, long width, long rows, long period)
      : at(given), stride(width), step(rows * width), period(period) {}
  Track(Room &room, long width, long first, long last, long period)
      : at(room.take((last - first) * width * period) - first * width), stride(width),
        step((last - first) * width), period(period) {}

  Rows<float> rows(long t) const { return {at + t % period * step, stride, step}; }
  float *row(long t, long r) const { return rows(t).row(r); }
};

// A thread at step t, with rows first to last of the batch as its own, and room for one row.
struct Step {
  const Call &c;
  const Plan &plan;
  const long first, last;
  const Gate gate;
  const float *zeros;
  const GateRows values, gradients;
  Track gates, entering, cells, extra, outputs, d_gates, d_extra;
  const Rows<float> d_h, d_c;  // the gradients of the state, on their way to the first step
  long t = 0;

  Step(const Call &c, const Plan &plan, bool back, long first, long last, Room &room)
      : c(c), plan(plan), first(first), last(last),
        gate{c.activation, c.auxiliary, c.units, c.chunk_size}, zeros(empty(room, c.units)),
        values(room, c.units), gradients(room, c.units),
        d_h{c.d_h, c.units, 0}, d_c{c.d_c, c.units, 0} {
    outputs = Track(c.outputs, c.units, c.rows, c.steps);
    gates = track(c.gates, c.columns, plan.slab, room);
    entering = track(c.entering, c.units, 1, room);
    if (c.first_c) cells = track(c.cells, c.units, 1, room);
    if (c.joint < c.columns) extra = track(c.extra, c.units, 1, room);
    if (!back) return;
    d_gates = track(nullptr, c.columns, plan.slab, room);
    if (c.joint < c.columns) d_extra = track(nullptr, c.units, plan.slab, room);
  }

  Track track(float *given, long width, long period, Room &room) const {
    if (given) return Track(given, width, c.rows, c.steps);
    return Track(room, width, first, last, period);
  }
  static float *empty(Room &room, long units) {
    float *row = room.take(units);
    if (room.at) memset(row, 0, padded(units) * sizeof(float));
    return row;
  }

  bool starts(long row) const { return c.starts && c.starts[t * c.rows + row]; }

  // h and c before the step. Where an episode starts the old state is left out, and not
  // multiplied by zero: it may be NaN.
  const float *h_before(long row) const {
    return starts(row) ? zeros : t ? outputs.row(t - 1, row) : c.first_h + row * c.first_h_stride;
  }
  const float *c_before(long row) const {
    return starts(row) ? zeros : t ? cells.row(t - 1, row) : c.first_c + row * c.first_c_stride;
  }

  const float *d_output(long row) const {
    return c.d_outputs ? c.d_outputs + (t * c.rows + row) * c.units : zeros;
  }
  // Whether somebody waits for the gradient of the state that entered this step.
  bool carries() const { return t || c.wants_first; }

  // out (+)= a * f for the rows of this thread, of one step or of a slab of them from t on.
  void product(const Factor &f, Rows<const float> a, Rows<float> out, Into into,
               const float *bias = nullptr, long steps = 1) const {
    multiply(f, a, out, steps, first, last, into, bias);
  }
  // The steps of the slab that begins here; 0 if none does.
  long slab_here() const {
    if (t % plan.slab) return 0;
    return c.steps - t < plan.slab ? c.steps - t : plan.slab;
  }
  // Rows of the input from this step on, or of its gradient.
  template <class T> Rows<T> inputs(T *of) const {
    return {of + t * c.rows * c.inputs, c.inputs, c.rows * c.inputs};
  }
};
