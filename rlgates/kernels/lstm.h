// The LSTM: maps of the gate, then u and o.

struct Lstm {
  Lstm(const Step &, Room &) {}

  void forward(const Step &at) {
    const long units = at.c.units, left = at.c.columns - 2 * units;
    const Rows<float> gates = at.gates.rows(at.t);
    at.product(at.plan.state, at.entering.rows(at.t), gates, ADD);
    for (long row = at.first; row < at.last; row++) {
      float *maps = gates.row(row), *u_map = maps + left, *o_map = u_map + units;
      float *cell = at.cells.row(at.t, row), *output = at.outputs.row(at.t, row);
      const float *before = at.c_before(row);
      gate_forward(at.gate, maps, false, at.values);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(at.values.forget + unit), i = load(at.values.input + unit);
        vec u = hyperbolic_tangent(load(u_map + unit, n)), o = sigmoid(load(o_map + unit, n));
        vec c = f * load(before + unit, n) + i * u;
        store(cell + unit, c, n);
        store(output + unit, o * hyperbolic_tangent(c), n);
        store(u_map + unit, u, n);
        store(o_map + unit, o, n);
      }
    }
  }

  void backward(const Step &at) {
    const long units = at.c.units, left = at.c.columns - 2 * units;
    const Rows<float> gates = at.gates.rows(at.t), d_gates = at.d_gates.rows(at.t);
    for (long row = at.first; row < at.last; row++) {
      float *maps = gates.row(row), *u_map = maps + left, *o_map = u_map + units;
      float *d_maps = d_gates.row(row), *d_u = d_maps + left, *d_o = d_u + units;
      float *d_h = at.d_h.row(row), *d_c = at.d_c.row(row);
      const float *cell = at.cells.row(at.t, row), *before = at.c_before(row);
      const float *d_output = at.d_output(row);
      gate_forward(at.gate, maps, true, at.values);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(at.values.forget + unit), i = load(at.values.input + unit);
        vec u = load(u_map + unit, n), o = load(o_map + unit, n);
        vec squashed = hyperbolic_tangent(load(cell + unit, n));
        vec dh = load(d_h + unit, n) + load(d_output + unit, n);
        vec d = load(d_c + unit, n) + dh * o * (1.0f - squashed * squashed);
        store(at.gradients.forget + unit, d * load(before + unit, n));
        store(at.gradients.input + unit, d * u);
        store(d_u + unit, d * i * (1.0f - u * u), n);
        store(d_o + unit, dh * squashed * o * (1.0f - o), n);
        store(d_c + unit, d * f, n);
      }
      gate_backward(at.gate, maps, at.values, at.gradients, d_maps);
    }
    if (at.carries()) at.product(at.plan.state, d_gates, at.d_h, SET);
  }
};
