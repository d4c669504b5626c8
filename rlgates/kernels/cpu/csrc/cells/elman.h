// Networks without a gate, h' = phi(z), phi being tanh or relu. The pre-activations z become h' in
// place, where the driver puts the projected input.

// h' of a row from z, to which weight * before is added first where there is a weight.
static void ungated_forward(long units, bool relus, float *z, float *h, float *output,
                            const float *weight, const float *before) {
  for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
    vec sum = load(z + unit, n);
    if (weight) sum += load(weight + unit, n) * load(before + unit, n);
    const vec next = relus ? relu(sum) : hyperbolic_tangent(sum);
    store(z + unit, next, n);
    store(h + unit, next, n);
    store(output + unit, next, n);
  }
}

// The gradient of z, for a vector of units, from h' and its gradient.
INLINE vec ungated_gradient(bool relus, vec h, vec d) {
  return relus ? relu_gradient(h, d) : d * (1.0f - h * h);
}

// z = W x + b + U h
struct Elman : CellDefaults {
  enum { INPUT, BIAS, STATE };  // (H, I), (H), (H, H)
  enum { HIDDEN };              // saved: (H)
  static constexpr long PROJECTION = HIDDEN;
  const long units;
  const bool relus;

  static long matrix_count(const LayerArgs &) { return 1; }
  static PackedMatrix matrix(const LayerArgs &c, long, bool back) {
    return weight_matrix(c.weights[STATE], c.sizes[0], c.sizes[0], back);
  }
  Elman(const Context &ctx, Workspace &) : units(ctx.c.sizes[0]), relus(ctx.c.sizes[1]) {}

  void forward(const Context &ctx) const {
    const Rows<float> all = ctx.inputs.rows(ctx.t);
    ctx.product(0, ctx.part(0), all, ADD);
    for (long row = ctx.first; row < ctx.last; row++)
      ungated_forward(units, relus, all.row(row), ctx.next(0, row), ctx.outputs.row(ctx.t, row),
                      nullptr, nullptr);
  }

  void backward(const Context &ctx) const {
    const Rows<float> d_all = ctx.d_inputs.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *h = ctx.saved[HIDDEN].row(ctx.t, row), *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_z = d_all.row(row), *d_h = ctx.d_state(0).row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec d = load(d_h + unit, n) + load(d_output + unit, n);
        store(d_z + unit, ungated_gradient(relus, load(h + unit, n), d), n);
      }
    }
    if (ctx.needs_d_state()) ctx.product(0, d_all, ctx.d_state(0), SET);
  }

  void weights(const Context &ctx, long steps) const {
    ctx.add(ctx.d_inputs, 0, units, ctx.part(0), units, steps, ctx.d_weights.of[STATE], nullptr);
  }
};

// z = W x + b + u * h, with a number u for each unit
struct IndRnn : CellDefaults {
  enum { INPUT, BIAS, RECURRENT };  // (H, I), (H), (H)
  enum { HIDDEN };                  // saved: (H)
  static constexpr long PROJECTION = HIDDEN;
  const long units;
  const bool relus;
  const float *const recurrent;

  static long matrix_count(const LayerArgs &) { return 0; }
  static PackedMatrix matrix(const LayerArgs &, long, bool) { return {}; }
  IndRnn(const Context &ctx, Workspace &)
      : units(ctx.c.sizes[0]), relus(ctx.c.sizes[1]), recurrent(ctx.c.weights[RECURRENT]) {}

  void forward(const Context &ctx) const {
    for (long row = ctx.first; row < ctx.last; row++)
      ungated_forward(units, relus, ctx.inputs.row(ctx.t, row), ctx.next(0, row),
                      ctx.outputs.row(ctx.t, row), recurrent, ctx.state(0, row));
  }

  void backward(const Context &ctx) const {
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *h = ctx.saved[HIDDEN].row(ctx.t, row), *before = ctx.state(0, row);
      const float *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_z = ctx.d_inputs.row(ctx.t, row), *d_h = ctx.d_state(0).row(row);
      float *d_recurrent = ctx.d_weights.of[RECURRENT];
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec d = load(d_h + unit, n) + load(d_output + unit, n);
        const vec d_sum = ungated_gradient(relus, load(h + unit, n), d);
        store(d_z + unit, d_sum, n);
        store(d_h + unit, d_sum * load(recurrent + unit, n), n);
        store(d_recurrent + unit, load(d_recurrent + unit, n) + d_sum * load(before + unit, n), n);
      }
    }
  }

  void weights(const Context &, long) const {}
};
