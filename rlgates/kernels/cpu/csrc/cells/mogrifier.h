// The Mogrifier LSTM: rounds in which x and h gate each other, then the LSTM of `lstm.h`.

struct Mogrifier : CellDefaults {
  // Weights: (C, I), (C, d), (C); (K, I, d), (K, I) for the rounds that change x; (K, d, I), (K, d)
  // for those that change h.
  enum { INPUT, STATE, BIAS, TO_X, TO_X_BIAS, TO_H, TO_H_BIAS };
  // Saved: the maps of the gate, u and o; the factors of x in each round, and x after it; the same
  // for h.
  enum { MAPS, X_FACTORS, X, H_FACTORS, H };
  const long units, inputs, columns, rounds;
  const bool capped;
  const Gate gate;
  const GateRows values, gradients;
  float *const above;  // how far the input gate exceeds its cap
  const SequenceView d_maps, d_x_factors, d_h_factors, d_x, d_h;

  static long matrix_count(const LayerArgs &c) { return 2 + c.sizes[1]; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long d = c.sizes[0], inputs = c.input_size, columns = c.saved_width[MAPS], k = (i - 2) / 2;
    if (i == 0) return weight_matrix(c.weights[INPUT], columns, inputs, back);
    if (i == 1) return weight_matrix(c.weights[STATE], columns, d, back);
    if (i % 2) return weight_matrix(c.weights[TO_H] + k * d * inputs, d, inputs, back);
    return weight_matrix(c.weights[TO_X] + k * d * inputs, inputs, d, back);
  }

  Mogrifier(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), inputs(ctx.c.input_size), columns(ctx.c.saved_width[MAPS]),
        rounds(ctx.c.sizes[1]), capped(ctx.c.sizes[2]),
        gate(ctx.c, units), values(workspace, units),
        gradients(workspace, units), above(workspace.take(units)),
        d_maps(ctx.slab_view(columns, workspace)),
        d_x_factors(ctx.slab_view(ctx.c.saved_width[X], workspace)),
        d_h_factors(ctx.slab_view(ctx.c.saved_width[H], workspace)),
        d_x(SequenceView(workspace, inputs, ctx.first, ctx.last, 1)),
        d_h(SequenceView(workspace, units, ctx.first, ctx.last, 1)) {}

  // x and h after k rounds that change them.
  Rows<float> x(const Context &ctx, long k) const {
    return k ? ctx.saved[X].rows(ctx.t).from((k - 1) * inputs) : ctx.x.rows(ctx.t);
  }
  Rows<float> h(const Context &ctx, long k) const {
    return k ? ctx.saved[H].rows(ctx.t).from((k - 1) * units) : ctx.part(0);
  }

  // What round i reads, what it scales and into what, and by which factor.
  struct Round {
    Rows<float> reads, old, changed, factor;
    const float *bias;
    long width;
  };
  Round round_at(const Context &ctx, long i) const {
    const long k = i / 2;
    if (i % 2)
      return {x(ctx, k + 1), h(ctx, k), h(ctx, k + 1),
              ctx.saved[H_FACTORS].rows(ctx.t).from(k * units),
              ctx.c.weights[TO_H_BIAS] + k * units, units};
    return {h(ctx, k), x(ctx, k), x(ctx, k + 1), ctx.saved[X_FACTORS].rows(ctx.t).from(k * inputs),
            ctx.c.weights[TO_X_BIAS] + k * inputs, inputs};
  }

  void gates(const Context &ctx, long row, float *maps, bool saved) const {
    gate_forward(gate, maps, saved, values);
    for (long unit = 0; capped && unit < units; unit += LANES) {
      const vec i = load(values.input + unit), most = 1.0f - load(values.forget + unit);
      store(above + unit, i - most);
      const vec least = most < i ? most : i;
      store(values.input + unit, most == most ? least : most);
    }
    ctx.drop_candidates(row, values.input, units);
  }

