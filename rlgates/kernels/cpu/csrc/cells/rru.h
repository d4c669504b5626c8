// The RRU: a layer of g units that may be normalized, more layers on top, and from the last of them
// the candidate c (d) and the output o (p).

struct Rru : CellDefaults {
  // Weights: (g, I), (g); (g, d); (K, g, g), (K, g) of the layers above the first; (d + p, g),
  // (d + p); the decay of h and the weight Z of the candidate, (d).
  enum { INPUT, BIAS, STATE, UPPER, UPPER_BIAS, OUT, OUT_BIAS, DECAY, AMOUNT };
  enum { NORMAL, SCALE, LAYERS, OUTS };  // saved: (g), (1), ((K + 1) g), (d + p)
  const long units, inner, upper, outs;
  const bool normalize, relu_candidate, relu_output;
  const float dropout;
  const SequenceView d_layers, d_outs;  // of the pre-activations

  static long matrix_count(const LayerArgs &c) { return 2 + c.sizes[2]; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long d = c.sizes[0], g = c.sizes[1];
    if (i == 0) return weight_matrix(c.weights[STATE], g, d, back);
    if (i == 1) return weight_matrix(c.weights[OUT], d + c.sizes[3], g, back);
    return weight_matrix(c.weights[UPPER] + (i - 2) * g * g, g, g, back);
  }

  Rru(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), inner(ctx.c.sizes[1]), upper(ctx.c.sizes[2]),
        outs(units + ctx.c.sizes[3]), normalize(ctx.c.sizes[4]), relu_candidate(ctx.c.sizes[5]),
        relu_output(ctx.c.sizes[6]), dropout(ctx.c.dropout),
        d_layers(ctx.slab_view(inner * upper, workspace)), d_outs(ctx.slab_view(outs, workspace)) {}

  Rows<float> layer(const Context &ctx, long i) const {
    return ctx.saved[LAYERS].rows(ctx.t).from(i * inner);
  }
  // The pre-activation of the first layer has the gradient of the projected input.
  const SequenceView &d_layer(const Context &ctx, long i) const {
    return i ? d_layers : ctx.d_inputs;
  }
  Rows<float> d_rows(const Context &ctx, long i) const {
    return d_layer(ctx, i).rows(ctx.t).from(i ? (i - 1) * inner : 0);
  }

