// The RMC: slots that attend to each other and to the input, and a gated update of each slot.

struct Rmc : CellDefaults {
  // Weights, of n blocks, J layers of the MLP and F numbers of q, k and v of a row: (D, I), (D);
  // (n, F, D), (n, F), gain and offset (n, F); gain and offset (n, D) after attention and after the
  // MLP; (J, D, D), (J, D); of the gates (G, D) for the input and for the slots, and (G).
  enum {
    INPUT, BIAS, QKV, QKV_BIAS, QKV_GAIN, QKV_OFFSET, READ_GAIN, READ_OFFSET, MLP_GAIN, MLP_OFFSET,
    MLP, MLP_BIAS, GATE_X, GATE_SLOT, GATE_BIAS
  };
  // Saved of each row (the S slots, then the input), block after block: the row; its q, k and v,
  // normalized; the three scales. Then the attention of a block, (H, S + 1, S + 1). Of each slot:
  // its tanh, its gate maps, and its candidate. Of each row, block after block without the last:
  // the row after attention, normalized; the inner layers of the MLP; the row after it, normalized;
  // and the same of the last block, which computes the slots alone.
  enum {
    ROWS, NORMAL_QKV, SCALES, SHARES, SQUASHED, MAPS, CANDIDATES, NORMAL_READ, HIDDEN, NORMAL_MLP,
    LAST
  };
  const long units, slots, rows, heads, key, value, width, blocks, layers, columns;
  const float scale;
  const Gate gate;
  const GateRows values, gradients;
  float *const qkv, *const scores, *const d_scores;  // scratch of one sequence of the batch
  const SequenceView read, d_rows, d_slots, of_input, d_squashed;  // scratch of one step
  // Of a slab, for the weights; two are of the blocks without the last, and of the last.
  const SequenceView d_qkv, d_mlp[2], reads[2], d_maps, d_gate;

  static long matrix_count(const LayerArgs &c) { return c.sizes[4] + c.sizes[5] + 2; }
  static long lines_of_row(const LayerArgs &c) { return c.sizes[1] + 1; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long d = c.sizes[0], blocks = c.sizes[4], layers = c.sizes[5];
    const long width = d + 2 * c.sizes[2] * c.sizes[3], columns = c.saved_width[MAPS] / c.sizes[1];
    if (i < blocks) return weight_matrix(c.weights[QKV] + i * width * d, width, d, back);
    i -= blocks;
    if (i < layers) return weight_matrix(c.weights[MLP] + i * d * d, d, d, back);
    return weight_matrix(c.weights[i == layers ? GATE_X : GATE_SLOT], columns, d, back);
  }

  Rmc(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), slots(ctx.c.sizes[1]), rows(slots + 1), heads(ctx.c.sizes[2]),
        key(ctx.c.sizes[3]), value(units / heads), width(units + 2 * heads * key),
        blocks(ctx.c.sizes[4]), layers(ctx.c.sizes[5]), columns(ctx.c.saved_width[MAPS] / slots),
        scale(1.0f / __builtin_sqrtf(key)), gate(ctx.c, ctx.c.sizes[6]), values(workspace, units),
        gradients(workspace, units), qkv(workspace.take(rows * width)),
        scores(workspace.take(rows)), d_scores(workspace.take(rows * rows)),
        read(SequenceView(workspace, rows * units, ctx.first, ctx.last, 1)),
        d_rows(SequenceView(workspace, rows * units, ctx.first, ctx.last, 1)),
        d_slots(SequenceView(workspace, slots * units, ctx.first, ctx.last, 1)),
        of_input(SequenceView(workspace, columns, ctx.first, ctx.last, 1)),
        d_squashed(SequenceView(workspace, slots * units, ctx.first, ctx.last, 1)),
        d_qkv(ctx.slab_view(rows * blocks * width, workspace)),
        d_mlp{ctx.slab_view(rows * (blocks - 1) * layers * units, workspace),
              ctx.slab_view(slots * layers * units, workspace)},
        reads{ctx.slab_view(rows * (blocks - 1) * units, workspace),
              ctx.slab_view(slots * units, workspace)},
        d_maps(ctx.slab_view(slots * columns, workspace)),
        d_gate(ctx.slab_view(columns, workspace)) {}