  void forward(const Context &ctx) const {
    for (long i = 0; i < rounds; i++) {
      const Round r = round_at(ctx, i);
      ctx.product(2 + i, r.reads, r.factor, SET, r.bias);
      for (long row = ctx.first; row < ctx.last; row++) {
        float *factor = r.factor.row(row), *changed = r.changed.row(row);
        const float *old = r.old.row(row);
        for (long unit = 0, n = r.width; n > 0; unit += LANES, n -= LANES) {
          const vec f = 2.0f * sigmoid(load(factor + unit, n));
          store(factor + unit, f, n);
          store(changed + unit, f * load(old + unit, n), n);
        }
      }
    }
    const Rows<float> maps = ctx.saved[MAPS].rows(ctx.t);
    ctx.product(0, x(ctx, (rounds + 1) / 2), maps, SET, ctx.c.weights[BIAS]);
    ctx.product(1, h(ctx, rounds / 2), maps, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      gates(ctx, row, maps.row(row), false);
      lstm_forward(gate, values, maps.row(row) + columns - 2 * units, ctx.state(1, row),
                   ctx.next(1, row), ctx.next(0, row), ctx.outputs.row(ctx.t, row));
    }
  }

  void backward(const Context &ctx) const {
    const long left = columns - 2 * units;
    const Rows<float> d_z = d_maps.rows(ctx.t), maps = ctx.saved[MAPS].rows(ctx.t);
    const Rows<float> d_now_x = d_x.rows(0), d_now_h = d_h.rows(0);
    for (long row = ctx.first; row < ctx.last; row++) {
      gates(ctx, row, maps.row(row), true);
      lstm_backward(gate, values, maps.row(row) + left, ctx.state(1, row), ctx.d_state(0).row(row),
                    ctx.d_outputs.row(ctx.t, row), gradients, d_z.row(row) + left,
                    ctx.d_state(1).row(row));
      ctx.drop_candidates(row, gradients.input, units);
      for (long unit = 0; capped && unit < units; unit += LANES) {
        const vec excess = load(above + unit), whole = load(gradients.input + unit);
        const vec d = excess == 0.0f ? 0.5f * whole : whole;  // equal ones share it
        store(gradients.input + unit, excess > 0.0f ? vec{} : d);
        const vec d_cap = excess < 0.0f ? vec{} : d;
        store(gradients.forget + unit, load(gradients.forget + unit) - d_cap);
      }
      gate_backward(gate, maps.row(row), values, gradients, d_z.row(row));
    }
    ctx.product(0, d_z, d_now_x, SET);
    ctx.product(1, d_z, d_now_h, SET);
    for (long i = rounds - 1; i >= 0; i--) {
      const Round r = round_at(ctx, i);
      const Rows<float> d = i % 2 ? d_now_h : d_now_x, d_other = i % 2 ? d_now_x : d_now_h;
      const SequenceView &d_factors = i % 2 ? d_h_factors : d_x_factors;
      const Rows<float> d_factor = d_factors.rows(ctx.t).from(i / 2 * r.width);
      for (long row = ctx.first; row < ctx.last; row++) {
        const float *factor = r.factor.row(row), *old = r.old.row(row);
        for (long unit = 0, n = r.width; n > 0; unit += LANES, n -= LANES) {
          const vec f = load(factor + unit, n), d_new = load(d.row(row) + unit, n);
          store(d_factor.row(row) + unit, d_new * load(old + unit, n) * f * (1.0f - 0.5f * f), n);
          store(d.row(row) + unit, d_new * f, n);
        }
      }
      ctx.product(2 + i, d_factor, d_other, ADD);
    }
    for (long row = ctx.first; row < ctx.last; row++) {
      memcpy(ctx.d_x.row(ctx.t, row), d_now_x.row(row), inputs * sizeof(float));
      memcpy(ctx.d_state(0).row(row), d_now_h.row(row), units * sizeof(float));
    }
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    ctx.add(d_maps, 0, columns, x(ctx, (rounds + 1) / 2), inputs, steps, d_weights[INPUT],
            d_weights[BIAS]);
    ctx.add(d_maps, 0, columns, h(ctx, rounds / 2), units, steps, d_weights[STATE], nullptr);
    for (long i = 0; i < rounds; i++) {
      const long k = i / 2, matrix = k * inputs * units;
      const Rows<float> reads = round_at(ctx, i).reads;
      if (i % 2)
        ctx.add(d_h_factors, k * units, units, reads, inputs, steps, d_weights[TO_H] + matrix,
               d_weights[TO_H_BIAS] + k * units);
      else
        ctx.add(d_x_factors, k * inputs, inputs, reads, units, steps, d_weights[TO_X] + matrix,
               d_weights[TO_X_BIAS] + k * inputs);
    }
  }
};
