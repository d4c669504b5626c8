// minGRU, GILR and minLSTM, h' = f h + i u, whose gates and candidate u read the input alone: the
// maps of the gate, then that of u. Without a gate, f and i are shares of two sigmoids.

// The candidate from its map, and the slope from the candidate.
struct Positive {
  // Below 1/2 where z is negative, which tells the slope; rounded, a sigmoid is 1/2 near 0.
  INLINE vec value(vec z) {
    const vec below = sigmoid(z), most = vec{} + 0.49999997f;
    return z < 0.0f ? (below > most ? most : below) : z + 0.5f;
  }
  INLINE vec slope(vec u) { return u >= 0.5f ? vec{} + 1.0f : u * (1.0f - u); }
};
struct Linear {
  INLINE vec value(vec z) { return z; }
  INLINE vec slope(vec) { return vec{} + 1.0f; }
};
struct Bounded {
  INLINE vec value(vec z) { return hyperbolic_tangent(z); }
  INLINE vec slope(vec u) { return 1.0f - u * u; }
};

struct Minimal : CellDefaults {
  enum { INPUT, BIAS };  // (C, I), (C), with the columns C of all maps
  enum { MAPS };         // saved: what the backward pass needs of the maps, and u, (C)
  enum Candidate { POSITIVE, LINEAR, BOUNDED };
  static constexpr long PROJECTION = MAPS;
  const long units, candidate, of_gate;  // of_gate: columns before those of u
  const Gate gate;
  const GateRows values, gradients;

  static long matrix_count(const LayerArgs &) { return 0; }
  static PackedMatrix matrix(const LayerArgs &, long, bool) { return {}; }
  Minimal(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), candidate(ctx.c.sizes[1]), of_gate(ctx.c.projected_width - units),
        gate(ctx.c, units), values(workspace, units), gradients(workspace, units) {}

  bool is_normalized() const { return gate.activation < 0; }
  template <class Visitor> INLINE void with_candidate(long candidate, Visitor visit) {
    switch ((Candidate)candidate) {
      case POSITIVE: return visit(Positive());
      case LINEAR: return visit(Linear());
      case BOUNDED: return visit(Bounded());
    }
  }

  // f = sigmoid(a) / (sigmoid(a) + sigmoid(b)) and i = 1 - f, each accurate where it is small.
  void gates(float *maps, bool saved) const {
    if (!is_normalized()) return gate_forward(gate, maps, saved, values);
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      const vec odds = softplus(-load(maps + units + unit, n)) - softplus(-load(maps + unit, n));
      store(values.forget + unit, sigmoid(odds));
      store(values.input + unit, sigmoid(-odds));
    }
  }

  void gates_backward(const float *maps, float *d_maps) const {
    if (!is_normalized()) return gate_backward(gate, maps, values, gradients, d_maps);
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      const vec f = load(values.forget + unit), i = load(values.input + unit);
      const vec d = f * i * (load(gradients.forget + unit) - load(gradients.input + unit));
      store(d_maps + unit, d * sigmoid(-load(maps + unit, n)), n);
      store(d_maps + units + unit, -d * sigmoid(-load(maps + units + unit, n)), n);
    }
  }

  void forward(const Context &ctx) const {
    with_candidate(candidate, [&](auto phi) {
      for (long row = ctx.first; row < ctx.last; row++) {
        float *maps = ctx.inputs.row(ctx.t, row), *u_map = maps + of_gate;
        float *h = ctx.next(0, row), *output = ctx.outputs.row(ctx.t, row);
        const float *before = ctx.state(0, row);
        gates(maps, false);
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
          const vec u = phi.value(load(u_map + unit, n));
          const vec next = load(values.forget + unit) * load(before + unit, n) +
                           load(values.input + unit) * u;
          store(u_map + unit, u, n);
          store(h + unit, next, n);
          store(output + unit, next, n);
        }
      }
    });
  }

  void backward(const Context &ctx) const {
    with_candidate(candidate, [&](auto phi) {
      for (long row = ctx.first; row < ctx.last; row++) {
        float *maps = ctx.saved[MAPS].row(ctx.t, row);
        const float *u_map = maps + of_gate, *before = ctx.state(0, row);
        const float *d_output = ctx.d_outputs.row(ctx.t, row);
        float *d_maps = ctx.d_inputs.row(ctx.t, row), *d_u = d_maps + of_gate;
        float *d_h = ctx.d_state(0).row(row);
        gates(maps, true);
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
          const vec d = load(d_h + unit, n) + load(d_output + unit, n), u = load(u_map + unit, n);
          store(gradients.forget + unit, d * load(before + unit, n));
          store(gradients.input + unit, d * u);
          store(d_u + unit, d * load(values.input + unit) * phi.slope(u), n);
          store(d_h + unit, d * load(values.forget + unit), n);
        }
        gates_backward(maps, d_maps);
      }
    });
  }

  void weights(const Context &, long) const {}
};
