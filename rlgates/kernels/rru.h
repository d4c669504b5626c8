// The RRU: a layer of g units that may be normalized, layers above it, and what is made of the last
// of them: the candidate c (d), and beside it the output o (p).

struct Rru {
  // (g, I), (g); (g, d); (K, g, g), (K, g) of the layers above the first; (d + p, g), (d + p); the
  // decay of h and the amount Z of the candidate, (d).
  enum { INPUT, BIAS, STATE, UPPER, UPPER_BIAS, OUT, OUT_BIAS, DECAY, AMOUNT };
  enum { NORMAL, SCALE, LAYERS, OUTS };  // (g), (1), ((K + 1) g), (d + p)
  const long units, inner, upper, outs;
  const bool normalize, relu_candidate, relu_output;
  const float dropout;
  const Track d_layers, d_outs;  // of the sums before each ReLU

  static constexpr bool REREADS = false;
  static long matrices(const Loop &c) { return 2 + c.sizes[2]; }
  static Factor matrix(const Loop &c, long i, bool back) {
    const long d = c.sizes[0], g = c.sizes[1];
    if (i == 0) return matrix_of(c.weights[STATE], g, d, back);
    if (i == 1) return matrix_of(c.weights[OUT], d + c.sizes[3], g, back);
    return matrix_of(c.weights[UPPER] + (i - 2) * g * g, g, g, back);
  }

  Rru(const Turn &at, Room &room)
      : units(at.c.sizes[0]), inner(at.c.sizes[1]), upper(at.c.sizes[2]),
        outs(units + at.c.sizes[3]), normalize(at.c.sizes[4]), relu_candidate(at.c.sizes[5]),
        relu_output(at.c.sizes[6]), dropout(at.c.rate),
        d_layers(at.of_slab(inner * upper, room)), d_outs(at.of_slab(outs, room)) {}

  Rows<float> layer(const Turn &at, long i) const {
    return at.kept[LAYERS].rows(at.t).from(i * inner);
  }
  // The sum before the first ReLU has the gradient of the input.
  const Track &d_layer(const Turn &at, long i) const { return i ? d_layers : at.d_inputs; }
  Rows<float> d_rows(const Turn &at, long i) const {
    return d_layer(at, i).rows(at.t).from(i ? (i - 1) * inner : 0);
  }

