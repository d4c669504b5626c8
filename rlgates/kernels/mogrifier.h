// The Mogrifier LSTM: rounds in which x and h gate each other, then the LSTM of `lstm.h`.

struct Mogrifier {
  // (C, I), (C, d), (C); (K, I, d), (K, I) of the rounds that change x; (K, d, I), (K, d) of those
  // that change h.
  enum { INPUT, STATE, BIAS, TO_X, TO_X_BIAS, TO_H, TO_H_BIAS };
  // The maps of the gate, u and o; the factors of x in each round, and x after each; the same of
  // h; c.
  enum { MAPS, X_FACTORS, X, H_FACTORS, H, CELLS };
  const long units, inputs, columns, rounds;
  const bool capped;
  const Gate gate;
  const GateRows values, gradients;
  float *const above;  // by how much the input gate was above its cap
  const Track d_maps, d_x_factors, d_h_factors, d_x, d_h;

  static constexpr bool REREADS = false;
  static long matrices(const Loop &c) { return 2 + c.sizes[2]; }
  static Factor matrix(const Loop &c, long i, bool back) {
    const long d = c.sizes[0], inputs = c.input_width, columns = c.sizes[1], k = (i - 2) / 2;
    if (i == 0) return matrix_of(c.weights[INPUT], columns, inputs, back);
    if (i == 1) return matrix_of(c.weights[STATE], columns, d, back);
    if (i % 2) return matrix_of(c.weights[TO_H] + k * d * inputs, d, inputs, back);
    return matrix_of(c.weights[TO_X] + k * d * inputs, inputs, d, back);
  }

  Mogrifier(const Turn &at, Room &room)
      : units(at.c.sizes[0]), inputs(at.c.input_width), columns(at.c.sizes[1]),
        rounds(at.c.sizes[2]), capped(at.c.sizes[3]),
        gate{at.c.sizes[4], at.c.sizes[5], units, at.c.sizes[6]}, values(room, units),
        gradients(room, units), above(room.take(units)), d_maps(at.of_slab(columns, room)),
        d_x_factors(at.of_slab(at.c.kept_width[X], room)),
        d_h_factors(at.of_slab(at.c.kept_width[H], room)),
        d_x(Track(room, inputs, at.first, at.last, 1)),
        d_h(Track(room, units, at.first, at.last, 1)) {}

  // x and h after k rounds that change them.
  Rows<float> x(const Turn &at, long k) const {
    return k ? at.kept[X].rows(at.t).from((k - 1) * inputs) : at.x.rows(at.t);
  }
  Rows<float> h(const Turn &at, long k) const {
    return k ? at.kept[H].rows(at.t).from((k - 1) * units) : at.parts[0].rows(at.t);
  }

  // What a round reads and changes, of x and h after some rounds.
  struct Round {
    Rows<float> reads, old, changed, factor;
    const float *bias;
    long width;
  };
  Round a_round(const Turn &at, long i) const {
    const long k = i / 2;
    if (i % 2)
      return {x(at, k + 1), h(at, k), h(at, k + 1),
              at.kept[H_FACTORS].rows(at.t).from(k * units),
              at.c.weights[TO_H_BIAS] + k * units, units};
    return {h(at, k), x(at, k), x(at, k + 1), at.kept[X_FACTORS].rows(at.t).from(k * inputs),
            at.c.weights[TO_X_BIAS] + k * inputs, inputs};
  }

  void gates(float *maps, bool kept) const {
    gate_forward(gate, maps, kept, values);
    for (long unit = 0; capped && unit < units; unit += LANES) {
      const vec i = load(values.input + unit), most = 1.0f - load(values.forget + unit);
      store(above + unit, i - most);
      store(values.input + unit, i > most ? most : i);
    }
  }