  // A (T, B, lines * width) tensor as (T, B * lines, width), from a column on.
  static Rows<float> lines(const SequenceView &view, long t, long lines, long column = 0) {
    const Rows<float> rows = view.rows(t);
    return {rows.data + column, rows.stride / lines, rows.step};
  }
  static void product(const Context &ctx, long matrix, long lines, Rows<const float> a,
                      Rows<float> out, WriteMode mode, const float *bias = nullptr) {
    multiply(ctx.matrices[matrix], a, out, 1, ctx.first * lines, ctx.last * lines, mode, bias);
  }
  // The rows that a block computes after its attention, of which `count` are in a step: of two
  // tensors, that of the blocks without the last and that of the last.
  bool is_last(long block) const { return block == blocks - 1; }
  long count_of(long block) const { return is_last(block) ? slots : rows; }
  Rows<float> lines_of(const SequenceView &others, const SequenceView &last, long t, long block,
                       long columns, long column = 0) const {
    return is_last(block) ? lines(last, t, slots, column)
                          : lines(others, t, rows, block * columns + column);
  }
  Rows<float> saved_lines(const Context &ctx, long field, long block, long columns,
                          long column = 0) const {
    const long last = field + LAST - NORMAL_READ;
    return lines_of(ctx.saved[field], ctx.saved[last], ctx.t, block, columns, column);
  }
  Rows<float> hidden(const Context &ctx, long block, long layer) const {
    return saved_lines(ctx, HIDDEN, block, (layers - 1) * units, layer * units);
  }
  Rows<float> d_layer(long t, long block, long layer) const {
    return lines_of(d_mlp[0], d_mlp[1], t, block, layers * units, layer * units);
  }
  Rows<float> reads_of(long t, long block) const {
    return lines_of(reads[0], reads[1], t, block, units);
  }
  // `count` lines of each row of the batch in scratch for all its lines.
  Rows<float> scratch_lines(const Context &ctx, const SequenceView &view, long count) const {
    return {view.row(0, ctx.first) - ctx.first * count * units, units, 0};
  }
  float *scales(const Context &ctx, long row, long i, long block) const {
    return ctx.saved[SCALES].row(ctx.t, row) + (i * blocks + block) * 3;
  }
  float *shares(const Context &ctx, long row, long block, long head) const {
    return ctx.saved[SHARES].row(ctx.t, row) + (block * heads + head) * rows * rows;
  }
  // q, k and v of a sequence of the batch from what is saved of them.
  void compute_qkv(const Context &ctx, long row, long block) const {
    const Rows<float> normal = lines(ctx.saved[NORMAL_QKV], ctx.t, rows, block * width);
    for (long i = 0; i < rows; i++)
      scale_and_shift(normal.row(row * rows + i), ctx.c.weights[QKV_GAIN] + block * width,
                      ctx.c.weights[QKV_OFFSET] + block * width, width, qkv + i * width);
  }
  struct Head {
    float *q, *k, *v;
  };
  Head head_of(float *line, long head) const {
    float *q = line + head * (2 * key + value);
    return {q, q + key, q + 2 * key};
  }

