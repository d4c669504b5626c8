// The NRU: h' from x and [h ; m], then from [h' ; m] the vectors that are written to and erased
// from m: outer products of two maps, scaled to a 5-norm of 1.

struct Nru : CellDefaults {
  // Weights: (d, I), (d); (d, d + m), (C, d + m), (C); gain and offset (d) of the layer
  // normalization, or null.
  enum { INPUT, BIAS, STATE, MAPS, MAPS_BIAS, GAIN, OFFSET };
  enum { BEFORE, AFTER, NORMAL, SCALE, MAPPED };  // saved: [h ; m], [h' ; m], (d), (1), (C)
  const long units, memory, heads, side, wide, columns;
  const bool rectified;
  const SequenceView d_maps, d_read;
  float *const rows, *const d_rows, *const lengths;  // (k m), (k m), (k)

  static long matrix_count(const LayerArgs &) { return 2; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long d = c.sizes[0], wide = d + c.sizes[1];
    if (i == 0) return weight_matrix(c.weights[STATE], d, wide, back);
    return weight_matrix(c.weights[MAPS], c.saved_width[MAPPED], wide, back);
  }

  Nru(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), memory(ctx.c.sizes[1]), heads(ctx.c.sizes[2]), side(ctx.c.sizes[3]),
        wide(units + memory), columns(ctx.c.saved_width[MAPPED]), rectified(ctx.c.sizes[4]),
        d_maps(ctx.slab_view(columns, workspace)),
        d_read(SequenceView(workspace, wide, ctx.first, ctx.last, 1)),
        rows(workspace.take(heads * memory)), d_rows(workspace.take(heads * memory)),
        lengths(workspace.take(heads)) {}

  // Parts of a row of maps, or of gradients: the amounts to write (0) or erase (1), and the two
  // maps whose outer product gives the vectors.
  struct Pair {
    float *amounts, *first, *second;
  };
  Pair pair(float *maps, long which) const {
    float *first = maps + 2 * heads + which * side;
    return {maps + which * heads, first, first + 2 * side};
  }

