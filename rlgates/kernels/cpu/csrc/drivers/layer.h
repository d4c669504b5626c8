// A layer over a whole sequence, forward and backward through time.
//
// The rows of a batch are independent, so each thread takes some and runs through time without
// waiting for others. The input is projected, and its gradient and those of the weights are
// computed, for a slab of several steps at once: the weights are read less often, and the data of a
// slab is still in the cache when it is used again.
//
// A cell is a struct, see `cells/lstm.h` and `cells/rru.h`: it has matrices, `forward` and `backward`
// for one step, and `weights`, which accumulates the weight gradients of a slab. With a projected
// input its first two weights are (P, I) and (P). What it may leave out:
struct CellDefaults {
  // Whether its backward pass reads the projected input again, which is not saved: it may be wide.
  static constexpr bool REREADS_INPUT = false;
  // Which saved tensor the input is projected into; -1 for none.
  static constexpr long PROJECTION = -1;
  // The rows of its products that are of one row of the batch.
  static long lines_of_row(const LayerArgs &) { return 1; }
  // The bias of the projection.
  static const float *projection_bias(const LayerArgs &c, Workspace &) { return c.weights[1]; }
  // After the gradients of all threads are summed.
  static void finish_gradients(const LayerArgs &) {}
};

// A weight (out, in) as the right-hand side of a product, in the forward or backward pass.
static PackedMatrix weight_matrix(const float *weights, long out, long in, bool back) {
  if (back) return {weights, out, in, in, 1, nullptr};
  return {weights, in, out, 1, in, nullptr};
}

// ---- the loop over time ------------------------------------------------------------------------

template <class Cell> static void forward(Context &ctx, Workspace &workspace) {
  const LayerArgs &c = ctx.c;
  Cell cell(ctx, workspace);
  if (!workspace.data) return;
  for (long row = ctx.first; row < ctx.last; row++)
    ctx.take_state(ctx.states.row(0, row), c.state_0 + row * c.state_stride);
  const bool zones_out = ctx.zones_out();
  for (; ctx.t < c.steps; ctx.t++) {
    ctx.project(Cell::matrix_count(c), ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      if (!ctx.starts_episode(row)) continue;
      // The old state is not read, rather than multiplied by zero: it may be NaN.
      float *state = ctx.states.row(ctx.t, row);
      if (c.initial) ctx.take_state(state, c.initial + row * c.initial_stride);
      else memset(state, 0, (c.state_size - c.table_size) * sizeof(float));
    }
    cell.forward(ctx);
    if (zones_out) ctx.zone_out();
  }
  for (long row = ctx.first; row < ctx.last; row++)
    ctx.for_stretches([&](long offset, long place, long size) {
      memcpy(c.state_n + row * c.state_size + place, ctx.states.row(c.steps, row) + offset,
             size * sizeof(float));
    });
}

template <class Cell> static void backward(Context &ctx, Workspace &workspace) {
  const LayerArgs &c = ctx.c;
  Cell cell(ctx, workspace);
  long widest = c.projected_width;
  for (long i = 0; i < Cell::matrix_count(c); i++) {
    const long out = Cell::matrix(c, i, true).depth;
    widest = out > widest ? out : widest;
  }
  ctx.outer_workspace = workspace.take(DEPTH * (padded(widest) + MAX_VECTORS * LANES));
  if (!workspace.data) return;
  memset(ctx.zeros, 0, c.output_size * sizeof(float));
  const bool zones_out = ctx.zones_out();
  for (ctx.t = c.steps - 1; ctx.t >= 0; ctx.t--) {
    const bool enters_slab = ctx.t == c.steps - 1 || ctx.slab_length(ctx.t + 1);
    if (Cell::REREADS_INPUT && enters_slab)
      ctx.project(Cell::matrix_count(c) + 1, ctx.t / ctx.slab * ctx.slab);
    if (zones_out) ctx.split_zoned_gradients();
    cell.backward(ctx);
    if (zones_out) ctx.add_zoned_gradients();
    for (long row = ctx.first; row < ctx.last; row++) {
      if (!ctx.starts_episode(row)) continue;
      ctx.for_stretches([&](long, long place, long size) {
        float *d = c.d_state + row * c.state_size + place;
        if (c.d_initial) add(c.d_initial + row * c.state_size + place, d, size);
        memset(d, 0, size * sizeof(float));
      });
    }
    const long steps = ctx.slab_length(ctx.t);
    if (!steps) continue;
    if (c.projected_width && c.d_x)
      ctx.product(Cell::matrix_count(c), ctx.d_inputs.rows(ctx.t), ctx.d_x.rows(ctx.t), SET,
                  nullptr, steps);
    if (!c.needs_weight_grad) continue;
    float *const *d_weights = ctx.d_weights.of;
    if (c.projected_width)
      ctx.add(ctx.d_inputs, 0, c.projected_width, ctx.x.rows(ctx.t), c.input_size, steps,
              d_weights[0], d_weights[1]);
    cell.weights(ctx, steps);
  }
}

// ---- all threads -------------------------------------------------------------------------------

constexpr long SLAB = 64;  // rows whose input is projected at once
constexpr long CACHED_FLOATS = 1 << 18;
constexpr long MIN_PACKED_ROWS = 32;  // steps times batch, from which on packing the weights pays

