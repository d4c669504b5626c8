// Cells with the weights of a torch.nn layer, whose maps are stacked in C columns. The map of the
// candidate u may have a product with h of its own (`apart`), and then biases that are not summed
// (`two_biases`).
template <bool apart, bool two_biases = false> struct StackedCell : CellDefaults {
  enum { INPUT, INPUT_BIAS, STATE, STATE_BIAS };  // (C, I), (C), (C, H), (C)
  enum { MAPS, EXTRA };  // saved: what the backward pass needs of the maps (C), and more (H)
  static constexpr long PROJECTION = MAPS;
  const long units, columns, joint;  // joint: columns whose product with h is one product
  const Gate gate;
  const GateRows values, gradients;

  static long joint_columns(const LayerArgs &c) {
    return c.projected_width - (apart ? c.sizes[0] : 0);
  }
  static long matrix_count(const LayerArgs &) { return 1 + apart; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long units = c.sizes[0], joint = joint_columns(c);
    if (i == 0) return weight_matrix(c.weights[STATE], joint, units, back);
    return weight_matrix(c.weights[STATE] + joint * units, units, units, back);
  }
  static long summed_biases(const LayerArgs &c) {
    return two_biases ? joint_columns(c) : c.projected_width;
  }
  static const float *projection_bias(const LayerArgs &c, Workspace &workspace) {
    float *bias = workspace.take(c.projected_width);
    for (long k = 0; workspace.data && k < c.projected_width; k++)
      bias[k] = c.weights[INPUT_BIAS][k] + (k < summed_biases(c) ? c.weights[STATE_BIAS][k] : 0.0f);
    return bias;
  }
  static void finish_gradients(const LayerArgs &c) {
    memcpy(c.d_weights[STATE_BIAS], c.d_weights[INPUT_BIAS], summed_biases(c) * sizeof(float));
  }

  StackedCell(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), columns(ctx.c.projected_width), joint(joint_columns(ctx.c)),
        gate(ctx.c, units), values(workspace, units), gradients(workspace, units) {}

  // Add the gradients of the weights of h, of all columns or of the joint ones.
  void add_joint_weights(const Context &ctx, long steps) const {
    ctx.add(ctx.d_inputs, 0, joint, ctx.part(0), units, steps, ctx.d_weights.of[STATE], nullptr);
  }
};

// h' = f h + i u for one row, given its gates. The pre-activation of u becomes u in place; h' is
// written to the state and to the output.
static void leaky_forward(long units, const float *forget, const float *input, float *u_map,
                          const float *before, float *h, float *output) {
  for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
    vec u = hyperbolic_tangent(load(u_map + unit, n));
    vec out = load(forget + unit) * load(before + unit, n) + load(input + unit) * u;
    store(u_map + unit, u, n);
    store(h + unit, out, n);
    store(output + unit, out, n);
  }
}
