// A layer with a fused cell over a whole sequence, forward and backward through time.
//
// As in `gated.h`, threads take rows of the batch, and the input is projected, and the gradients of
// the weights computed, for a slab of steps at once. A cell is a struct, see `cells/rru.h`: it has
// matrices, `forward` and `backward` for one step, and `weights`, which accumulates the weight
// gradients of a slab. With REREADS_INPUT its backward pass reads the projected input again.

// A weight (out, in) as the right-hand side of a product, in the forward or backward pass.
static PackedMatrix weight_matrix(const float *weights, long out, long in, bool back) {
  if (back) return {weights, out, in, in, 1, nullptr};
  return {weights, in, out, 1, in, nullptr};
}

// The gradients of the weights, as one thread accumulates them: the first thread in the tensors
// themselves, the others in their workspaces.
struct FusedWeightGradients {
  float *of[FusedArgs::WEIGHTS];
  FusedWeightGradients(const FusedArgs &c, long worker, Workspace &workspace) {
    for (long i = 0; i < FusedArgs::WEIGHTS; i++)
      of[i] = worker && c.d_weights[i] ? workspace.take(c.weight_numel[i]) : c.d_weights[i];
  }
};

// A thread at step t: it owns rows first to last of the batch.
struct FusedContext {
  const FusedArgs &c;
  const PackedMatrix *matrices;  // of the cell, then of the input projection
  const long first, last, slab;
  const FusedWeightGradients &d_weights;
  SequenceView x, d_x;            // (I)
  SequenceView inputs, d_inputs;  // what the steps read: x or its projection
  SequenceView noise, outputs, d_outputs, parts[FusedArgs::PARTS], saved[FusedArgs::SAVED];
  float *outer_workspace = nullptr;
  long t = 0;

  FusedContext(const FusedArgs &c, const PackedMatrix *matrices,
               const FusedWeightGradients &d_weights, bool back, long first, long last, long slab,
               Workspace &workspace)
      : c(c), matrices(matrices), first(first), last(last), slab(slab), d_weights(d_weights),
        x(view(c.x, c.input_size)), d_x(view(c.d_x, c.input_size)), inputs(x), d_inputs(d_x),
        noise(view(c.noise, c.noise_width)), outputs(view(c.outputs, c.output_size)),
        d_outputs(view(c.d_outputs, c.output_size)) {
    const long width = c.projected_width;
    if (width) inputs = slab_view(width, workspace);
    if (width && back) d_inputs = slab_view(width, workspace);
    for (long i = 0; i < FusedArgs::PARTS; i++)
      parts[i] = c.states[i] ? SequenceView(c.states[i], c.part_width[i], c.batch_size, c.steps + 1)
                             : SequenceView(workspace, c.part_width[i], first, last, 2);
    for (long i = 0; i < FusedArgs::SAVED; i++)
      saved[i] = c.saved[i] ? view(c.saved[i], c.saved_width[i])
                            : SequenceView(workspace, c.saved_width[i], first, last, 1);
  }

  SequenceView view(float *tensor, long width) const {
    return SequenceView(tensor, width, c.batch_size, c.steps);
  }
  // Workspace for the steps of a slab, side by side.
  SequenceView slab_view(long width, Workspace &workspace) const {
    return SequenceView(workspace, width, first, last, slab);
  }
  // The steps of the slab that begins at a step; 0 if none does.
  long slab_length(long t) const {
    if (t % slab) return 0;
    return c.steps - t < slab ? c.steps - t : slab;
  }
  // Project the input of the slab that begins at a step, if one does.
  void project(long matrix, long from) const {
    if (const long steps = c.projected_width ? slab_length(from) : 0)
      product(matrix, x.rows(from), inputs.rows(from), SET, c.weights[1], steps);
  }

  bool starts_episode(long row) const {
    return c.episode_starts && c.episode_starts[t * c.batch_size + row];
  }
  const float *state(long part, long row) const { return parts[part].row(t, row); }
  float *next(long part, long row) const { return parts[part].row(t + 1, row); }
  Rows<float> d_state(long part) const { return {c.d_state[part], c.part_width[part], 0}; }
  // Whether the gradient of the state before this step is needed.
  bool needs_d_state() const { return t || c.needs_state_grad; }

