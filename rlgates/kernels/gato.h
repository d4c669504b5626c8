// GATO: no unit reads another one's state, so that there is no product in a step. The maps (M) of
// the J units stand beside each other; the first two are the decay gate and the candidate.
//
// The parts are r and s. What s grows by is made of the third map or, where there are weights for
// it, of a sum of all that follow. Nothing is kept but the state: the rest is made again. In
// ablations s does not carry what there was of it, or does not grow.

struct Gato {
  enum { INPUT, BIAS, RECURRENT, OUT, OUT_BIAS };  // (M J, I), (M J), (M, J), (M - 2, J), (J)
  const long maps, units;
  const float carry, grow;  // 1 or 0
  const float decay;
  const float *const recurrent, *const out, *const out_bias;
  float *const growths, *const slopes;  // of a row: what s grows by, the slopes of its cosine

  static constexpr bool REREADS = true;
  static long matrices(const Loop &) { return 0; }
  static Factor matrix(const Loop &, long, bool) { return {}; }

  Gato(const Turn &at, Room &room)
      : maps(2 + (at.c.sizes[1] ? at.c.sizes[1] : 1)), units(at.c.sizes[0]),
        carry(at.c.sizes[2]), grow(at.c.sizes[3]), decay(at.c.rate),
        recurrent(at.c.weights[RECURRENT]), out(at.c.weights[OUT]),
        out_bias(at.c.weights[OUT_BIAS]), growths(room.take(units)), slopes(room.take(units)) {}

  // L of a map, for some units.
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
    return carry * load(s, n) + grow * softplus(growth);
  }

  void forward(const Turn &at) const {
    for (long row = at.first; row < at.last; row++) {
      const float *input = at.inputs.row(at.t, row);
      const float *r_row = at.state(0, row), *s_row = at.state(1, row);
      float *to_r = at.next(0, row), *to_s = at.next(1, row);
      float *output = at.outputs.row(at.t, row);
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
      circular(output + units, units, false);
    }
  }

  void backward(const Turn &at) const {
    for (long row = at.first; row < at.last; row++) {
      const float *input = at.inputs.row(at.t, row);
      const float *r_row = at.state(0, row), *s_row = at.state(1, row);
      const float *d_output = at.d_outputs.row(at.t, row);
      float *d_input = at.d_inputs.row(at.t, row);
      float *d_r_row = at.d_state(0).row(row), *d_s_row = at.d_state(1).row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec into_s = growth(input, unit, n, load(r_row + unit, n));
        store(growths + unit, into_s);
        store(slopes + unit, next_s(s_row + unit, into_s, n));
      }
      circular(slopes, units, true);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec r = load(r_row + unit, n);
        const vec gate = sigmoid(map(input, 0, unit, n, r));
        const vec u = hyperbolic_tangent(map(input, 1, unit, n, r));
        const vec d_r = load(d_r_row + unit, n) + load(d_output + unit, n);
        const vec d_cos = load(d_output + units + unit, n);
        const vec d_s = load(d_s_row + unit, n) - d_cos * load(slopes + unit);
        const vec d_growth = grow * d_s * sigmoid(load(growths + unit));
        vec d_old = d_r * decay * gate;
        auto give = [&](long m, vec d) __attribute__((always_inline)) {
          const long place = m * units + unit;
          store(d_input + place, d, n);
          gather(at, RECURRENT, place, d * r, n);
          d_old += d * load(recurrent + place, n);
        };
        give(0, d_r * decay * r * gate * (1.0f - gate));
        give(1, d_r * (1.0f - u * u));
        if (out) gather(at, OUT_BIAS, unit, d_growth, n);
        else give(2, d_growth);
        for (long m = 2; out && m < maps; m++) {
          const long place = (m - 2) * units + unit;
          const vec z = map(input, m, unit, n, r), d = d_growth * load(out + place, n);
          gather(at, OUT, place, d_growth * relu(z), n);
          give(m, z > 0.0f ? d : vec{});
        }
        store(d_r_row + unit, d_old, n);
        store(d_s_row + unit, carry * d_s, n);
      }
    }
  }

  void gather(const Turn &at, long weight, long place, vec d, long n) const {
    float *sum = at.sums.of[weight] + place;
    store(sum, load(sum, n) + d, n);
  }

  void weights(const Turn &, long) const {}
};