  void outer_rows(const Pair &p) const {
    for (long i = 0; i < side; i++)
      for (long j = 0; j < side; j++) {
        const float x = p.first[i] * p.second[j];
        rows[i * side + j] = rectified && x < 0.0f ? 0.0f : x;
      }
    for (long head = 0; head < heads; head++) {
      float *row = rows + head * memory;
      vec most = {}, sum = {};
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES) {
        const vec x = load(row + i, n), size = x < 0.0f ? -x : x;
        most = size < most ? most : size;
      }
      // Scaled to at most 1, so that no fifth power overflows.
      const float peak = largest(most), whole = peak < 1e-12f ? 1e-12f : peak;
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES) {
        const vec x = load(row + i, n) / whole, size = x < 0.0f ? -x : x;
        sum += size * (x * x) * (x * x);
      }
      const float norm = __builtin_powf(total(sum), 0.2f);
      lengths[head] = whole * (norm < 1.0f ? 1.0f : norm);
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES)
        store(row + i, load(row + i, n) / lengths[head], n);
    }
  }

  float amount(const Pair &p, long head, long which) const {
    const float x = rectified && p.amounts[head] < 0.0f ? 0.0f : p.amounts[head];
    return (which ? -x : x) / heads;
  }

  void forward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const Rows<float> before = ctx.saved[BEFORE].rows(ctx.t), after = ctx.saved[AFTER].rows(ctx.t);
    const Rows<float> normal = ctx.saved[NORMAL].rows(ctx.t), maps = ctx.saved[MAPPED].rows(ctx.t);
    for (long row = ctx.first; row < ctx.last; row++) {
      memcpy(before.row(row), ctx.state(0, row), units * sizeof(float));
      for (const Rows<float> &to : {before, after})
        memcpy(to.row(row) + units, ctx.state(1, row), memory * sizeof(float));
    }
    ctx.product(0, before, normal, SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *z = normal.row(row), *h = after.row(row);
      const float *input = ctx.inputs.row(ctx.t, row);
      for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
        store(z + i, load(z + i, n) + load(input + i, n), n);
      if (c.weights[GAIN]) *ctx.saved[SCALE].row(ctx.t, row) = normalize(z, units);
      for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) {
        vec x = load(z + i, n);
        if (c.weights[GAIN])
          x = x * load(c.weights[GAIN] + i, n) + load(c.weights[OFFSET] + i, n);
        store(h + i, relu(x), n);
      }
      memcpy(ctx.outputs.row(ctx.t, row), h, units * sizeof(float));
      memcpy(ctx.next(0, row), h, units * sizeof(float));
    }
    ctx.product(1, after, maps, SET, c.weights[MAPS_BIAS]);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *m = ctx.next(1, row);
      memcpy(m, ctx.state(1, row), memory * sizeof(float));
      for (long which = 0; which < 2; which++) {
        const Pair p = pair(maps.row(row), which);
        outer_rows(p);
        for (long head = 0; head < heads; head++) {
          const float weight = amount(p, head, which);
          for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES)
            store(m + i, load(m + i, n) + weight * load(rows + head * memory + i, n), n);
        }
      }
    }
  }

  void backward(const Context &ctx) const {
    const Rows<float> maps = ctx.saved[MAPPED].rows(ctx.t), after = ctx.saved[AFTER].rows(ctx.t);
    const Rows<float> d_z = d_maps.rows(ctx.t), d_wide = d_read.rows(0);
    for (long row = ctx.first; row < ctx.last; row++)
      for (long which = 0; which < 2; which++) {
        const Pair p = pair(maps.row(row), which), d = pair(d_z.row(row), which);
        outer_rows(p);
        outer_rows_backward(p, d, which, ctx.d_state(1).row(row));
      }
    ctx.product(1, d_z, d_wide, SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *d_output = ctx.d_outputs.row(ctx.t, row), *h = after.row(row);
      float *d = d_wide.row(row), *d_h = ctx.d_state(0).row(row), *d_m = ctx.d_state(1).row(row);
      float *d_input = ctx.d_inputs.row(ctx.t, row);
      for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) {
        const vec sum = load(d + i, n) + load(d_h + i, n) + load(d_output + i, n);
        store(d_input + i, relu_gradient(load(h + i, n), sum), n);
      }
      add(d_m, d + units, memory);
      if (ctx.c.weights[GAIN])
        normalize_backward(ctx.saved[NORMAL].row(ctx.t, row), *ctx.saved[SCALE].row(ctx.t, row),
                           ctx.c.weights[GAIN], d_input, units, ctx.d_weights.of[GAIN],
                           ctx.d_weights.of[OFFSET]);
    }
    if (!ctx.needs_d_state()) return;
    ctx.product(0, ctx.d_inputs.rows(ctx.t), d_wide, SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      memcpy(ctx.d_state(0).row(row), d_wide.row(row), units * sizeof(float));
      add(ctx.d_state(1).row(row), d_wide.row(row) + units, memory);
    }
  }

  // With u = v / |v| in the 5-norm, the gradient of v is (d - (sum of d u) u |u|^3) / |v|. A vector
  // that is too short is divided by a constant instead.
  void outer_rows_backward(const Pair &p, const Pair &d, long which, const float *d_m) const {
    for (long head = 0; head < heads; head++) {
      const float *row = rows + head * memory;
      const float weight = amount(p, head, which);
      float *d_row = d_rows + head * memory;
      vec products = {};
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES)
        products += load(row + i, n) * load(d_m + i, n);
      const float sum = total(products), along = lengths[head] > 1e-12f ? sum : 0.0f;
      const bool closed = rectified && p.amounts[head] <= 0.0f;
      d.amounts[head] = closed ? 0.0f : (which ? -sum : sum) / heads;
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES) {
        const vec u = load(row + i, n), size = u < 0.0f ? -u : u;
        const vec tangent = load(d_m + i, n) - along * u * size * size * size;
        const vec value = tangent * (weight / lengths[head]);
        store(d_row + i, rectified ? relu_gradient(u, value) : value, n);
      }
    }
    for (long j = 0; j < side; j++) d.second[j] = 0.0f;
    for (long i = 0; i < side; i++) {
      float sum = 0.0f;
      for (long j = 0; j < side; j++) {
        sum += d_rows[i * side + j] * p.second[j];
        d.second[j] += d_rows[i * side + j] * p.first[i];
      }
      d.first[i] = sum;
    }
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    ctx.add(ctx.d_inputs, 0, units, ctx.saved[BEFORE].rows(ctx.t), wide, steps, d_weights[STATE],
            nullptr);
    ctx.add(d_maps, 0, columns, ctx.saved[AFTER].rows(ctx.t), wide, steps, d_weights[MAPS],
            d_weights[MAPS_BIAS]);
  }
};
