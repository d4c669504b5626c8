// The Legendre memory unit: u = e x, h and m; m' = A m + B u; h' = tanh(W x, h and m').
//
// The driver projects the input to all of h' and, behind it, u.
struct Lmu : CellDefaults {
  // (H + 1, I), (H + 1), (H + 1, H), (M), (H, M), (M, M), (M)
  enum { INPUT, BIAS, STATE, ENCODE, READ, A, B };
  // Saved: h', then u, (H + 1); and m' (M), since an episode may start at the next step.
  enum { HIDDEN, MEMORY };
  enum { H, M };  // parts of the state
  static constexpr long PROJECTION = HIDDEN;
  const long units, size;
  const float *const encode, *const b;
  float *const before;  // in the backward pass: gradients of m, (M) for each row

  static long matrix_count(const LayerArgs &) { return 3; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long units = c.sizes[0], size = c.sizes[1];
    if (i == 0) return weight_matrix(c.weights[STATE], units + 1, units, back);
    if (i == 1) return weight_matrix(c.weights[READ], units, size, back);
    return weight_matrix(c.weights[A], size, size, back);
  }
  Lmu(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), size(ctx.c.sizes[1]), encode(ctx.c.weights[ENCODE]),
        b(ctx.c.weights[B]), before(workspace.take((ctx.last - ctx.first) * size)) {}

  void forward(const Context &ctx) const {
    const Rows<float> all = ctx.inputs.rows(ctx.t);
    const Rows<float> memory = ctx.saved[MEMORY].rows(ctx.t);
    ctx.product(0, ctx.part(H), all, ADD);
    ctx.product(2, ctx.part(M), memory, SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      float &u = all.row(row)[units];
      u += dot(encode, ctx.state(M, row), size);
      add_scaled(memory.row(row), u, b, size);
      memcpy(ctx.next(M, row), memory.row(row), size * sizeof(float));
    }
    ctx.product(1, memory, all, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *z = all.row(row), *h = ctx.next(H, row), *output = ctx.outputs.row(ctx.t, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec next = hyperbolic_tangent(load(z + unit, n));
        store(z + unit, next, n);
        store(h + unit, next, n);
        store(output + unit, next, n);
      }
    }
  }

  void backward(const Context &ctx) const {
    const Rows<float> d_all = ctx.d_inputs.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *h = ctx.saved[HIDDEN].row(ctx.t, row), *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_z = d_all.row(row), *d_h = ctx.d_state(H).row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec value = load(h + unit, n), d = load(d_h + unit, n) + load(d_output + unit, n);
        store(d_z + unit, d * (1.0f - value * value), n);
      }
    }
    ctx.product(1, d_all, ctx.d_state(M), ADD);
    for (long row = ctx.first; row < ctx.last; row++)
      d_all.row(row)[units] = dot(b, ctx.d_state(M).row(row), size);
    if (!ctx.needs_d_state()) return;
    ctx.product(0, d_all, ctx.d_state(H), SET);
    const Rows<float> d_before = {before - ctx.first * size, size, 0};
    ctx.product(2, ctx.d_state(M), d_before, SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      add_scaled(d_before.row(row), d_all.row(row)[units], encode, size);
      memcpy(ctx.d_state(M).row(row), d_before.row(row), size * sizeof(float));
    }
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d = ctx.d_weights.of;
    ctx.add(ctx.d_inputs, 0, units + 1, ctx.part(H), units, steps, d[STATE], nullptr);
    ctx.add(ctx.d_inputs, 0, units, ctx.saved[MEMORY].rows(ctx.t), size, steps, d[READ], nullptr);
    ctx.add(ctx.d_inputs, units, 1, ctx.part(M), size, steps, d[ENCODE], nullptr);
  }
};
