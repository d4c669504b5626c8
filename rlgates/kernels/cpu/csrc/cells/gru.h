// The GRU: the reset map, those of the gate, then u.
//
// The reset gate acts on the product of h with the weights of u, or on h `before` this product,
// which is therefore a product of its own. `extra` is its result, or with `before` its input.

template <bool before> struct Gru {
  Gru(const GatedContext &, Workspace &) {}

  void forward(const GatedContext &ctx) {
    const long units = ctx.c.units, left = ctx.c.columns - units;
    const Rows<float> gates = ctx.gates.rows(ctx.t), h_prev = ctx.h_prev.rows(ctx.t);
    const Rows<float> extras = ctx.extra.rows(ctx.t);
    ctx.product(ctx.plan.state, h_prev, gates, ADD);
    if (!before) ctx.product(ctx.plan.last, h_prev, extras, SET, ctx.c.bias_hh + left);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *reset = gates.row(row), *u_map = reset + left, *extra = extras.row(row);
      const float *h = h_prev.row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec r = sigmoid(load(reset + unit, n));
        store(reset + unit, r, n);
        if (before) store(extra + unit, r * load(h + unit, n), n);
        else store(u_map + unit, load(u_map + unit, n) + r * load(extra + unit, n), n);
      }
    }
    if (before) ctx.product(ctx.plan.last, extras, gates.from(left), ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *maps = gates.row(row) + units, *u_map = gates.row(row) + left;
      float *output = ctx.outputs.row(ctx.t, row);
      const float *h = h_prev.row(row);
      gate_forward(ctx.gate, maps, false, ctx.values);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(ctx.values.forget + unit), i = load(ctx.values.input + unit);
        vec u = hyperbolic_tangent(load(u_map + unit, n));
        store(u_map + unit, u, n);
        store(output + unit, f * load(h + unit, n) + i * u, n);
      }
    }
  }

  void backward(const GatedContext &ctx) {
    const long units = ctx.c.units, left = ctx.c.columns - units;
    const Rows<float> gates = ctx.gates.rows(ctx.t), d_gates = ctx.d_gates.rows(ctx.t);
    const Rows<float> extras = ctx.extra.rows(ctx.t), d_extras = ctx.d_extra.rows(ctx.t);
    const Rows<float> h_prev = ctx.h_prev.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *reset = gates.row(row), *maps = reset + units, *u_map = reset + left;
      float *d_reset = d_gates.row(row), *d_maps = d_reset + units, *d_u = d_reset + left;
      float *extra = extras.row(row), *d_extra = d_extras.row(row), *d_h = ctx.d_h.row(row);
      const float *h = h_prev.row(row), *d_output = ctx.d_output(row);
      gate_forward(ctx.gate, maps, true, ctx.values);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(ctx.values.forget + unit), i = load(ctx.values.input + unit);
        vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
        vec d_z = d * i * (1.0f - u * u);
        store(ctx.gradients.forget + unit, d * load(h + unit, n));
        store(ctx.gradients.input + unit, d * u);
        store(d_u + unit, d_z, n);
        store(d_h + unit, d * f, n);
        if (before) continue;
        vec r = load(reset + unit, n);
        store(d_reset + unit, d_z * load(extra + unit, n) * r * (1.0f - r), n);
        store(d_extra + unit, d_z * r, n);
      }
      gate_backward(ctx.gate, maps, ctx.values, ctx.gradients, d_maps);
    }
    if (before) {
      ctx.product(ctx.plan.last, d_gates.from(left), d_extras, SET);
      for (long row = ctx.first; row < ctx.last; row++) {
        const float *reset = gates.row(row), *h = h_prev.row(row);
        float *d_reset = d_gates.row(row), *d_extra = d_extras.row(row), *d_h = ctx.d_h.row(row);
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
          vec r = load(reset + unit, n), d = load(d_extra + unit, n);
          store(d_reset + unit, d * load(h + unit, n) * r * (1.0f - r), n);
          store(d_h + unit, load(d_h + unit, n) + d * r, n);
        }
      }
    }
    if (!ctx.needs_d_state()) return;
    if (!before) ctx.product(ctx.plan.last, d_extras, ctx.d_h, ADD);
    ctx.product(ctx.plan.state, d_gates, ctx.d_h, ADD);
  }
};