struct Kernel {
  void (*forward)(Context &, Workspace &);
  void (*backward)(Context &, Workspace &);
  long (*matrix_count)(const LayerArgs &);
  long (*lines_of_row)(const LayerArgs &);
  PackedMatrix (*matrix)(const LayerArgs &, long i, bool back);
  const float *(*projection_bias)(const LayerArgs &, Workspace &);
  void (*finish_gradients)(const LayerArgs &);
  long projection;
  bool rereads_input;
};
template <class T>
constexpr Kernel kernel_of = {forward<T>,          backward<T>,   T::matrix_count,
                              T::lines_of_row,     T::matrix,     T::projection_bias,
                              T::finish_gradients, T::PROJECTION, T::REREADS_INPUT};

// The steps of a slab, for threads with at most so many rows of the batch, of so many lines.
static long slab_of(bool back, long rows, long lines, const LayerArgs &c) {
  if (!rows) return c.steps;
  const long most = (back ? DEPTH : SLAB) / (rows * lines);
  // Projected inputs may be wide: a slab of them stays in the cache.
  const long cached = CACHED_FLOATS / (rows * c.projected_width + 1);
  const long fit = cached < most ? cached : most;
  return fit < 1 ? 1 : fit < c.steps ? fit : c.steps;
}

static void sum_thread_gradients(const LayerArgs &c, long threads, float *workspaces, long size) {
  parallel_for(threads, threads, [&](long, long, long share) {
    for (long worker = 1; worker < threads; worker++) {
      Workspace workspace = {workspaces + worker * size, 0};
      const WeightGradients part(c, true, worker, workspace);
      for (long i = 0; i < LayerArgs::WEIGHTS; i++) {
        const long from = c.weight_numel[i] * share / threads;
        const long to = c.weight_numel[i] * (share + 1) / threads;
        if (c.d_weights[i]) add(c.d_weights[i] + from, part.of[i] + from, to - from);
      }
    }
  });
}

template <bool back> static bool run_layer(const Kernel &kernel, const LayerArgs &c) {
  double weights = 16.0 * c.output_size;  // an activation costs several multiplications
  for (long i = 0; i < LayerArgs::WEIGHTS; i++) weights += c.weight_numel[i];
  const long threads =
      num_threads(c.threads, c.batch_size, (double)c.steps * c.batch_size * weights);
  const long most = (c.batch_size + threads - 1) / threads;
  const long slab = slab_of(back, most, kernel.lines_of_row(c), c);
  const long cell_count = kernel.matrix_count(c), reprojects = back && kernel.rereads_input;
  const long count = cell_count + (c.projected_width ? 1 + reprojects : 0);
  const bool packs = back || c.steps * c.batch_size >= MIN_PACKED_ROWS;
  const float *projection_bias = nullptr;
  auto prepare = [&](Workspace &workspace) {
    FlushDenormals here;
    const long floats = count * sizeof(PackedMatrix) / sizeof(float);
    PackedMatrix *matrices = (PackedMatrix *)workspace.take(floats);
    if (c.projected_width) projection_bias = kernel.projection_bias(c, workspace);
    for (long i = 0; i < count; i++) {
      const bool projects_back = back && i == cell_count;
      if (projects_back && !c.d_x) continue;
      PackedMatrix matrix = i < cell_count ? kernel.matrix(c, i, back)
                                           : weight_matrix(c.weights[0], c.projected_width,
                                                           c.input_size, projects_back);
      if (packs) matrix.panels = workspace.take(matrix.size());
      if (!workspace.data) continue;
      if (packs) pack(matrix);
      matrices[i] = matrix;
    }
    return matrices;
  };
  auto pass = [&](const PackedMatrix *matrices, const WeightGradients &d_weights, long first,
                  long last, Workspace &workspace) {
    Context ctx(c, matrices, projection_bias, d_weights, kernel.projection, back, first, last, slab,
                workspace);
    (back ? kernel.backward : kernel.forward)(ctx, workspace);
  };
  if (!back) {
    const long rows = c.steps * c.batch_size, of_step = c.state_size - c.table_size;
    long saved = (rows + c.batch_size) * of_step;
    for (long width : c.saved_width) saved += rows * width;
    request_large_pages(c.saved, saved);
    request_large_pages(c.outputs, rows * c.output_size);
    request_large_pages(c.state_n, c.batch_size * c.state_size);
  }
  // A first run with empty workspaces only measures how much memory it takes.
  Workspace shared = {}, per_thread = {};
  prepare(shared);
  const WeightGradients measured(c, back, threads - 1, per_thread);
  pass(nullptr, measured, 0, most, per_thread);
  AlignedBuffer buffer(shared.used + threads * per_thread.used);
  if (!buffer.data) return false;
  shared = {buffer.data, 0};
  const PackedMatrix *matrices = prepare(shared);
  float *workspaces = buffer.data + shared.used;
  auto zero = [](float *data, long floats) { memset(data, 0, floats * sizeof(float)); };
  for (long i = 0; back && i < LayerArgs::WEIGHTS; i++)
    if (c.d_weights[i]) zero(c.d_weights[i], c.weight_numel[i]);
  if (back && c.d_initial) zero(c.d_initial, c.batch_size * c.state_size);
  parallel_for(c.batch_size, threads, [&](long first, long last, long worker) {
    Workspace workspace = {workspaces + worker * per_thread.used, 0};
    const WeightGradients d_weights(c, back, worker, workspace);
    zero(workspace.data, workspace.used);
    pass(matrices, d_weights, first, last, workspace);
  });
  if (back && c.needs_weight_grad) {
    sum_thread_gradients(c, threads, workspaces, per_thread.used);
    FlushDenormals here;
    kernel.finish_gradients(c);
  }
  return true;
}
