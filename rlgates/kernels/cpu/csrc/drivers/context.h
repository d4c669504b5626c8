// What a thread sees of a sequence, and of one step of a gated layer.

// A (T, B, width) tensor: all its steps, or, where no tensor is passed, the last `period` steps of
// the thread's own rows in its workspace.
struct SequenceView {
  float *data;
  long stride, step, period;

  SequenceView() = default;
  SequenceView(float *tensor, long width, long rows, long period)
      : data(tensor), stride(width), step(rows * width), period(period) {}
  SequenceView(Workspace &workspace, long width, long first, long last, long period)
      : data(workspace.take((last - first) * width * period) - first * width), stride(width),
        step((last - first) * width), period(period) {}

  Rows<float> rows(long t) const { return {data + t % period * step, stride, step}; }
  float *row(long t, long r) const { return rows(t).row(r); }
};

// A thread at step t of a gated layer: it owns rows first to last of the batch, and scratch space
// for the gates of one row.
struct GatedContext {
  const GatedArgs &c;
  const Plan &plan;
  const long first, last;
  const Gate gate;
  const float *zeros;
  const GateRows values, gradients;
  SequenceView gates, h_prev, cells, extra, outputs, d_gates, d_extra;
  const Rows<float> d_h, d_c;  // gradients of the state after step t, then of the one before it
  long t = 0;

  GatedContext(const GatedArgs &c, const Plan &plan, bool back, long first, long last,
               Workspace &workspace)
      : c(c), plan(plan), first(first), last(last),
        gate{c.activation, c.auxiliary, c.units, c.chunk_size},
        zeros(zero_row(workspace, c.units)), values(workspace, c.units),
        gradients(workspace, c.units), d_h{c.d_h, c.units, 0}, d_c{c.d_c, c.units, 0} {
    outputs = SequenceView(c.outputs, c.units, c.batch_size, c.steps);
    gates = view(c.gates, c.columns, plan.slab, workspace);
    h_prev = view(c.h_prev, c.units, 1, workspace);
    if (c.c_0) cells = view(c.cells, c.units, 1, workspace);
    if (c.joint_columns < c.columns) extra = view(c.extra, c.units, 1, workspace);
    if (!back) return;
    d_gates = view(nullptr, c.columns, plan.slab, workspace);
    if (c.joint_columns < c.columns) d_extra = view(nullptr, c.units, plan.slab, workspace);
  }

  SequenceView view(float *tensor, long width, long period, Workspace &workspace) const {
    if (tensor) return SequenceView(tensor, width, c.batch_size, c.steps);
    return SequenceView(workspace, width, first, last, period);
  }
  static float *zero_row(Workspace &workspace, long units) {
    float *row = workspace.take(units);
    if (workspace.data) memset(row, 0, padded(units) * sizeof(float));
    return row;
  }

  bool starts_episode(long row) const {
    return c.episode_starts && c.episode_starts[t * c.batch_size + row];
  }

  // h and c before the step. At an episode start the old state is not read, rather than multiplied
  // by zero: it may be NaN.
  const float *h_before(long row) const {
    if (starts_episode(row)) return c.initial_h ? c.initial_h + row * c.initial_h_stride : zeros;
    return t ? outputs.row(t - 1, row) : c.h_0 + row * c.h_0_stride;
  }
  const float *c_before(long row) const {
    if (starts_episode(row)) return c.initial_c ? c.initial_c + row * c.initial_c_stride : zeros;
    return t ? cells.row(t - 1, row) : c.c_0 + row * c.c_0_stride;
  }

  const float *d_output(long row) const {
    return c.d_outputs ? c.d_outputs + (t * c.batch_size + row) * c.units : zeros;
  }
  // Whether the gradient of the state before this step is needed.
  bool needs_d_state() const { return t || c.needs_state_grad || c.d_initial_h; }
  // At an episode start the state before the step is the initial state: its gradient ends there.
  void end_gradient(long row, Rows<float> d, float *d_initial) const {
    if (!d.data) return;
    if (d_initial) add(d_initial + row * c.units, d.row(row), c.units);
    memset(d.row(row), 0, c.units * sizeof(float));
  }

  // out (+)= a * matrix for the thread's rows, of one step or of several from t on.
  void product(const PackedMatrix &matrix, Rows<const float> a, Rows<float> out, WriteMode mode,
               const float *bias = nullptr, long steps = 1) const {
    multiply(matrix, a, out, steps, first, last, mode, bias);
  }
  // The steps of the slab that begins at t; 0 if none does.
  long slab_length() const {
    if (t % plan.slab) return 0;
    return c.steps - t < plan.slab ? c.steps - t : plan.slab;
  }
  // Rows of the input, or of its gradient, from step t on.
  template <class T> Rows<T> input_rows(T *x) const {
    return {x + t * c.batch_size * c.input_size, c.input_size, c.batch_size * c.input_size};
  }
};