  void forward(const Turn &at) const {
    for (long i = 0; i < rounds; i++) {
      const Round r = a_round(at, i);
      at.product(2 + i, r.reads, r.factor, SET, r.bias);
      for (long row = at.first; row < at.last; row++) {
        float *factor = r.factor.row(row), *changed = r.changed.row(row);
        const float *old = r.old.row(row);
        for (long unit = 0, n = r.width; n > 0; unit += LANES, n -= LANES) {
          const vec f = 2.0f * sigmoid(load(factor + unit, n));
          store(factor + unit, f, n);
          store(changed + unit, f * load(old + unit, n), n);
        }
      }
    }
    const Rows<float> maps = at.kept[MAPS].rows(at.t);
    at.product(0, x(at, (rounds + 1) / 2), maps, SET, at.c.weights[BIAS]);
    at.product(1, h(at, rounds / 2), maps, ADD);
    for (long row = at.first; row < at.last; row++) {
      float *output = at.outputs.row(at.t, row), *cell = at.kept[CELLS].row(at.t, row);
      gates(maps.row(row), false);
      lstm_forward(gate, values, maps.row(row) + columns - 2 * units, at.state(1, row), cell,
                   output);
      memcpy(at.next(0, row), output, units * sizeof(float));
      memcpy(at.next(1, row), cell, units * sizeof(float));
    }
  }

  void backward(const Turn &at) const {
    const long left = columns - 2 * units;
    const Rows<float> d_z = d_maps.rows(at.t), maps = at.kept[MAPS].rows(at.t);
    const Rows<float> d_now_x = d_x.rows(0), d_now_h = d_h.rows(0);
    for (long row = at.first; row < at.last; row++) {
      gates(maps.row(row), true);
      lstm_backward(gate, values, maps.row(row) + left, at.state(1, row),
                    at.kept[CELLS].row(at.t, row), at.d_state(0).row(row),
                    at.d_outputs.row(at.t, row), gradients, d_z.row(row) + left,
                    at.d_state(1).row(row));
      for (long unit = 0; capped && unit < units; unit += LANES) {
        const vec d = load(gradients.input + unit);
        const vec cut = load(above + unit) > 0.0f ? d : vec{};
        store(gradients.input + unit, d - cut);
        store(gradients.forget + unit, load(gradients.forget + unit) - cut);
      }
      gate_backward(gate, maps.row(row), values, gradients, d_z.row(row));
    }
    at.product(0, d_z, d_now_x, SET);
    at.product(1, d_z, d_now_h, SET);
    for (long i = rounds - 1; i >= 0; i--) {
      const Round r = a_round(at, i);
      const Rows<float> d = i % 2 ? d_now_h : d_now_x, d_other = i % 2 ? d_now_x : d_now_h;
      const Track &d_factors = i % 2 ? d_h_factors : d_x_factors;
      const Rows<float> d_factor = d_factors.rows(at.t).from(i / 2 * r.width);
      for (long row = at.first; row < at.last; row++) {
        const float *factor = r.factor.row(row), *old = r.old.row(row);
        for (long unit = 0, n = r.width; n > 0; unit += LANES, n -= LANES) {
          const vec f = load(factor + unit, n), d_new = load(d.row(row) + unit, n);
          store(d_factor.row(row) + unit, d_new * load(old + unit, n) * f * (1.0f - 0.5f * f), n);
          store(d.row(row) + unit, d_new * f, n);
        }
      }
      at.product(2 + i, d_factor, d_other, ADD);
    }
    for (long row = at.first; row < at.last; row++) {
      memcpy(at.d_x.row(at.t, row), d_now_x.row(row), inputs * sizeof(float));
      memcpy(at.d_state(0).row(row), d_now_h.row(row), units * sizeof(float));
    }
  }

  void weights(const Turn &at, long steps) const {
    float *const *sums = at.sums.of;
    at.add(d_maps, 0, columns, x(at, (rounds + 1) / 2), inputs, steps, sums[INPUT], sums[BIAS]);
    at.add(d_maps, 0, columns, h(at, rounds / 2), units, steps, sums[STATE], nullptr);
    for (long i = 0; i < rounds; i++) {
      const long k = i / 2, matrix = k * inputs * units;
      const Rows<float> reads = a_round(at, i).reads;
      if (i % 2)
        at.add(d_h_factors, k * units, units, reads, inputs, steps, sums[TO_H] + matrix,
               sums[TO_H_BIAS] + k * units);
      else
        at.add(d_x_factors, k * inputs, inputs, reads, units, steps, sums[TO_X] + matrix,
               sums[TO_X_BIAS] + k * inputs);
    }
  }
};
