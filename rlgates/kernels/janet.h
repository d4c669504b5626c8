// JANET: the maps of the gate, then u.
//
// The input gate is made from the forget gate's pre-activation lowered by beta. So there are two
// gates, of the same maps but for the last one, and the maps are kept as they were.

struct Janet {
  float *maps, *lowered, *d_lowered;
  const GateRows values, gradients;  // of the lowered gate; those of the other are in the step

  Janet(const Step &at, Room &room)
      : maps(room.take(at.c.columns)), lowered(room.take(at.c.columns)),
        d_lowered(room.take(at.c.columns)), values(room, at.c.units),
        gradients(room, at.c.units) {}

  void both_gates(const Step &at, const float *row) {
    const long columns = at.c.columns - at.c.units;
    memcpy(maps, row, columns * sizeof(float));
    memcpy(lowered, row, columns * sizeof(float));
    for (long column = columns - at.c.units; column < columns; column++)
      lowered[column] -= (float)at.c.beta;
    gate_forward(at.gate, maps, false, at.values);
    gate_forward(at.gate, lowered, false, values);
  }

  void forward(const Step &at) {
    const long units = at.c.units, left = at.c.columns - units;
    const Rows<float> gates = at.gates.rows(at.t), entering = at.entering.rows(at.t);
    at.product(at.plan.state, entering, gates, ADD);
    for (long row = at.first; row < at.last; row++) {
      float *u_map = gates.row(row) + left, *output = at.outputs.row(at.t, row);
      const float *h = entering.row(row);
      both_gates(at, gates.row(row));
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(at.values.forget + unit), i = load(values.input + unit);
        vec u = hyperbolic_tangent(load(u_map + unit, n));
        store(u_map + unit, u, n);
        store(output + unit, f * load(h + unit, n) + i * u, n);
      }
    }
  }

  void backward(const Step &at) {
    const long units = at.c.units, left = at.c.columns - units;
    const Rows<float> gates = at.gates.rows(at.t), d_gates = at.d_gates.rows(at.t);
    const Rows<float> entering = at.entering.rows(at.t);
    for (long row = at.first; row < at.last; row++) {
      const float *u_map = gates.row(row) + left, *h = entering.row(row);
      const float *d_output = at.d_output(row);
      float *d_maps = d_gates.row(row), *d_u = d_maps + left, *d_h = at.d_h.row(row);
      both_gates(at, gates.row(row));
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(at.values.forget + unit), i = load(values.input + unit);
        vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
        store(at.gradients.forget + unit, d * load(h + unit, n));
        store(at.gradients.input + unit, vec{});
        store(gradients.forget + unit, vec{});
        store(gradients.input + unit, d * u);
        store(d_u + unit, d * i * (1.0f - u * u), n);
        store(d_h + unit, d * f, n);
      }
      gate_backward(at.gate, maps, at.values, at.gradients, d_maps);
      gate_backward(at.gate, lowered, values, gradients, d_lowered);
      for (long column = 0; column < left; column++) d_maps[column] += d_lowered[column];
    }
    if (at.carries()) at.product(at.plan.state, d_gates, at.d_h, ADD);
  }
};