  void forward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const Rows<float> normal = ctx.saved[NORMAL].rows(ctx.t);
    ctx.product(0, ctx.part(0), normal, SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *input = ctx.inputs.row(ctx.t, row);
      float *z = normal.row(row), *j = layer(ctx, 0).row(row), scale = 1.0f;
      vec squares = {};
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES) {
        const vec sum = load(z + i, n) + load(input + i, n);
        squares += sum * sum;
        store(z + i, sum, n);
      }
      if (normalize) scale = 1.0f / __builtin_sqrtf(total(squares) / inner + 1e-6f);
      *ctx.saved[SCALE].row(ctx.t, row) = scale;
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES) {
        const vec y = load(z + i, n) * scale;
        store(z + i, y, n);
        store(j + i, relu(y), n);
      }
    }
    for (long k = 0; k < upper; k++) {
      const Rows<float> above = layer(ctx, k + 1);
      ctx.product(2 + k, layer(ctx, k), above, SET, c.weights[UPPER_BIAS] + k * inner);
      for (long row = ctx.first; row < ctx.last; row++)
        for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES)
          store(above.row(row) + i, relu(load(above.row(row) + i, n)), n);
    }
    const Rows<float> top = layer(ctx, upper), out = ctx.saved[OUTS].rows(ctx.t);
    for (long row = ctx.first; c.dropout > 0 && row < ctx.last; row++)
      drop(ctx.noise.row(ctx.t, row), top.row(row));
    ctx.product(1, top, out, SET, c.weights[OUT_BIAS]);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *h = ctx.state(0, row);
      float *candidate = out.row(row), *o = candidate + units, *next = ctx.next(0, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec u = load(candidate + unit, n);
        if (relu_candidate) store(candidate + unit, u = relu(u), n);
        const vec h_kept = load(c.weights[DECAY] + unit, n) * load(h + unit, n);
        store(next + unit, h_kept + load(c.weights[AMOUNT] + unit, n) * u, n);
      }
      for (long i = 0, n = relu_output ? outs - units : 0; n > 0; i += LANES, n -= LANES)
        store(o + i, relu(load(o + i, n)), n);
      memcpy(ctx.outputs.row(ctx.t, row), o, (outs - units) * sizeof(float));
    }
  }

  // Drop units of a row, or their gradients.
  void drop(const float *noise, float *row) const {
    for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES) {
      const vec scaled = load(row + i, n) * (1.0f / (1.0f - dropout));
      store(row + i, scaled * (load(noise + i, n) < dropout ? vec{} : vec{} + 1.0f), n);
    }
  }

  // The gradient through a ReLU: zero where its values are.
  static void relu_backward(float *d, const float *values, long count) {
    for (long i = 0, n = count; n > 0; i += LANES, n -= LANES)
      store(d + i, relu_gradient(load(values + i, n), load(d + i, n)), n);
  }

  void backward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const Rows<float> d_out = d_outs.rows(ctx.t), out = ctx.saved[OUTS].rows(ctx.t);
    float *d_decay = ctx.d_weights.of[DECAY], *d_amount = ctx.d_weights.of[AMOUNT];
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *h = ctx.state(0, row), *candidate = out.row(row);
      float *d_h = ctx.d_state(0).row(row), *d_u = d_out.row(row), *d_o = d_u + units;
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec d = load(d_h + unit, n), u = load(candidate + unit, n);
        store(d_u + unit, d * load(c.weights[AMOUNT] + unit, n), n);
        store(d_decay + unit, load(d_decay + unit, n) + d * load(h + unit, n), n);
        store(d_amount + unit, load(d_amount + unit, n) + d * u, n);
        store(d_h + unit, d * load(c.weights[DECAY] + unit, n), n);
      }
      memcpy(d_o, ctx.d_outputs.row(ctx.t, row), (outs - units) * sizeof(float));
      if (relu_candidate) relu_backward(d_u, candidate, units);
      if (relu_output) relu_backward(d_o, candidate + units, outs - units);
    }
    for (long k = upper; k >= 0; k--) {
      const Rows<float> d = d_rows(ctx, k), values = layer(ctx, k);
      if (k == upper) ctx.product(1, d_out, d, SET);
      else ctx.product(2 + k, d_rows(ctx, k + 1), d, SET);
      for (long row = ctx.first; row < ctx.last; row++) {
        if (k == upper && c.dropout > 0) drop(ctx.noise.row(ctx.t, row), d.row(row));
        relu_backward(d.row(row), values.row(row), inner);
      }
    }
    for (long row = ctx.first; normalize && row < ctx.last; row++) {
      const float *normal = ctx.saved[NORMAL].row(ctx.t, row);
      const float scale = *ctx.saved[SCALE].row(ctx.t, row);
      float *d = ctx.d_inputs.row(ctx.t, row);
      vec along = {};  // the component of d along the row, which normalization removes
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES)
        along += load(d + i, n) * load(normal + i, n);
      const float mean = total(along) / inner;
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES)
        store(d + i, scale * (load(d + i, n) - mean * load(normal + i, n)), n);
    }
    if (ctx.needs_d_state()) ctx.product(0, ctx.d_inputs.rows(ctx.t), ctx.d_state(0), ADD);
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    ctx.add(ctx.d_inputs, 0, inner, ctx.part(0), units, steps, d_weights[STATE],
            nullptr);
    for (long k = 0; k < upper; k++)
      ctx.add(d_layers, k * inner, inner, layer(ctx, k), inner, steps,
             d_weights[UPPER] + k * inner * inner, d_weights[UPPER_BIAS] + k * inner);
    ctx.add(d_outs, 0, outs, layer(ctx, upper), inner, steps, d_weights[OUT], d_weights[OUT_BIAS]);
  }
};
