// Cells that are steps of a differential equation.

// coRNN: f = tanh(W x + b + W_z z + W_y y), z' = z + dt (f - gamma y - epsilon z), y' = y + dt z'.
// The pre-activations become f in place, where the driver puts the projected input.
struct CoRnn : CellDefaults {
  enum { INPUT, BIAS, STATE, RATES };  // (H, I), (H), (H, 2 H), (dt, dt gamma, dt epsilon)
  enum { FORCE };                      // saved: (H)
  enum { Y, Z };                       // parts of the state
  static constexpr long PROJECTION = FORCE;
  const long units;
  const float dt, spring, damping;

  static long matrix_count(const LayerArgs &) { return 2; }
  // Those of z and y are side by side.
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long units = c.sizes[0];
    const float *weights = c.weights[STATE] + i * units;
    if (back) return {weights, units, units, 2 * units, 1, nullptr};
    return {weights, units, units, 1, 2 * units, nullptr};
  }
  CoRnn(const Context &ctx, Workspace &)
      : units(ctx.c.sizes[0]), dt(ctx.c.weights[RATES][0]), spring(ctx.c.weights[RATES][1]),
        damping(ctx.c.weights[RATES][2]) {}

  void forward(const Context &ctx) const {
    const Rows<float> all = ctx.inputs.rows(ctx.t);
    ctx.product(0, ctx.part(Z), all, ADD);
    ctx.product(1, ctx.part(Y), all, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *f = all.row(row), *output = ctx.outputs.row(ctx.t, row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec y = load(ctx.state(Y, row) + unit, n), z = load(ctx.state(Z, row) + unit, n);
        const vec force = hyperbolic_tangent(load(f + unit, n));
        const vec new_z = z + (dt * force - spring * y - damping * z), new_y = y + dt * new_z;
        store(f + unit, force, n);
        store(ctx.next(Y, row) + unit, new_y, n);
        store(ctx.next(Z, row) + unit, new_z, n);
        store(output + unit, new_y, n);
      }
    }
  }

  void backward(const Context &ctx) const {
    const Rows<float> d_all = ctx.d_inputs.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *f = ctx.saved[FORCE].row(ctx.t, row), *d_output = ctx.d_outputs.row(ctx.t, row);
      float *d_y_row = ctx.d_state(Y).row(row), *d_z_row = ctx.d_state(Z).row(row);
      for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
        const vec force = load(f + unit, n);
        const vec d_y = load(d_y_row + unit, n) + load(d_output + unit, n);
        const vec d_z = load(d_z_row + unit, n) + dt * d_y;
        store(d_all.row(row) + unit, dt * d_z * (1.0f - force * force), n);
        store(d_y_row + unit, d_y - spring * d_z, n);
        store(d_z_row + unit, d_z - damping * d_z, n);
      }
    }
    if (!ctx.needs_d_state()) return;
    ctx.product(0, d_all, ctx.d_state(Z), ADD);
    ctx.product(1, d_all, ctx.d_state(Y), ADD);
  }

  void weights(const Context &ctx, long steps) const {
    float *d = ctx.d_weights.of[STATE];
    for (long part : {Z, Y})
      ctx.add(ctx.d_inputs, 0, units, ctx.part(part), units, steps, part == Z ? d : d + units,
              nullptr, 2 * units);
  }
};

// LEM: dt_y = dt sigmoid(L_2(x, y)), dt_z = dt sigmoid(L_1(x, y)),
// z' = (1 - dt_z) z + dt_z tanh(L_z(x, y)) and y' = (1 - dt_y) y + dt_y tanh(L_y(x, z')).
// The maps, in the order 2, 1, y, z, become dt_y, dt_z and the candidates, which are the hyperbolic
// tangents, in place, where the driver puts the projected input.
struct Lem : CellDefaults {
  enum { INPUT, BIAS, STATE, OF_Z };  // (4 H, I), (4 H), (3 H, H), of dt_y, dt_z and z, and (H, H)
  enum { MAPS, MEMORY };              // saved: (4 H), and z' (H), since an episode may start next
  enum { Y, Z };                      // parts of the state
  static constexpr long PROJECTION = MAPS;
  const long units;
  const float dt;

