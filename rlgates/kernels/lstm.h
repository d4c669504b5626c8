// The LSTM: maps of the gate, then u and o.

// A row of units, whose gates are known. In: L_u and L_o; out: u and o in their place.
static void lstm_forward(const Gate &gate, const GateRows &values, float *u_map,
                         const float *before, float *cell, float *output) {
  float *o_map = u_map + gate.units;
  for (long unit = 0, n = gate.units; n > 0; unit += LANES, n -= LANES) {
    vec f = load(values.forget + unit), i = load(values.input + unit);
    vec u = hyperbolic_tangent(load(u_map + unit, n)), o = sigmoid(load(o_map + unit, n));
    vec c = f * load(before + unit, n) + i * u;
    store(cell + unit, c, n);
    store(output + unit, o * hyperbolic_tangent(c), n);
    store(u_map + unit, u, n);
    store(o_map + unit, o, n);
  }
}

// In: the gradients of h, in two parts, and of c; out: those of the gates, of L_u and L_o, and of
// c before the step.
static void lstm_backward(const Gate &gate, const GateRows &values, const float *u_map,
                          const float *before, const float *cell, const float *d_h,
                          const float *d_output, const GateRows &gradients, float *d_u,
                          float *d_c) {
  const float *o_map = u_map + gate.units;
  float *d_o = d_u + gate.units;
  for (long unit = 0, n = gate.units; n > 0; unit += LANES, n -= LANES) {
    vec f = load(values.forget + unit), i = load(values.input + unit);
    vec u = load(u_map + unit, n), o = load(o_map + unit, n);
    vec squashed = hyperbolic_tangent(load(cell + unit, n));
    vec dh = load(d_h + unit, n) + load(d_output + unit, n);
    vec d = load(d_c + unit, n) + dh * o * (1.0f - squashed * squashed);
    store(gradients.forget + unit, d * load(before + unit, n));
    store(gradients.input + unit, d * u);
    store(d_u + unit, d * i * (1.0f - u * u), n);
    store(d_o + unit, dh * squashed * o * (1.0f - o), n);
    store(d_c + unit, d * f, n);
  }
}

struct Lstm {
  Lstm(const Step &, Room &) {}

  void forward(const Step &at) {
    const long left = at.c.columns - 2 * at.c.units;
    const Rows<float> gates = at.gates.rows(at.t);
    at.product(at.plan.state, at.entering.rows(at.t), gates, ADD);
    for (long row = at.first; row < at.last; row++) {
      float *maps = gates.row(row);
      gate_forward(at.gate, maps, false, at.values);
      lstm_forward(at.gate, at.values, maps + left, at.c_before(row), at.cells.row(at.t, row),
                   at.outputs.row(at.t, row));
    }
  }

  void backward(const Step &at) {
    const long left = at.c.columns - 2 * at.c.units;
    const Rows<float> gates = at.gates.rows(at.t), d_gates = at.d_gates.rows(at.t);
    for (long row = at.first; row < at.last; row++) {
      float *maps = gates.row(row), *d_maps = d_gates.row(row);
      gate_forward(at.gate, maps, true, at.values);
      lstm_backward(at.gate, at.values, maps + left, at.c_before(row), at.cells.row(at.t, row),
                    at.d_h.row(row), at.d_output(row), at.gradients, d_maps + left,
                    at.d_c.row(row));
      gate_backward(at.gate, maps, at.values, at.gradients, d_maps);
    }
    if (at.carries()) at.product(at.plan.state, d_gates, at.d_h, SET);
  }
};
