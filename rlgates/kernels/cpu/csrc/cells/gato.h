// GATO: no unit reads the state of another, so a step has no product. There are M maps of J units;
// the first two are the decay gate and the candidate.
//
// The state is r and s. The increment of s comes from the third map or, with `out` weights, from a
// sum over all maps from there on. Only the states are saved, all else is recomputed. In ablations
// s is not carried over, or not incremented (`grow` 0).

struct Gato : CellDefaults {
  enum { INPUT, BIAS, RECURRENT, OUT, OUT_BIAS };  // (M J, I), (M J), (M, J), (M - 2, J), (J)
  const long maps, units;
  const bool carry;
  const float grow;  // 1 or 0
  const float decay;
  const float *const recurrent, *const out, *const out_bias;
  float *const growths, *const slopes;  // of a row: the increments of s, the slopes of its cosine

  static constexpr bool REREADS_INPUT = true;
  static long matrix_count(const LayerArgs &) { return 0; }
  static PackedMatrix matrix(const LayerArgs &, long, bool) { return {}; }

  Gato(const Context &ctx, Workspace &workspace)
      : maps(2 + (ctx.c.sizes[1] ? ctx.c.sizes[1] : 1)), units(ctx.c.sizes[0]),
        carry(ctx.c.sizes[2]), grow(ctx.c.sizes[3]), decay(ctx.c.constant),
        recurrent(ctx.c.weights[RECURRENT]), out(ctx.c.weights[OUT]),
        out_bias(ctx.c.weights[OUT_BIAS]), growths(workspace.take(units)),
        slopes(workspace.take(units)) {}

  // The pre-activation of a map, for a vector of units.
  vec map(const float *input, long m, long unit, long n, vec r) const {
    const long place = m * units + unit;
    return load(input + place, n) + load(recurrent + place, n) * r;
  }
  vec growth(const float *input, long unit, long n, vec r) const {
    if (!out) return map(input, 2, unit, n, r);
    vec sum = load(out_bias + unit, n);
    for (long m = 2; m < maps; m++)
      sum += relu(map(input, m, unit, n, r)) * load(out + (m - 2) * units + unit, n);
    return sum;
  }
  vec next_s(const float *s, vec growth, long n) const {
    return (carry ? load(s, n) : vec{}) + grow * softplus(growth);
  }

  void forward(const Context &ctx) const {
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *input = ctx.inputs.row(ctx.t, row);
      const float *r_row = ctx.state(0, row), *s_row = ctx.state(1, row);
      float *to_r = ctx.next(0, row), *to_s = ctx.next(1, row);
      float *output = ctx.outputs.row(ctx.t, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec r = load(r_row + unit, n);
        const vec gate = sigmoid(map(input, 0, unit, n, r));
        const vec u = hyperbolic_tangent(map(input, 1, unit, n, r));
        const vec new_s = next_s(s_row + unit, growth(input, unit, n, r), n);
        const vec new_r = decay * gate * r + u;
        store(to_r + unit, new_r, n);
        store(to_s + unit, new_s, n);
        store(output + unit, new_r, n);
        store(output + units + unit, new_s, n);
      }
      cos_or_sin(output + units, units, false);
    }
  }

  void backward(const Context &ctx) const {
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *input = ctx.inputs.row(ctx.t, row);
      const float *r_row = ctx.state(0, row), *s_row = ctx.state(1, row);
      const float *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_input = ctx.d_inputs.row(ctx.t, row);
      float *d_r_row = ctx.d_state(0).row(row), *d_s_row = ctx.d_state(1).row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec into_s = growth(input, unit, n, load(r_row + unit, n));
        store(growths + unit, into_s);
        store(slopes + unit, next_s(s_row + unit, into_s, n));
      }
      cos_or_sin(slopes, units, true);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec r = load(r_row + unit, n);
        const vec gate = sigmoid(map(input, 0, unit, n, r));
        const vec u = hyperbolic_tangent(map(input, 1, unit, n, r));
        const vec d_r = load(d_r_row + unit, n) + load(d_output + unit, n);
        const vec d_cos = load(d_output + units + unit, n);
        const vec d_s = load(d_s_row + unit, n) - d_cos * load(slopes + unit);
        const vec d_growth = grow * d_s * sigmoid(load(growths + unit));
        vec d_old = d_r * decay * gate;
        auto add_map_gradient = [&](long m, vec d) __attribute__((always_inline)) {
          const long place = m * units + unit;
          store(d_input + place, d, n);
          accumulate(ctx, RECURRENT, place, d * r, n);
          d_old += d * load(recurrent + place, n);
        };
        add_map_gradient(0, d_r * decay * r * gate * (1.0f - gate));
        add_map_gradient(1, d_r * (1.0f - u * u));
        if (out) accumulate(ctx, OUT_BIAS, unit, d_growth, n);
        else add_map_gradient(2, d_growth);
        for (long m = 2; out && m < maps; m++) {
          const long place = (m - 2) * units + unit;
          const vec z = map(input, m, unit, n, r), d = d_growth * load(out + place, n);
          accumulate(ctx, OUT, place, d_growth * relu(z), n);
          add_map_gradient(m, relu_gradient(z, d));
        }
        store(d_r_row + unit, d_old, n);
        store(d_s_row + unit, carry ? d_s : vec{}, n);
      }
    }
  }

  void accumulate(const Context &ctx, long weight, long place, vec d, long n) const {
    float *sum = ctx.d_weights.of[weight] + place;
    store(sum, load(sum, n) + d, n);
  }

  void weights(const Context &, long) const {}
};
