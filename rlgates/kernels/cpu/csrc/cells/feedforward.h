// h = tanh(W x + b): no state, and nothing but what the driver does for other cells too.

struct FeedForward : CellDefaults {
  enum { INPUT, BIAS };  // (H, I), (H)
  enum { HIDDEN };       // saved: (H)
  static constexpr long PROJECTION = HIDDEN;
  const long units;

  static long matrix_count(const LayerArgs &) { return 0; }
  static PackedMatrix matrix(const LayerArgs &, long, bool) { return {}; }
  FeedForward(const Context &ctx, Workspace &) : units(ctx.c.sizes[0]) {}

  void forward(const Context &ctx) const {
    for (long row = ctx.first; row < ctx.last; row++) {
      float *z = ctx.inputs.row(ctx.t, row), *output = ctx.outputs.row(ctx.t, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec h = hyperbolic_tangent(load(z + unit, n));
        store(z + unit, h, n);
        store(output + unit, h, n);
      }
    }
  }

  void backward(const Context &ctx) const {
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *h = ctx.saved[HIDDEN].row(ctx.t, row), *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_z = ctx.d_inputs.row(ctx.t, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec value = load(h + unit, n);
        store(d_z + unit, load(d_output + unit, n) * (1.0f - value * value), n);
      }
    }
  }

  void weights(const Context &, long) const {}
};
