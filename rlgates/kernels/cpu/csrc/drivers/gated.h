// A gated layer over a whole sequence, forward and backward through time.
//
// A step is a product of the state with the weights, then gates and cell, row by row. The rows of a
// batch are independent, so each thread takes some and runs through time without waiting for
// others. The input is projected, and its gradient and those of the weights are computed, for a
// slab of several steps at once: the weights are read less often, and the data of a slab is still
// in the cache when it is used again.
//
// A cell is a struct whose `forward` and `backward` do one step for the rows of a thread, see
// `cells/lstm.h`.

// The gradients of the weights, as one thread accumulates them: the first thread in the tensors
// themselves, the others in their workspaces.
struct GatedWeightGradients {
  WeightGradient input, state, last;
  WriteMode mode = SET;

  GatedWeightGradients(const GatedArgs &c, long worker, Workspace &workspace) {
    auto thread_copy = [&](float *tensor, long floats) {
      return worker && tensor ? workspace.take(floats) : tensor;
    };
    input = {thread_copy(c.d_weight_ih, c.columns * c.input_size),
             thread_copy(c.d_bias_ih, c.columns)};
    state = {thread_copy(c.d_weight_hh, c.columns * c.units), nullptr};
    last = {state.matrix + c.joint_columns * c.units,
            thread_copy(c.d_bias_hh, c.columns) + c.joint_columns};
  }

  // Add those of the slab that begins at step t.
  void add(const GatedContext &ctx, long steps, float *workspace) {
    const GatedArgs &c = ctx.c;
    const Rows<float> h_prev = ctx.h_prev.rows(ctx.t);
    const float *d = ctx.d_gates.row(ctx.t, ctx.first);
    auto product = [&](const float *d, long stride, long columns, Rows<const float> input,
                       long width, WeightGradient out) {
      outer(d, stride, columns, input, width, steps, ctx.first, ctx.last, mode, out, workspace);
    };
    product(d, c.columns, c.columns, ctx.input_rows(c.x), c.input_size, input);
    product(d, c.columns, c.joint_columns, h_prev, c.units, state);
    if (c.cell == GRU_AFTER)
      product(ctx.d_extra.row(ctx.t, ctx.first), c.units, c.units, h_prev, c.units, last);
    if (c.cell == GRU_BEFORE)
      product(d + c.joint_columns, c.columns, c.units, ctx.extra.rows(ctx.t), c.units,
              {last.matrix, nullptr});
    mode = ADD;
  }
};

// ---- the loop over time ------------------------------------------------------------------------

template <class Cell>
static void gated_forward(const GatedArgs &c, const Plan &plan, GatedWeightGradients &, long first,
                          long last, Workspace &workspace) {
  GatedContext ctx(c, plan, false, first, last, workspace);
  Cell cell(ctx, workspace);
  if (!workspace.data) return;
  for (; ctx.t < c.steps; ctx.t++) {
    if (const long steps = ctx.slab_length())
      ctx.product(plan.input, ctx.input_rows(c.x), ctx.gates.rows(ctx.t), SET, plan.bias, steps);
    for (long row = first; row < last; row++)
      memcpy(ctx.h_prev.row(ctx.t, row), ctx.h_before(row), c.units * sizeof(float));
    cell.forward(ctx);
  }
  for (long row = first; row < last; row++) {
    const long units = c.units;
    memcpy(c.h_n + row * units, ctx.outputs.row(c.steps - 1, row), units * sizeof(float));
    if (c.c_n)
      memcpy(c.c_n + row * units, ctx.cells.row(c.steps - 1, row), units * sizeof(float));
  }
}

template <class Cell>
static void gated_backward(const GatedArgs &c, const Plan &plan, GatedWeightGradients &d_weights,
                           long first, long last, Workspace &workspace) {
  GatedContext ctx(c, plan, true, first, last, workspace);
  Cell cell(ctx, workspace);
  float *outer_workspace = workspace.take(DEPTH * (padded(c.columns) + MAX_VECTORS * LANES));
  if (!workspace.data) return;
  for (ctx.t = c.steps - 1; ctx.t >= 0; ctx.t--) {
    cell.backward(ctx);
    for (long row = first; row < last; row++) {
      if (!ctx.starts_episode(row)) continue;
      ctx.end_gradient(row, ctx.d_h, c.d_initial_h);
      ctx.end_gradient(row, ctx.d_c, c.d_initial_c);
    }
    const long steps = ctx.slab_length();
    if (!steps) continue;
    const Rows<float> d = ctx.d_gates.rows(ctx.t);
    if (c.d_x) ctx.product(plan.input, d, ctx.input_rows(c.d_x), SET, nullptr, steps);
    if (c.d_weight_ih) d_weights.add(ctx, steps, outer_workspace);
  }
}

// ---- all threads -------------------------------------------------------------------------------

typedef void (*GatedPass)(const GatedArgs &, const Plan &, GatedWeightGradients &, long first,
                          long last, Workspace &);
struct GatedKernels {
  GatedPass forward, backward;
};

// Sum the weight gradients of all threads into the tensors, and copy those of the biases that the
// maps read as a sum.
static void sum_thread_gradients(const GatedArgs &c, long threads, float *workspaces, long size) {
  const long both = summed_biases(c);
  parallel_for(c.columns, threads, [&](long first, long last, long) {
    const long columns = last - first, bias = first < both ? both : first;
    for (long worker = 1; worker < threads; worker++) {
      Workspace workspace = {workspaces + worker * size, 0};
      GatedWeightGradients part(c, worker, workspace);
      add(c.d_weight_ih + first * c.input_size, part.input.matrix + first * c.input_size,
          columns * c.input_size);
      add(c.d_weight_hh + first * c.units, part.state.matrix + first * c.units,
          columns * c.units);
      add(c.d_bias_ih + first, part.input.bias + first, columns);
      add(c.d_bias_hh + bias, part.last.bias + bias - c.joint_columns, last - bias);
    }
  });
  memcpy(c.d_bias_hh, c.d_bias_ih, both * sizeof(float));
}

template <bool back> static bool run_gated(const GatedKernels &cell, const GatedArgs &c) {
  const GatedPass pass = back ? cell.backward : cell.forward;
  const double work = (double)c.steps * c.batch_size * c.columns * (c.units + c.input_size);
  const long threads = num_threads(c.threads, c.batch_size, work);
  const long most = (c.batch_size + threads - 1) / threads;
  // A first run with empty workspaces only measures how much memory it takes.
  Workspace shared = {}, per_thread = {};
  GatedWeightGradients measured(c, threads - 1, per_thread);
  pass(c, plan(c, back, most, shared), measured, 0, most, per_thread);
  AlignedBuffer buffer(shared.used + threads * per_thread.used);
  if (!buffer.data) return false;
  shared = {buffer.data, 0};
  const Plan weights = plan(c, back, most, shared);
  float *workspaces = buffer.data + shared.used;
  parallel_for(c.batch_size, threads, [&](long first, long last, long worker) {
    Workspace workspace = {workspaces + worker * per_thread.used, 0};
    GatedWeightGradients d_weights(c, worker, workspace);
    pass(c, weights, d_weights, first, last, workspace);
  });
  if (back && c.d_weight_ih) sum_thread_gradients(c, threads, workspaces, per_thread.used);
  return true;
}