  // out (+)= a * matrix, for the thread's rows.
  void product(long matrix, Rows<const float> a, Rows<float> out, WriteMode mode,
               const float *bias = nullptr, long steps = 1) const {
    multiply(matrices[matrix], a, out, steps, first, last, mode, bias);
  }
  // Add to the gradients of a matrix and its bias (or null), from the gradients of its outputs,
  // `columns` of d for each step of a slab, and its inputs.
  void add(const SequenceView &d, long column, long columns, Rows<const float> input, long width,
           long steps, float *matrix, float *bias) const {
    outer(d.row(t, first) + column, d.stride, columns, input, width, steps, first, last, ADD,
          {matrix, bias}, outer_workspace);
  }
};

// ---- the loop over time ------------------------------------------------------------------------

template <class Cell>
static void fused_forward(const FusedArgs &c, const PackedMatrix *matrices,
                          const FusedWeightGradients &d_weights, long first, long last, long slab,
                          Workspace &workspace) {
  FusedContext ctx(c, matrices, d_weights, false, first, last, slab, workspace);
  Cell cell(ctx, workspace);
  if (!workspace.data) return;
  auto for_each_part = [&](auto copy) {
    for (long part = 0; part < FusedArgs::PARTS; part++)
      for (long row = first; row < last && c.part_width[part]; row++) {
        const long width = c.part_width[part];
        copy(part, row, row * width, width * sizeof(float));
      }
  };
  for_each_part([&](long part, long row, long place, size_t size) {
    memcpy(ctx.parts[part].row(0, row), c.state_0[part] + place, size);
  });
  for (; ctx.t < c.steps; ctx.t++) {
    ctx.project(Cell::matrix_count(c), ctx.t);
    for_each_part([&](long part, long row, long place, size_t size) {
      if (ctx.starts_episode(row))
        memcpy(ctx.parts[part].row(ctx.t, row), c.initial[part] + place, size);
    });
    cell.forward(ctx);
  }
  for_each_part([&](long part, long row, long place, size_t size) {
    memcpy(c.state_n[part] + place, ctx.state(part, row), size);
  });
}

template <class Cell>
static void fused_backward(const FusedArgs &c, const PackedMatrix *matrices,
                           const FusedWeightGradients &d_weights, long first, long last, long slab,
                           Workspace &workspace) {
  FusedContext ctx(c, matrices, d_weights, true, first, last, slab, workspace);
  Cell cell(ctx, workspace);
  long widest = c.projected_width;
  for (long i = 0; i < Cell::matrix_count(c); i++) {
    const long out = Cell::matrix(c, i, true).depth;
    widest = out > widest ? out : widest;
  }
  ctx.outer_workspace = workspace.take(DEPTH * (padded(widest) + MAX_VECTORS * LANES));
  if (!workspace.data) return;
  for (ctx.t = c.steps - 1; ctx.t >= 0; ctx.t--) {
    // The projected input is recomputed, not saved: it may be large.
    const bool enters_slab = ctx.t == c.steps - 1 || ctx.slab_length(ctx.t + 1);
    if (Cell::REREADS_INPUT && enters_slab)
      ctx.project(Cell::matrix_count(c) + 1, ctx.t / slab * slab);
    cell.backward(ctx);
    for (long row = first; row < last; row++)
      for (long part = 0; ctx.starts_episode(row) && part < FusedArgs::PARTS; part++) {
        const long width = c.part_width[part];
        if (!width) continue;
        float *d = c.d_state[part] + row * width;
        add(c.d_initial[part] + row * width, d, width);
        memset(d, 0, width * sizeof(float));
      }
    const long steps = ctx.slab_length(ctx.t);
    if (!steps) continue;
    if (c.projected_width && c.d_x)
      ctx.product(Cell::matrix_count(c), ctx.d_inputs.rows(ctx.t), ctx.d_x.rows(ctx.t), SET,
                  nullptr, steps);
    if (!c.needs_weight_grad) continue;
    if (c.projected_width)
      ctx.add(ctx.d_inputs, 0, c.projected_width, ctx.x.rows(ctx.t), c.input_size, steps,
              d_weights.of[0], d_weights.of[1]);
    cell.weights(ctx, steps);
  }
}

