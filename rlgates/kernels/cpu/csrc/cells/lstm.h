// The LSTM: the maps of the gate, then u and o.

// One row of units, given its gates. The pre-activations of u and o become u and o in place; h is
// written to the state and to the output.
static void lstm_forward(const Gate &gate, const GateRows &values, float *u_map,
                         const float *before, float *cell, float *h, float *output) {
  float *o_map = u_map + gate.units;
  for (long unit = 0, n = gate.units; n > 0; unit += LANES, n -= LANES) {
    vec f = load(values.forget + unit), i = load(values.input + unit);
    vec u = hyperbolic_tangent(load(u_map + unit, n)), o = sigmoid(load(o_map + unit, n));
    vec c = f * load(before + unit, n) + i * u;
    vec out = o * hyperbolic_tangent(c);
    store(cell + unit, c, n);
    store(h + unit, out, n);
    store(output + unit, out, n);
    store(u_map + unit, u, n);
    store(o_map + unit, o, n);
  }
}

// From the gradients of h (as the sum of d_h and d_output) and of c: those of the gates, of the
// pre-activations of u and o, and, in place, of c before the step.
static void lstm_backward(const Gate &gate, const GateRows &values, const float *u_map,
                          const float *before, const float *d_h, const float *d_output,
                          const GateRows &gradients, float *d_u, float *d_c) {
  const float *o_map = u_map + gate.units;
  float *d_o = d_u + gate.units;
  for (long unit = 0, n = gate.units; n > 0; unit += LANES, n -= LANES) {
    vec f = load(values.forget + unit), i = load(values.input + unit);
    vec u = load(u_map + unit, n), o = load(o_map + unit, n);
    // Computed again: at an episode start and with zoneout the state holds another value.
    vec squashed = hyperbolic_tangent(f * load(before + unit, n) + i * u);
    vec dh = load(d_h + unit, n) + load(d_output + unit, n);
    vec d = load(d_c + unit, n) + dh * o * (1.0f - squashed * squashed);
    store(gradients.forget + unit, d * load(before + unit, n));
    store(gradients.input + unit, d * u);
    store(d_u + unit, d * i * (1.0f - u * u), n);
    store(d_o + unit, dh * squashed * o * (1.0f - o), n);
    store(d_c + unit, d * f, n);
  }
}

struct Lstm : StackedCell<false> {
  using StackedCell::StackedCell;

  void forward(const Context &ctx) const {
    const Rows<float> maps = ctx.inputs.rows(ctx.t);
    ctx.product(0, ctx.part(0), maps, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      gate_forward(gate, maps.row(row), false, values);
      ctx.drop_candidates(row, values.input, units);
      lstm_forward(gate, values, maps.row(row) + columns - 2 * units, ctx.state(1, row),
                   ctx.next(1, row), ctx.next(0, row), ctx.outputs.row(ctx.t, row));
    }
  }

  void backward(const Context &ctx) const {
    const long left = columns - 2 * units;
    const Rows<float> maps = ctx.saved[MAPS].rows(ctx.t), d_maps = ctx.d_inputs.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      gate_forward(gate, maps.row(row), true, values);
      ctx.drop_candidates(row, values.input, units);
      lstm_backward(gate, values, maps.row(row) + left, ctx.state(1, row), ctx.d_state(0).row(row),
                    ctx.d_outputs.row(ctx.t, row), gradients, d_maps.row(row) + left,
                    ctx.d_state(1).row(row));
      ctx.drop_candidates(row, gradients.input, units);
      gate_backward(gate, maps.row(row), values, gradients, d_maps.row(row));
    }
    if (ctx.needs_d_state()) ctx.product(0, d_maps, ctx.d_state(0), SET);
  }

  void weights(const Context &ctx, long steps) const { add_joint_weights(ctx, steps); }
};
