// JANET: the maps of the gate, then u.
//
// The input gate is computed from the forget pre-activation lowered by beta. So there are two gates
// whose maps differ only in the last one; the pre-activations themselves are saved.

struct Janet : StackedCell<false> {
  float *const maps, *const lowered, *const d_lowered;
  const GateRows low, d_low;  // values and gradients of the lowered gate

  Janet(const Context &ctx, Workspace &workspace)
      : StackedCell(ctx, workspace), maps(workspace.take(columns)),
        lowered(workspace.take(columns)), d_lowered(workspace.take(columns)),
        low(workspace, units), d_low(workspace, units) {}

  void both_gates(const Context &ctx, const float *from) const {
    const long left = columns - units;
    memcpy(maps, from, left * sizeof(float));
    memcpy(lowered, from, left * sizeof(float));
    for (long column = left - units; column < left; column++)
      lowered[column] -= (float)ctx.c.constant;
    gate_forward(gate, maps, false, values);
    gate_forward(gate, lowered, false, low);
  }

  void forward(const Context &ctx) const {
    const Rows<float> all = ctx.inputs.rows(ctx.t);
    ctx.product(0, ctx.part(0), all, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      both_gates(ctx, all.row(row));
      leaky_forward(units, values.forget, low.input, all.row(row) + columns - units,
                    ctx.state(0, row), ctx.next(0, row), ctx.outputs.row(ctx.t, row));
    }
  }

  void backward(const Context &ctx) const {
    const long left = columns - units;
    const Rows<float> all = ctx.saved[MAPS].rows(ctx.t), d_all = ctx.d_inputs.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *u_map = all.row(row) + left, *h = ctx.state(0, row);
      const float *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_maps = d_all.row(row), *d_u = d_maps + left, *d_h = ctx.d_state(0).row(row);
      both_gates(ctx, all.row(row));
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        vec f = load(values.forget + unit), i = load(low.input + unit);
        vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
        store(gradients.forget + unit, d * load(h + unit, n));
        store(gradients.input + unit, vec{});
        store(d_low.forget + unit, vec{});
        store(d_low.input + unit, d * u);
        store(d_u + unit, d * i * (1.0f - u * u), n);
        store(d_h + unit, d * f, n);
      }
      gate_backward(gate, maps, values, gradients, d_maps);
      gate_backward(gate, lowered, low, d_low, d_lowered);
      for (long column = 0; column < left; column++) d_maps[column] += d_lowered[column];
    }
    if (ctx.needs_d_state()) ctx.product(0, d_all, ctx.d_state(0), ADD);
  }

  void weights(const Context &ctx, long steps) const { add_joint_weights(ctx, steps); }
};
