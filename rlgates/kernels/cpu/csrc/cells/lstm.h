// The LSTM: the maps of the gate, then u and o.

// One row of units, given its gates. The pre-activations of u and o become u and o in place.
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

// From the gradients of h (as the sum of d_h and d_output) and of c: those of the gates, of the
// pre-activations of u and o, and, in place, of c before the step.
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
  Lstm(const GatedContext &, Workspace &) {}

  void forward(const GatedContext &ctx) {
    const long left = ctx.c.columns - 2 * ctx.c.units;
    const Rows<float> gates = ctx.gates.rows(ctx.t);
    ctx.product(ctx.plan.state, ctx.h_prev.rows(ctx.t), gates, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *maps = gates.row(row);
      gate_forward(ctx.gate, maps, false, ctx.values);
      lstm_forward(ctx.gate, ctx.values, maps + left, ctx.c_before(row), ctx.cells.row(ctx.t, row),
                   ctx.outputs.row(ctx.t, row));
    }
  }

  void backward(const GatedContext &ctx) {
    const long left = ctx.c.columns - 2 * ctx.c.units;
    const Rows<float> gates = ctx.gates.rows(ctx.t), d_gates = ctx.d_gates.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *maps = gates.row(row), *d_maps = d_gates.row(row);
      gate_forward(ctx.gate, maps, true, ctx.values);
      lstm_backward(ctx.gate, ctx.values, maps + left, ctx.c_before(row), ctx.cells.row(ctx.t, row),
                    ctx.d_h.row(row), ctx.d_output(row), ctx.gradients, d_maps + left,
                    ctx.d_c.row(row));
      gate_backward(ctx.gate, maps, ctx.values, ctx.gradients, d_maps);
    }
    if (ctx.needs_d_state()) ctx.product(ctx.plan.state, d_gates, ctx.d_h, SET);
  }
};
