// The GRU: the reset map, those of the gate, then u.
//
// The reset gate acts on the product of h with the weights of u, or on h `before` this product,
// which is therefore a product of its own. `extra` is its result, or with `before` its input.

template <bool before> struct Gru : StackedCell<true, !before> {
  using Base = StackedCell<true, !before>;
  using Base::gate, Base::gradients, Base::joint, Base::units, Base::values;
  const SequenceView d_extra;

  Gru(const Context &ctx, Workspace &workspace)
      : Base(ctx, workspace), d_extra(ctx.slab_view(units, workspace)) {}

  void forward(const Context &ctx) const {
    const Rows<float> maps = ctx.inputs.rows(ctx.t), extras = ctx.saved[Base::EXTRA].rows(ctx.t);
    ctx.product(0, ctx.part(0), maps, ADD);
    if (!before) ctx.product(1, ctx.part(0), extras, SET, ctx.c.weights[Base::STATE_BIAS] + joint);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *reset = maps.row(row), *u_map = reset + joint, *extra = extras.row(row);
      const float *h = ctx.state(0, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec r = sigmoid(load(reset + unit, n));
        store(reset + unit, r, n);
        if (before) store(extra + unit, r * load(h + unit, n), n);
        else store(u_map + unit, load(u_map + unit, n) + r * load(extra + unit, n), n);
      }
    }
    if (before) ctx.product(1, extras, maps.from(joint), ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *u_map = maps.row(row) + joint;
      gate_forward(gate, maps.row(row) + units, false, values);
      ctx.drop_candidates(row, values.input, units);
      leaky_forward(units, values.forget, values.input, u_map, ctx.state(0, row),
                    ctx.next(0, row), ctx.outputs.row(ctx.t, row));
    }
  }

  void backward(const Context &ctx) const {
    const Rows<float> gates = ctx.saved[Base::MAPS].rows(ctx.t), d_gates = ctx.d_inputs.rows(ctx.t);
    const Rows<float> extras = ctx.saved[Base::EXTRA].rows(ctx.t), d_extras = d_extra.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *reset = gates.row(row), *maps = reset + units, *u_map = reset + joint;
      const float *extra = extras.row(row), *h = ctx.state(0, row);
      const float *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_reset = d_gates.row(row), *d_maps = d_reset + units, *d_u = d_reset + joint;
      float *d_extra = d_extras.row(row), *d_h = ctx.d_state(0).row(row);
      gate_forward(gate, (float *)maps, true, values);
      ctx.drop_candidates(row, values.input, units);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(values.forget + unit), i = load(values.input + unit);
        vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
        vec d_z = d * i * (1.0f - u * u);
        store(gradients.forget + unit, d * load(h + unit, n));
        store(gradients.input + unit, d * u);
        store(d_u + unit, d_z, n);
        store(d_h + unit, d * f, n);
        if (before) continue;
        vec r = load(reset + unit, n);
        store(d_reset + unit, d_z * load(extra + unit, n) * r * (1.0f - r), n);
        store(d_extra + unit, d_z * r, n);
      }
      ctx.drop_candidates(row, gradients.input, units);
      gate_backward(gate, maps, values, gradients, d_maps);
    }
    if (before) {
      ctx.product(1, d_gates.from(joint), d_extras, SET);
      for (long row = ctx.first; row < ctx.last; row++) {
        const float *reset = gates.row(row), *h = ctx.state(0, row);
        float *d_reset = d_gates.row(row), *d_extra = d_extras.row(row);
        float *d_h = ctx.d_state(0).row(row);
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
          vec r = load(reset + unit, n), d = load(d_extra + unit, n);
          store(d_reset + unit, d * load(h + unit, n) * r * (1.0f - r), n);
          store(d_h + unit, load(d_h + unit, n) + d * r, n);
        }
      }
    }
    if (!ctx.needs_d_state()) return;
    if (!before) ctx.product(1, d_extras, ctx.d_state(0), ADD);
    ctx.product(0, d_gates, ctx.d_state(0), ADD);
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    float *d_last = d_weights[Base::STATE] + joint * units;
    Base::add_joint_weights(ctx, steps);
    if (before)
      ctx.add(ctx.d_inputs, joint, units, ctx.saved[Base::EXTRA].rows(ctx.t), units, steps, d_last,
              nullptr);
    else
      ctx.add(d_extra, 0, units, ctx.part(0), units, steps, d_last,
              d_weights[Base::STATE_BIAS] + joint);
  }
};