  void forward(const Turn &at) const {
    const Loop &c = at.c;
    const Rows<float> normal = at.kept[NORMAL].rows(at.t);
    at.product(0, at.parts[0].rows(at.t), normal, SET);
    for (long row = at.first; row < at.last; row++) {
      const float *input = at.inputs.row(at.t, row);
      float *z = normal.row(row), *j = layer(at, 0).row(row), scale = 1.0f;
      vec squares = {};
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES) {
        const vec sum = load(z + i, n) + load(input + i, n);
        squares += sum * sum;
        store(z + i, sum, n);
      }
      if (normalize) scale = 1.0f / __builtin_sqrtf(total(squares) / inner + 1e-6f);
      *at.kept[SCALE].row(at.t, row) = scale;
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES) {
        const vec y = load(z + i, n) * scale;
        store(z + i, y, n);
        store(j + i, relu(y), n);
      }
    }
    for (long k = 0; k < upper; k++) {
      const Rows<float> above = layer(at, k + 1);
      at.product(2 + k, layer(at, k), above, SET, c.weights[UPPER_BIAS] + k * inner);
      for (long row = at.first; row < at.last; row++)
        for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES)
          store(above.row(row) + i, relu(load(above.row(row) + i, n)), n);
    }
    const Rows<float> top = layer(at, upper), out = at.kept[OUTS].rows(at.t);
    for (long row = at.first; c.noise && row < at.last; row++)
      drop(at.noise.row(at.t, row), top.row(row));
    at.product(1, top, out, SET, c.weights[OUT_BIAS]);
    for (long row = at.first; row < at.last; row++) {
      const float *h = at.state(0, row);
      float *candidate = out.row(row), *o = candidate + units, *next = at.next(0, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec u = load(candidate + unit, n);
        if (relu_candidate) store(candidate + unit, u = relu(u), n);
        const vec h_kept = load(c.weights[DECAY] + unit, n) * load(h + unit, n);
        store(next + unit, h_kept + load(c.weights[AMOUNT] + unit, n) * u, n);
      }
      for (long i = 0, n = relu_output ? outs - units : 0; n > 0; i += LANES, n -= LANES)
        store(o + i, relu(load(o + i, n)), n);
      memcpy(at.outputs.row(at.t, row), o, (outs - units) * sizeof(float));
    }
  }

  // Units are dropped, or their gradients.
  void drop(const float *noise, float *row) const {
    for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES) {
      const vec scaled = load(row + i, n) * (1.0f / (1.0f - dropout));
      store(row + i, load(noise + i, n) < dropout ? vec{} : scaled, n);
    }
  }

  // The gradients of some ReLUs, which are zero where their values are.
  static void block(float *d, const float *values, long count) {
    for (long i = 0, n = count; n > 0; i += LANES, n -= LANES)
      store(d + i, load(values + i, n) > 0.0f ? load(d + i, n) : vec{}, n);
  }

  void backward(const Turn &at) const {
    const Loop &c = at.c;
    const Rows<float> d_out = d_outs.rows(at.t), out = at.kept[OUTS].rows(at.t);
    float *d_decay = at.sums.of[DECAY], *d_amount = at.sums.of[AMOUNT];
    for (long row = at.first; row < at.last; row++) {
      const float *h = at.state(0, row), *candidate = out.row(row);
      float *d_h = at.d_state(0).row(row), *d_u = d_out.row(row), *d_o = d_u + units;
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec d = load(d_h + unit, n), u = load(candidate + unit, n);
        store(d_u + unit, d * load(c.weights[AMOUNT] + unit, n), n);
        store(d_decay + unit, load(d_decay + unit, n) + d * load(h + unit, n), n);
        store(d_amount + unit, load(d_amount + unit, n) + d * u, n);
        store(d_h + unit, d * load(c.weights[DECAY] + unit, n), n);
      }
      memcpy(d_o, at.d_outputs.row(at.t, row), (outs - units) * sizeof(float));
      if (relu_candidate) block(d_u, candidate, units);
      if (relu_output) block(d_o, candidate + units, outs - units);
    }
    for (long k = upper; k >= 0; k--) {
      const Rows<float> d = d_rows(at, k), values = layer(at, k);
      if (k == upper) at.product(1, d_out, d, SET);
      else at.product(2 + k, d_rows(at, k + 1), d, SET);
      for (long row = at.first; row < at.last; row++) {
        if (k == upper && c.noise) drop(at.noise.row(at.t, row), d.row(row));
        block(d.row(row), values.row(row), inner);
      }
    }
    for (long row = at.first; normalize && row < at.last; row++) {
      const float *normal = at.kept[NORMAL].row(at.t, row);
      const float scale = *at.kept[SCALE].row(at.t, row);
      float *d = at.d_inputs.row(at.t, row);
      vec along = {};  // a normalized row does not feel what makes it longer
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES)
        along += load(d + i, n) * load(normal + i, n);
      const float mean = total(along) / inner;
      for (long i = 0, n = inner; n > 0; i += LANES, n -= LANES)
        store(d + i, scale * (load(d + i, n) - mean * load(normal + i, n)), n);
    }
    if (at.carries()) at.product(0, at.d_inputs.rows(at.t), at.d_state(0), ADD);
  }

  void weights(const Turn &at, long steps) const {
    float *const *sums = at.sums.of;
    at.add(at.d_inputs, 0, inner, at.parts[0].rows(at.t), units, steps, sums[STATE], nullptr);
    for (long k = 0; k < upper; k++)
      at.add(d_layers, k * inner, inner, layer(at, k), inner, steps,
             sums[UPPER] + k * inner * inner, sums[UPPER_BIAS] + k * inner);
    at.add(d_outs, 0, outs, layer(at, upper), inner, steps, sums[OUT], sums[OUT_BIAS]);
  }
};
