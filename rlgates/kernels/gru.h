// The GRU: the reset map, those of the gate, then u.
//
// The reset gate acts on the product of h with the weights of u, or on h `before` this product,
// which is therefore made by itself. `extra` is what comes out of it, or else what goes in.

template <bool before> struct Gru {
  Gru(const Step &, Room &) {}

  void forward(const Step &at) {
    const long units = at.c.units, left = at.c.columns - units;
    const Rows<float> gates = at.gates.rows(at.t), entering = at.entering.rows(at.t);
    const Rows<float> extras = at.extra.rows(at.t);
    at.product(at.plan.state, entering, gates, ADD);
    if (!before) at.product(at.plan.last, entering, extras, SET, at.c.bias_hh + left);
    for (long row = at.first; row < at.last; row++) {
      float *reset = gates.row(row), *u_map = reset + left, *extra = extras.row(row);
      const float *h = entering.row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec r = sigmoid(load(reset + unit, n));
        store(reset + unit, r, n);
        if (before) store(extra + unit, r * load(h + unit, n), n);
        else store(u_map + unit, load(u_map + unit, n) + r * load(extra + unit, n), n);
      }
    }
    if (before) at.product(at.plan.last, extras, gates.from(left), ADD);
    for (long row = at.first; row < at.last; row++) {
      float *maps = gates.row(row) + units, *u_map = gates.row(row) + left;
      float *output = at.outputs.row(at.t, row);
      const float *h = entering.row(row);
      gate_forward(at.gate, maps, false, at.values);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(at.values.forget + unit), i = load(at.values.input + unit);
        vec u = hyperbolic_tangent(load(u_map + unit, n));
        store(u_map + unit, u, n);
        store(output + unit, f * load(h + unit, n) + i * u, n);
      }
    }
  }

  void backward(const Step &at) {
    const long units = at.c.units, left = at.c.columns - units;
    const Rows<float> gates = at.gates.rows(at.t), d_gates = at.d_gates.rows(at.t);
    const Rows<float> extras = at.extra.rows(at.t), d_extras = at.d_extra.rows(at.t);
    const Rows<float> entering = at.entering.rows(at.t);
    for (long row = at.first; row < at.last; row++) {
      float *reset = gates.row(row), *maps = reset + units, *u_map = reset + left;
      float *d_reset = d_gates.row(row), *d_maps = d_reset + units, *d_u = d_reset + left;
      float *extra = extras.row(row), *d_extra = d_extras.row(row), *d_h = at.d_h.row(row);
      const float *h = entering.row(row), *d_output = at.d_output(row);
      gate_forward(at.gate, maps, true, at.values);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(at.values.forget + unit), i = load(at.values.input + unit);
        vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
        vec d_z = d * i * (1.0f - u * u);
        store(at.gradients.forget + unit, d * load(h + unit, n));
        store(at.gradients.input + unit, d * u);
        store(d_u + unit, d_z, n);
        store(d_h + unit, d * f, n);
        if (before) continue;
        vec r = load(reset + unit, n);
        store(d_reset + unit, d_z * load(extra + unit, n) * r * (1.0f - r), n);
        store(d_extra + unit, d_z * r, n);
      }
      gate_backward(at.gate, maps, at.values, at.gradients, d_maps);
    }
    if (before) {
      at.product(at.plan.last, d_gates.from(left), d_extras, SET);
      for (long row = at.first; row < at.last; row++) {
        const float *reset = gates.row(row), *h = entering.row(row);
        float *d_reset = d_gates.row(row), *d_extra = d_extras.row(row), *d_h = at.d_h.row(row);
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
          vec r = load(reset + unit, n), d = load(d_extra + unit, n);
          store(d_reset + unit, d * load(h + unit, n) * r * (1.0f - r), n);
          store(d_h + unit, load(d_h + unit, n) + d * r, n);
        }
      }
    }
    if (!at.carries()) return;
    if (!before) at.product(at.plan.last, d_extras, at.d_h, ADD);
    at.product(at.plan.state, d_gates, at.d_h, ADD);
  }
};