  void forward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const long t = ctx.t;
    for (long row = ctx.first; row < ctx.last; row++) {
      const Rows<float> to = lines(ctx.saved[ROWS], t, rows);
      for (long i = 0; i < rows; i++)
        memcpy(to.row(row * rows + i),
               i < slots ? ctx.state(0, row) + i * units : ctx.inputs.row(t, row),
               units * sizeof(float));
    }
    for (long block = 0; block < blocks; block++) attend(ctx, block);
    if (columns) {
      for (long row = ctx.first; row < ctx.last; row++) {
        const float *before = ctx.state(0, row);
        float *squashed = ctx.saved[SQUASHED].row(t, row);
        for (long i = 0, n = slots * units; n > 0; i += LANES, n -= LANES)
          store(squashed + i, hyperbolic_tangent(load(before + i, n)), n);
      }
      ctx.product(blocks + layers, ctx.inputs.rows(t), of_input.rows(t), SET, c.weights[GATE_BIAS]);
      product(ctx, blocks + layers + 1, slots, lines(ctx.saved[SQUASHED], t, slots),
              lines(ctx.saved[MAPS], t, slots), SET);
    }
    for (long row = ctx.first; row < ctx.last; row++) {
      float *next = ctx.next(0, row), *output = ctx.outputs.row(t, row);
      for (long slot = 0; slot < slots; slot++) write(ctx, row, slot, next + slot * units);
      memcpy(output, next, slots * units * sizeof(float));
    }
  }

  void attend(const Context &ctx, long block) const {
    const LayerArgs &c = ctx.c;
    const long t = ctx.t, count = count_of(block);
    const Rows<float> from = lines(ctx.saved[ROWS], t, rows, block * units);
    const Rows<float> normal_qkv = lines(ctx.saved[NORMAL_QKV], t, rows, block * width);
    const Rows<float> normal_read = saved_lines(ctx, NORMAL_READ, block, units);
    const Rows<float> normal_mlp = saved_lines(ctx, NORMAL_MLP, block, units);
    const Rows<float> after = scratch_lines(ctx, read, count);
    product(ctx, block, rows, from, normal_qkv, SET, c.weights[QKV_BIAS] + block * width);
    for (long row = ctx.first; row < ctx.last; row++) {
      for (long i = 0; i < rows; i++)
        scales(ctx, row, i, block)[0] = normalize(normal_qkv.row(row * rows + i), width);
      compute_qkv(ctx, row, block);
      for (long i = 0; i < count; i++) {
        float *line = normal_read.row(row * count + i);
        memcpy(line, from.row(row * rows + i), units * sizeof(float));
        for (long head = 0; head < heads; head++) {
          float *share = shares(ctx, row, block, head) + i * rows;
          auto key_of = [&](long j) { return head_of(qkv + j * width, head).k; };
          auto value_of = [&](long j) { return head_of(qkv + j * width, head).v; };
          dots(head_of(qkv + i * width, head).q, rows, key_of, key, share);
          for (long j = 0; j < rows; j++) share[j] *= scale;
          if (rows <= LANES) short_softmax(share, rows);
          else softmax(share, rows, scores);
          weighted_sum<true>(
              line + head * value, rows, [=](long j) { return share[j]; }, value_of, value);
        }
        scales(ctx, row, i, block)[1] = normalize(line, units);
        scale_and_shift(line, c.weights[READ_GAIN] + block * units,
                        c.weights[READ_OFFSET] + block * units, units,
                        after.row(row * count + i));
      }
    }
    Rows<float> below = after;
    for (long layer = 0; layer < layers; layer++) {
      const bool last = layer == layers - 1;
      const Rows<float> out = last ? normal_mlp : hidden(ctx, block, layer);
      product(ctx, blocks + layer, count, below, out, SET, c.weights[MLP_BIAS] + layer * units);
      for (long i = ctx.first * count; !last && i < ctx.last * count; i++)
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES)
          store(out.row(i) + unit, relu(load(out.row(i) + unit, n)), n);
      below = out;
    }
    for (long row = ctx.first; row < ctx.last; row++)
      for (long i = 0; i < count; i++) {
        float *line = normal_mlp.row(row * count + i);
        add_scaled(line, 1.0f, after.row(row * count + i), units);
        scales(ctx, row, i, block)[2] = normalize(line, units);
        // The last block's rows become candidates.
        float *to = is_last(block) ? ctx.saved[CANDIDATES].row(t, row) + i * units
                                   : from.row(row * rows + i) + units;
        scale_and_shift(line, c.weights[MLP_GAIN] + block * units,
                        c.weights[MLP_OFFSET] + block * units, units, to);
      }
  }

  void write(const Context &ctx, long row, long slot, float *next) const {
    float *candidate = ctx.saved[CANDIDATES].row(ctx.t, row) + slot * units;
    if (!columns) {
      memcpy(next, candidate, units * sizeof(float));
      return;
    }
    const float *before = ctx.state(0, row) + slot * units, *input = of_input.row(0, row);
    float *maps = ctx.saved[MAPS].row(ctx.t, row) + slot * columns;
    for (long i = 0, n = columns; n > 0; i += LANES, n -= LANES)
      store(maps + i, load(maps + i, n) + load(input + i, n), n);
    gates(maps, false);
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      const vec u = hyperbolic_tangent(load(candidate + unit, n));
      store(candidate + unit, u, n);
      store(next + unit, load(values.forget + unit) * load(before + unit, n) +
                             load(values.input + unit) * u, n);
    }
  }

  // The gates of the units of a slot, which may share one.
  void gates(float *maps, bool saved) const {
    gate_forward(gate, maps, saved, values);
    if (gate.units == units) return;
    for (float *one : {values.forget, values.input}) {
      const float shared = *one;
      for (long unit = 0; unit < units; unit += LANES) store(one + unit, vec{} + shared);
    }
  }

  void backward(const Context &ctx) const {
    const long t = ctx.t;
    const Rows<float> d_input = ctx.d_inputs.rows(t), d_new = lines(d_slots, 0, slots);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *d_memory = ctx.d_state(0).row(row);
      add(d_memory, ctx.d_outputs.row(t, row), slots * units);
      for (long slot = 0; slot < slots; slot++)
        write_backward(ctx, row, slot, d_memory + slot * units, d_new.row(row * slots + slot));
      if (!columns) {
        memset(d_input.row(row), 0, units * sizeof(float));
        continue;
      }
      const float *d = d_maps.row(t, row);
      float *sum = d_gate.row(t, row);
      memcpy(sum, d, columns * sizeof(float));
      for (long slot = 1; slot < slots; slot++) add(sum, d + slot * columns, columns);
    }
    if (columns) {
      ctx.product(blocks + layers, d_gate.rows(t), d_input, SET);
      product(ctx, blocks + layers + 1, slots, lines(d_maps, t, slots), lines(d_squashed, 0, slots),
              SET);
    }
    const Rows<float> d_before = lines(d_rows, 0, rows);
    for (long block = blocks - 1; block >= 0; block--)
      attend_backward(ctx, block, is_last(block) ? d_new : d_before, d_before);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *d_memory = ctx.d_state(0).row(row);
      const float *squashed = ctx.saved[SQUASHED].row(t, row), *d = d_squashed.row(0, row);
      add(d_memory, d_before.row(row * rows), slots * units);
      add(d_input.row(row), d_before.row(row * rows + slots), units);
      for (long i = 0, n = columns ? slots * units : 0; n > 0; i += LANES, n -= LANES) {
        const vec y = load(squashed + i, n);
        store(d_memory + i, load(d_memory + i, n) + load(d + i, n) * (1.0f - y * y), n);
      }
    }
  }

  void write_backward(const Context &ctx, long row, long slot, float *d, float *d_new) const {
    if (!columns) {
      memcpy(d_new, d, units * sizeof(float));
      memset(d, 0, units * sizeof(float));
      return;
    }
    const float *before = ctx.state(0, row) + slot * units;
    const float *candidate = ctx.saved[CANDIDATES].row(ctx.t, row) + slot * units;
    float *maps = ctx.saved[MAPS].row(ctx.t, row) + slot * columns;
    gates(maps, true);
    vec d_forget = {}, d_other = {};
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      const vec u = load(candidate + unit, n), given = load(d + unit, n);
      const vec of_forget = given * load(before + unit, n), of_input = given * u;
      store(d_new + unit, given * load(values.input + unit) * (1.0f - u * u), n);
      store(d + unit, given * load(values.forget + unit), n);
      store(gradients.forget + unit, of_forget);
      store(gradients.input + unit, of_input);
      d_forget += of_forget;
      d_other += of_input;
    }
    if (gate.units < units) {
      *gradients.forget = total(d_forget);
      *gradients.input = total(d_other);
    }
    gate_backward(gate, maps, values, gradients, d_maps.row(ctx.t, row) + slot * columns);
  }

  // The gradients of the rows before a block from those of the rows after it, in place of these
  // if they are the same rows; else they are overwritten too.
  void attend_backward(const Context &ctx, long block, Rows<float> d_after,
                       Rows<float> d_before) const {
    const LayerArgs &c = ctx.c;
    const long t = ctx.t, count = count_of(block), first = ctx.first * count;
    const long last = ctx.last * count;
    float *const *d_weights = ctx.d_weights.of;
    const Rows<float> normal_mlp = saved_lines(ctx, NORMAL_MLP, block, units);
    const Rows<float> normal_read = saved_lines(ctx, NORMAL_READ, block, units);
    const Rows<float> d_top = d_layer(t, block, layers - 1), reads_now = reads_of(t, block);
    for (long i = first; i < last; i++) {
      const float *scale = scales(ctx, i / count, i % count, block);
      normalize_backward(normal_mlp.row(i), scale[2], c.weights[MLP_GAIN] + block * units,
                         d_after.row(i), units, d_weights[MLP_GAIN] + block * units,
                         d_weights[MLP_OFFSET] + block * units);
      memcpy(d_top.row(i), d_after.row(i), units * sizeof(float));
      scale_and_shift(normal_read.row(i), c.weights[READ_GAIN] + block * units,
                      c.weights[READ_OFFSET] + block * units, units, reads_now.row(i));
    }
    for (long layer = layers - 1; layer > 0; layer--) {
      const Rows<float> d = d_layer(t, block, layer - 1), inner = hidden(ctx, block, layer - 1);
      product(ctx, blocks + layer, count, d_layer(t, block, layer), d, SET);
      for (long i = first; i < last; i++)
        for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES)
          store(d.row(i) + unit,
                relu_gradient(load(inner.row(i) + unit, n), load(d.row(i) + unit, n)), n);
    }
    product(ctx, blocks, count, d_layer(t, block, 0), d_after, ADD);
    const Rows<float> d_heads = lines(d_qkv, t, rows, block * width);
    for (long row = ctx.first; row < ctx.last; row++) {
      for (long i = 0; i < count; i++)
        normalize_backward(normal_read.row(row * count + i), scales(ctx, row, i, block)[1],
                           c.weights[READ_GAIN] + block * units, d_after.row(row * count + i),
                           units, d_weights[READ_GAIN] + block * units,
                           d_weights[READ_OFFSET] + block * units);
      compute_qkv(ctx, row, block);
      for (long head = 0; head < heads; head++)
        head_backward(ctx, row, block, head, d_after.row(row * count), d_heads.row(row * rows));
      for (long i = 0; i < rows; i++) {
        normalize_backward(ctx.saved[NORMAL_QKV].row(t, row) + (i * blocks + block) * width,
                           scales(ctx, row, i, block)[0], c.weights[QKV_GAIN] + block * width,
                           d_heads.row(row * rows + i), width, d_weights[QKV_GAIN] + block * width,
                           d_weights[QKV_OFFSET] + block * width);
        float *d = d_before.row(row * rows + i);
        if (i >= count) memset(d, 0, units * sizeof(float));
        else if (is_last(block)) memcpy(d, d_after.row(row * count + i), units * sizeof(float));
      }
    }
    product(ctx, block, rows, d_heads, d_before, ADD);
  }

  // The gradients of a head's q, k and v, from those of the rows after attention, `d`.
  void head_backward(const Context &ctx, long row, long block, long head, const float *d,
                     float *d_line) const {
    const long count = count_of(block), stride = blocks * width;
    const float *share = shares(ctx, row, block, head);
    auto given = [&](long i) { return d + i * units + head * value; };
    auto here = [&](long i) { return head_of(qkv + i * width, head); };
    auto to = [&](long i) { return head_of(d_line + i * stride, head); };
    for (long i = 0; i < count; i++) {
      float *d_score = d_scores + i * rows, mean = 0.0f;
      const float *of = share + i * rows;
      auto key_of = [&](long j) { return here(j).k; };
      dots(given(i), rows, [&](long j) { return here(j).v; }, value, d_score);
      for (long j = 0; j < rows; j++) mean += d_score[j] * of[j];
      for (long j = 0; j < rows; j++) d_score[j] = scale * of[j] * (d_score[j] - mean);
      weighted_sum<false>(
          to(i).q, rows, [=](long j) { return d_score[j]; }, key_of, key);
    }
    for (long i = count; i < rows; i++) memset(to(i).q, 0, key * sizeof(float));
    for (long j = 0; j < rows; j++) {
      weighted_sum<false>(
          to(j).k, count, [&](long i) { return d_scores[i * rows + j]; },
          [&](long i) { return here(i).q; }, key);
      weighted_sum<false>(
          to(j).v, count, [&](long i) { return share[i * rows + j]; }, given, value);
    }
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    const long t = ctx.t;
    auto add = [&](Rows<float> d, long columns, Rows<const float> input, long lines, float *matrix,
                   float *bias) {
      outer(d.row(ctx.first * lines), d.stride, columns, input, units, steps, ctx.first * lines,
            ctx.last * lines, ADD, {matrix, bias}, ctx.outer_workspace);
    };
    for (long block = 0; block < blocks; block++) {
      add(lines(d_qkv, t, rows, block * width), width,
          lines(ctx.saved[ROWS], t, rows, block * units), rows,
          d_weights[QKV] + block * width * units, d_weights[QKV_BIAS] + block * width);
      for (long layer = 0; layer < layers; layer++)
        add(d_layer(t, block, layer), units,
            layer ? hidden(ctx, block, layer - 1) : reads_of(t, block), count_of(block),
            d_weights[MLP] + layer * units * units, d_weights[MLP_BIAS] + layer * units);
    }
    if (!columns) return;
    add(lines(d_maps, t, slots), columns, lines(ctx.saved[SQUASHED], t, slots), slots,
        d_weights[GATE_SLOT], nullptr);
    add(d_gate.rows(t), columns, ctx.saved[ROWS].rows(t).from(slots * blocks * units), 1,
        d_weights[GATE_X], d_weights[GATE_BIAS]);
  }
};