// ---- all threads -------------------------------------------------------------------------------

constexpr long CACHED_FLOATS = 1 << 18;

typedef void (*FusedPass)(const FusedArgs &, const PackedMatrix *, const FusedWeightGradients &,
                          long first, long last, long slab, Workspace &);
struct FusedKernels {
  FusedPass forward, backward;
  long (*matrix_count)(const FusedArgs &);
  PackedMatrix (*matrix)(const FusedArgs &, long i, bool back);
  bool rereads_input;
};
template <class T>
constexpr FusedKernels fused_kernels = {fused_forward<T>, fused_backward<T>, T::matrix_count,
                                        T::matrix, T::REREADS_INPUT};

template <bool back> static bool run_fused(const FusedKernels &cell, const FusedArgs &c) {
  const FusedPass pass = back ? cell.backward : cell.forward;
  double weights = 16.0 * c.output_size;  // an activation costs several multiplications
  for (long i = 0; i < FusedArgs::WEIGHTS; i++) weights += c.weight_numel[i];
  const long threads =
      num_threads(c.threads, c.batch_size, (double)c.steps * c.batch_size * weights);
  const long most = (c.batch_size + threads - 1) / threads;
  // Projected inputs may be wide: a slab of them stays in the cache.
  const long longest = slab_of(back, most, c.steps);
  const long fit = CACHED_FLOATS / (most * c.projected_width + 1);
  const long slab = fit < 1 ? 1 : fit < longest ? fit : longest;
  const long cell_count = cell.matrix_count(c), reprojects = back && cell.rereads_input;
  const long count = cell_count + (c.projected_width ? 1 + reprojects : 0);
  const bool packs = back || c.steps * c.batch_size >= MIN_PACKED_ROWS;
  auto prepare = [&](Workspace &workspace) {
    const long floats = count * sizeof(PackedMatrix) / sizeof(float);
    PackedMatrix *matrices = (PackedMatrix *)workspace.take(floats);
    for (long i = 0; i < count; i++) {
      PackedMatrix matrix = i < cell_count
                                ? cell.matrix(c, i, back)
                                : weight_matrix(c.weights[0], c.projected_width, c.input_size,
                                                back && i == cell_count);
      if (packs) matrix.panels = workspace.take(matrix.size());
      if (!workspace.data) continue;
      if (packs) pack(matrix);
      matrices[i] = matrix;
    }
    return matrices;
  };
  // A first run with empty workspaces only measures how much memory it takes.
  Workspace shared = {}, per_thread = {};
  prepare(shared);
  const FusedWeightGradients measured(c, threads - 1, per_thread);
  pass(c, nullptr, measured, 0, most, slab, per_thread);
  AlignedBuffer buffer(shared.used + threads * per_thread.used);
  if (!buffer.data) return false;
  shared = {buffer.data, 0};
  const PackedMatrix *matrices = prepare(shared);
  float *workspaces = buffer.data + shared.used;
  parallel_for(c.batch_size, threads, [&](long first, long last, long worker) {
    Workspace workspace = {workspaces + worker * per_thread.used, 0};
    const FusedWeightGradients d_weights(c, worker, workspace);
    if (worker) memset(workspace.data, 0, workspace.used * sizeof(float));
    pass(c, matrices, d_weights, first, last, slab, workspace);
  });
  for (long worker = 1; back && c.needs_weight_grad && worker < threads; worker++) {
    Workspace workspace = {workspaces + worker * per_thread.used, 0};
    const FusedWeightGradients d_weights(c, worker, workspace);
    for (long i = 0; i < FusedArgs::WEIGHTS; i++)
      if (c.d_weights[i]) add(c.d_weights[i], d_weights.of[i], c.weight_numel[i]);
  }
  return true;
}
