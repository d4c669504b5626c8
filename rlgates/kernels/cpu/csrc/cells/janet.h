// JANET: the maps of the gate, then u.
//
// The input gate is computed from the forget pre-activation lowered by beta. So there are two gates
// whose maps differ only in the last one; the pre-activations themselves are saved.

struct Janet {
  float *maps, *lowered, *d_lowered;
  const GateRows values, gradients;  // of the lowered gate; those of the other are in the context

  Janet(const GatedContext &ctx, Workspace &workspace)
      : maps(workspace.take(ctx.c.columns)), lowered(workspace.take(ctx.c.columns)),
        d_lowered(workspace.take(ctx.c.columns)), values(workspace, ctx.c.units),
        gradients(workspace, ctx.c.units) {}

  void both_gates(const GatedContext &ctx, const float *row) {
    const long columns = ctx.c.columns - ctx.c.units;
    memcpy(maps, row, columns * sizeof(float));
    memcpy(lowered, row, columns * sizeof(float));
    for (long column = columns - ctx.c.units; column < columns; column++)
      lowered[column] -= (float)ctx.c.beta;
    gate_forward(ctx.gate, maps, false, ctx.values);
    gate_forward(ctx.gate, lowered, false, values);
  }

  void forward(const GatedContext &ctx) {
    const long units = ctx.c.units, left = ctx.c.columns - units;
    const Rows<float> gates = ctx.gates.rows(ctx.t), h_prev = ctx.h_prev.rows(ctx.t);
    ctx.product(ctx.plan.state, h_prev, gates, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *u_map = gates.row(row) + left, *output = ctx.outputs.row(ctx.t, row);
      const float *h = h_prev.row(row);
      both_gates(ctx, gates.row(row));
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(ctx.values.forget + unit), i = load(values.input + unit);
        vec u = hyperbolic_tangent(load(u_map + unit, n));
        store(u_map + unit, u, n);
        store(output + unit, f * load(h + unit, n) + i * u, n);
      }
    }
  }

  void backward(const GatedContext &ctx) {
    const long units = ctx.c.units, left = ctx.c.columns - units;
    const Rows<float> gates = ctx.gates.rows(ctx.t), d_gates = ctx.d_gates.rows(ctx.t);
    const Rows<float> h_prev = ctx.h_prev.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *u_map = gates.row(row) + left, *h = h_prev.row(row);
      const float *d_output = ctx.d_output(row);
      float *d_maps = d_gates.row(row), *d_u = d_maps + left, *d_h = ctx.d_h.row(row);
      both_gates(ctx, gates.row(row));
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(ctx.values.forget + unit), i = load(values.input + unit);
        vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
        store(ctx.gradients.forget + unit, d * load(h + unit, n));
        store(ctx.gradients.input + unit, vec{});
        store(gradients.forget + unit, vec{});
        store(gradients.input + unit, d * u);
        store(d_u + unit, d * i * (1.0f - u * u), n);
        store(d_h + unit, d * f, n);
      }
      gate_backward(ctx.gate, maps, ctx.values, ctx.gradients, d_maps);
      gate_backward(ctx.gate, lowered, values, gradients, d_lowered);
      for (long column = 0; column < left; column++) d_maps[column] += d_lowered[column];
    }
    if (ctx.needs_d_state()) ctx.product(ctx.plan.state, d_gates, ctx.d_h, ADD);
  }
};