  static long matrix_count(const LayerArgs &) { return 3; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long units = c.sizes[0];
    if (i == 0) return weight_matrix(c.weights[STATE], 2 * units, units, back);
    if (i == 1) return weight_matrix(c.weights[STATE] + 2 * units * units, units, units, back);
    return weight_matrix(c.weights[OF_Z], units, units, back);
  }
  Lem(const Context &ctx, Workspace &) : units(ctx.c.sizes[0]), dt(ctx.c.constant) {}

  void forward(const Context &ctx) const {
    const Rows<float> maps = ctx.inputs.rows(ctx.t), memory = ctx.saved[MEMORY].rows(ctx.t);
    ctx.product(0, ctx.part(Y), maps, ADD);
    ctx.product(1, ctx.part(Y), maps.from(3 * units), ADD);
    for (long row = ctx.first; row < ctx.last; row++)
      to_state(maps.row(row), units, 3 * units, ctx.state(Z, row), ctx.next(Z, row),
               memory.row(row));
    ctx.product(2, memory, maps.from(2 * units), ADD);
    for (long row = ctx.first; row < ctx.last; row++)
      to_state(maps.row(row), 0, 2 * units, ctx.state(Y, row), ctx.next(Y, row),
               ctx.outputs.row(ctx.t, row));
  }

  // A new state from the old one, `before`, and two maps of a row: the length of the step, at `step`,
  // and the candidate. It is written to two places.
  void to_state(float *maps, long step, long candidate, const float *before, float *next,
                float *copy) const {
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      const vec length = dt * sigmoid(load(maps + step + unit, n));
      const vec value = hyperbolic_tangent(load(maps + candidate + unit, n));
      const vec state = (1.0f - length) * load(before + unit, n) + length * value;
      store(maps + step + unit, length, n);
      store(maps + candidate + unit, value, n);
      store(next + unit, state, n);
      store(copy + unit, state, n);
    }
  }

  // Backward: `d`, the gradient of the new state, becomes that of the old one; those of the two maps
  // are written.
  void of_state(const float *maps, float *d_maps, long step, long candidate, const float *before,
                const float *d_output, float *d) const {
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      const vec length = load(maps + step + unit, n), value = load(maps + candidate + unit, n);
      vec given = load(d + unit, n);
      if (d_output) given += load(d_output + unit, n);
      const vec d_length = given * (value - load(before + unit, n));
      store(d_maps + step + unit, d_length * length * (1.0f - length / dt), n);
      store(d_maps + candidate + unit, given * length * (1.0f - value * value), n);
      store(d + unit, given * (1.0f - length), n);
    }
  }

  void backward(const Context &ctx) const {
    const Rows<float> maps = ctx.saved[MAPS].rows(ctx.t), d_maps = ctx.d_inputs.rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++)
      of_state(maps.row(row), d_maps.row(row), 0, 2 * units, ctx.state(Y, row),
               ctx.d_outputs.row(ctx.t, row), ctx.d_state(Y).row(row));
    ctx.product(2, d_maps.from(2 * units), ctx.d_state(Z), ADD);
    for (long row = ctx.first; row < ctx.last; row++)
      of_state(maps.row(row), d_maps.row(row), units, 3 * units, ctx.state(Z, row), nullptr,
               ctx.d_state(Z).row(row));
    if (!ctx.needs_d_state()) return;
    ctx.product(0, d_maps, ctx.d_state(Y), ADD);
    ctx.product(1, d_maps.from(3 * units), ctx.d_state(Y), ADD);
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d = ctx.d_weights.of;
    const Rows<float> y = ctx.part(Y);
    ctx.add(ctx.d_inputs, 0, 2 * units, y, units, steps, d[STATE], nullptr);
    ctx.add(ctx.d_inputs, 3 * units, units, y, units, steps, d[STATE] + 2 * units * units, nullptr);
    ctx.add(ctx.d_inputs, 2 * units, units, ctx.saved[MEMORY].rows(ctx.t), units, steps, d[OF_Z],
            nullptr);
  }
};
