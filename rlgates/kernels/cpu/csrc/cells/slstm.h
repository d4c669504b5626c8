// The sLSTM with one head: the map i, those of the forget gate, u and o. The parts of the state are
// h, c, n and m. The pre-activations of u and o become u and o in place, that of i stays, and so
// does that of a forget gate that is a sigmoid alone, which has no `Gate`.

// exp x for x up to 0, and 0 where float32 has no such number but a denormal one.
INLINE vec decaying_exponential(vec x) {
  return x < -87.0f ? vec{} : exponential(clamp(x, 87.0f));
}

struct Slstm : CellDefaults {
  enum { INPUT, BIAS, STATE };  // (C, I), (C), (C, H)
  enum { MAPS };                // saved: (C)
  static constexpr long PROJECTION = MAPS;
  const long units, columns;
  const bool gated;
  const Gate gate;
  const GateRows values, gradients;

  static long matrix_count(const LayerArgs &) { return 1; }
  static PackedMatrix matrix(const LayerArgs &c, long, bool back) {
    return weight_matrix(c.weights[STATE], c.projected_width, c.sizes[0], back);
  }
  Slstm(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), columns(ctx.c.projected_width), gated(ctx.c.activation >= 0),
        gate(ctx.c, units), values(workspace, units), gradients(workspace, units) {}

  // What is left of the past and what is added, as multiples of exp(m'), and m'.
  struct Weights {
    vec past, added, m, kept;  // kept: the logarithm of what is left, before m' is subtracted
    vec is_fresh;              // 1 where the episode begins: there m says nothing
    Weights(vec i, vec log_f, vec n, vec before) {
      kept = n == 0.0f ? vec{} - __builtin_inff() : before + log_f;
      is_fresh = n == 0.0f ? vec{} + 1.0f : vec{};
      m = kept > i ? kept : i;
      m = kept != kept || i != i ? kept + i : m;  // NaN, as in PyTorch
      past = n == 0.0f ? vec{} : decaying_exponential(kept - m);
      added = decaying_exponential(i - m);
    }
  };

  // The logarithm of f at a unit, from its map or from its gate.
  vec log_forget(const float *i_map, long unit, long k) const {
    return gated ? logarithm(load(values.forget + unit))
                 : -softplus(-load(i_map + units + unit, k));
  }

  void forward(const Context &ctx) const {
    const Rows<float> maps = ctx.inputs.rows(ctx.t);
    ctx.product(0, ctx.part(0), maps, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *i_map = maps.row(row), *u_map = i_map + columns - 2 * units, *o_map = u_map + units;
      float *output = ctx.outputs.row(ctx.t, row);
      if (gated) gate_forward(gate, i_map + units, false, values);
      for (long unit = 0, k = units; k > 0; unit += LANES, k -= LANES) {
        const vec c = load(ctx.state(1, row) + unit, k), n = load(ctx.state(2, row) + unit, k);
        const Weights weights(load(i_map + unit, k), log_forget(i_map, unit, k), n,
                              load(ctx.state(3, row) + unit, k));
        const vec u = hyperbolic_tangent(load(u_map + unit, k)), o = sigmoid(load(o_map + unit, k));
        const vec new_c = weights.past * c + weights.added * u;
        const vec new_n = weights.past * n + weights.added, h = o * new_c / new_n;
        store(u_map + unit, u, k);
        store(o_map + unit, o, k);
        store(ctx.next(0, row) + unit, h, k);
        store(ctx.next(1, row) + unit, new_c, k);
        store(ctx.next(2, row) + unit, new_n, k);
        store(ctx.next(3, row) + unit, weights.m, k);
        store(output + unit, h, k);
      }
    }
  }

  void backward(const Context &ctx) const {
    const Rows<float> maps = ctx.saved[MAPS].rows(ctx.t), d_maps = ctx.d_inputs.rows(ctx.t);
    const long left = columns - 2 * units;
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *i_map = maps.row(row), *u_map = i_map + left, *o_map = u_map + units;
      const float *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_map = d_maps.row(row), *d_h_row = ctx.d_state(0).row(row);
      float *d_c_row = ctx.d_state(1).row(row), *d_n_row = ctx.d_state(2).row(row);
      float *d_m_row = ctx.d_state(3).row(row);
      if (gated) gate_forward(gate, maps.row(row) + units, true, values);
      for (long unit = 0, k = units; k > 0; unit += LANES, k -= LANES) {
        const vec i = load(i_map + unit, k);
        const vec u = load(u_map + unit, k), o = load(o_map + unit, k);
        const vec c = load(ctx.state(1, row) + unit, k), n = load(ctx.state(2, row) + unit, k);
        const Weights w(i, log_forget(i_map, unit, k), n, load(ctx.state(3, row) + unit, k));
        // Computed again: at an episode start the state holds another value.
        const vec new_n = w.past * n + w.added, read = (w.past * c + w.added * u) / new_n;
        const vec d_h = load(d_h_row + unit, k) + load(d_output + unit, k);
        const vec d_read = d_h * o / new_n;
        const vec d_c = load(d_c_row + unit, k) + d_read;
        const vec d_n = load(d_n_row + unit, k) - d_read * read;
        const vec d_past = (d_c * c + d_n * n) * w.past, d_added = (d_c * u + d_n) * w.added;
        // m' is the larger logarithm; at a tie each has half of its gradient.
        const vec d_m = load(d_m_row + unit, k) - d_past - d_added;
        const vec fresh = w.is_fresh;
        const vec share = fresh == 1.0f ? vec{}
                          : w.kept > i  ? vec{} + 1.0f
                          : w.kept == i ? vec{} + 0.5f
                                        : vec{};
        const vec d_kept = fresh == 1.0f ? vec{} : d_past + share * d_m;
        store(d_map + unit, d_added + (1.0f - share) * d_m, k);
        if (gated) {
          const vec f = load(values.forget + unit);
          store(gradients.forget + unit, f == 0.0f ? vec{} : d_kept / f);
          store(gradients.input + unit, vec{});
        } else {
          store(d_map + units + unit, d_kept * sigmoid(-load(i_map + units + unit, k)), k);
        }
        store(d_map + left + unit, d_c * w.added * (1.0f - u * u), k);
        store(d_map + left + units + unit, d_h * read * o * (1.0f - o), k);
        store(d_c_row + unit, d_c * w.past, k);
        store(d_n_row + unit, d_n * w.past, k);
        store(d_m_row + unit, d_kept, k);
      }
      if (gated) gate_backward(gate, i_map + units, values, gradients, d_map + units);
    }
    if (ctx.needs_d_state()) ctx.product(0, d_maps, ctx.d_state(0), SET);
  }

  void weights(const Context &ctx, long steps) const {
    ctx.add(ctx.d_inputs, 0, columns, ctx.part(0), units, steps, ctx.d_weights.of[STATE], nullptr);
  }
};
