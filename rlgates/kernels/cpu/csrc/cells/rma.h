// The RMA: a latent z drives two LSTM layers and is written to a table of the last latents, of which
// some heads read the rows that are most similar to their keys.

struct Rma : CellDefaults {
  // Weights: of z (Hd, I + 2 d + H L), (Hd), (L, Hd), (L); of the layers (C, L), (C), (C, d) and
  // (C, L + d), (C), (C, d); of keys and strengths (H L + H, 2 d), (H L + H).
  enum {
    LOW, LOW_BIAS, LATENT, LATENT_BIAS, INPUT_1, BIAS_1, STATE_1, INPUT_2, BIAS_2, STATE_2, READ,
    READ_BIAS
  };
  // The matrices of their products: LOW by columns.
  enum {
    FROM_X, FROM_H_1, FROM_H_2, FROM_READS, TO_LATENT, TO_1, IN_1, TO_2, IN_2, TO_QUERY, COUNT
  };
  // Saved: the tanh layer; [z ; h1]; the maps of both layers; [h1 ; h2]; keys and strengths; and of
  // each row that a head reads (H, K each): where it came from, its weight, its cosine, and 1 / its
  // length.
  enum { HIDDEN, MIDDLE, MAPS_1, MAPS_2, TOP, QUERY, READ_ROWS };
  enum { H_1, C_1, H_2, C_2, TABLE, READS, STEP };  // parts of the state
  static constexpr float SHORTEST = 1e-6f;
  const long units, latent, hidden, slots, heads, count, columns, reads, low;
  const Gate gate;
  const GateRows values, gradients;
  float *const keys, *const d_keys, *const cosines, *const scratch;
  uint64_t *const ranks;
  const float **const sources;  // of a head: the rows that are not zero,
  int *const listed_rows;       // and which of those it reads they are
  // Of each row of the batch: 1 / length of the table's rows; which rows are not zero, and the
  // place of a row among them, from 1 on; how many they are; the step that wrote a row, from 1 on;
  // and whether the others are of an episode's start.
  float *const inverses;
  int *const listed, *const places, *const counts, *const written, *const restarted;
  const SequenceView d_top, d_middle;
  const SequenceView d_hidden, d_latent, d_maps_1, d_maps_2, d_query;

  static long matrix_count(const LayerArgs &) { return COUNT; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long d = c.sizes[0], latent = c.sizes[1], hidden = c.sizes[2], reads = c.sizes[4] * latent;
    const long columns = c.saved_width[MAPS_1], x = c.input_size, low = x + 2 * d + reads;
    auto columns_of_low = [&](long from, long count) {
      const float *weights = c.weights[LOW] + from;
      if (back) return PackedMatrix{weights, hidden, count, low, 1, nullptr};
      return PackedMatrix{weights, count, hidden, 1, low, nullptr};
    };
    switch (i) {
      case FROM_X: return columns_of_low(0, x);
      case FROM_H_1: return columns_of_low(x, d);
      case FROM_H_2: return columns_of_low(x + d, d);
      case FROM_READS: return columns_of_low(x + 2 * d, reads);
      case TO_LATENT: return weight_matrix(c.weights[LATENT], latent, hidden, back);
      case TO_1: return weight_matrix(c.weights[INPUT_1], columns, latent, back);
      case IN_1: return weight_matrix(c.weights[STATE_1], columns, d, back);
      case TO_2: return weight_matrix(c.weights[INPUT_2], columns, latent + d, back);
      case IN_2: return weight_matrix(c.weights[STATE_2], columns, d, back);
      default: return weight_matrix(c.weights[READ], reads + c.sizes[4], 2 * d, back);
    }
  }

  static int *integers(Workspace &workspace, long count) { return (int *)workspace.take(count); }
  static long all(const Context &ctx, long each) { return (ctx.last - ctx.first) * each; }

  Rma(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), latent(ctx.c.sizes[1]), hidden(ctx.c.sizes[2]),
        slots(ctx.c.sizes[3]), heads(ctx.c.sizes[4]), count(ctx.c.sizes[5]),
        columns(ctx.c.saved_width[MAPS_1]), reads(heads * latent),
        low(ctx.c.input_size + 2 * units + reads),
        gate(ctx.c, units), values(workspace, units), gradients(workspace, units),
        keys(workspace.take(reads)), d_keys(workspace.take(latent)),
        cosines(workspace.take(heads * slots)), scratch(workspace.take(count)),
        ranks((uint64_t *)workspace.take(2 * slots)),
        sources((const float **)workspace.take(2 * count)),
        listed_rows(integers(workspace, count)), inverses(workspace.take(all(ctx, slots))),
        listed(integers(workspace, all(ctx, slots))), places(integers(workspace, all(ctx, slots))),
        counts(integers(workspace, all(ctx, 1))), written(integers(workspace, all(ctx, slots))),
        restarted(integers(workspace, all(ctx, 1))),
        d_top(SequenceView(workspace, 2 * units, ctx.first, ctx.last, 1)),
        d_middle(SequenceView(workspace, latent + units, ctx.first, ctx.last, 1)),
        d_hidden(ctx.slab_view(hidden, workspace)), d_latent(ctx.slab_view(latent, workspace)),
        d_maps_1(ctx.slab_view(columns, workspace)), d_maps_2(ctx.slab_view(columns, workspace)),
        d_query(ctx.slab_view(reads + heads, workspace)) {}

  void forward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const long t = ctx.t;
    const Rows<float> inner = ctx.saved[HIDDEN].rows(t);
    const Rows<float> middle = ctx.saved[MIDDLE].rows(t), top = ctx.saved[TOP].rows(t);
    ctx.product(FROM_X, ctx.x.rows(t), inner, SET, c.weights[LOW_BIAS]);
    ctx.product(FROM_H_1, ctx.part(H_1), inner, ADD);
    ctx.product(FROM_H_2, ctx.part(H_2), inner, ADD);
    if (heads) ctx.product(FROM_READS, ctx.part(READS), inner, ADD);
    for (long row = ctx.first; row < ctx.last; row++)
      for (long i = 0, n = hidden; n > 0; i += LANES, n -= LANES)
        store(inner.row(row) + i, hyperbolic_tangent(load(inner.row(row) + i, n)), n);
    ctx.product(TO_LATENT, inner, middle, SET, c.weights[LATENT_BIAS]);
    ctx.product(TO_1, middle, ctx.saved[MAPS_1].rows(t), SET, c.weights[BIAS_1]);
    layer(ctx, IN_1, ctx.saved[MAPS_1], H_1, middle.from(latent));
    ctx.product(TO_2, middle, ctx.saved[MAPS_2].rows(t), SET, c.weights[BIAS_2]);
    layer(ctx, IN_2, ctx.saved[MAPS_2], H_2, top.from(units));
    for (long row = ctx.first; row < ctx.last; row++)
      memcpy(top.row(row), middle.row(row) + latent, units * sizeof(float));
    if (heads) ctx.product(TO_QUERY, top, ctx.saved[QUERY].rows(t), SET, c.weights[READ_BIAS]);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *z = middle.row(row);
      if (heads) {
        if (!t || ctx.starts_episode(row)) begin(ctx, row);
        read(ctx, row);
        const long slot = slot_of(ctx, t, row);
        memcpy(table(ctx, row) + slot * latent, z, latent * sizeof(float));
        enlist(ctx, row, slot, dot(z, z, latent));
        written[at(ctx, row) + slot] = t + 1;
        *ctx.next(STEP, row) = *ctx.state(STEP, row) + 1.0f;
      }
      float *output = ctx.outputs.row(t, row);
      memcpy(output, z, latent * sizeof(float));
      memcpy(output += latent, top.row(row), 2 * units * sizeof(float));
      memcpy(output + 2 * units, ctx.next(READS, row), reads * sizeof(float));
    }
  }

  // A layer whose projected input is in `maps`; h is also written to `to`.
  void layer(const Context &ctx, long matrix, const SequenceView &maps, long part,
             Rows<float> to) const {
    ctx.product(matrix, ctx.part(part), maps.rows(ctx.t), ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *map = maps.row(ctx.t, row);
      gate_forward(gate, map, false, values);
      lstm_forward(gate, values, map + columns - 2 * units, ctx.state(part + 1, row),
                   ctx.next(part + 1, row), ctx.next(part, row), to.row(row));
    }
  }

  // ---- the table ---------------------------------------------------------------------------------

  // It changes in place, in the final state.
  float *table(const Context &ctx, long row) const {
    return ctx.c.state_n + row * ctx.c.state_size + ctx.c.table_at;
  }
  const float *first_table(const Context &ctx, long row) const {
    return ctx.c.state_0 + row * ctx.c.state_stride + ctx.c.table_at;
  }
  const float *initial_table(const Context &ctx, long row) const {
    return ctx.c.initial ? ctx.c.initial + row * ctx.c.initial_stride + ctx.c.table_at : nullptr;
  }
  long at(const Context &ctx, long row) const { return (row - ctx.first) * slots; }

  // The slot that step t writes.
  long slot_of(const Context &ctx, long t, long row) const {
    const float step = ctx.states.row(t, row)[ctx.offset[STEP]];
    // Others become the least integer, as in PyTorch on x86.
    const long whole = step > -9e18f && step < 9e18f ? (long)step : LONG_MIN;
    const long slot = whole % slots;
    return slot < 0 ? slot + slots : slot;
  }

  // Note the length of a row, and that it is not zero.
  void enlist(const Context &ctx, long row, long slot, float squares) const {
    const float length = __builtin_sqrtf(squares);
    inverses[at(ctx, row) + slot] = length > SHORTEST ? 1.0f / length : 0.0f;
    int &place = places[at(ctx, row) + slot], &used = counts[row - ctx.first];
    if (place) return;
    place = used + 1;
    listed[at(ctx, row) + used++] = slot;
  }
  bool is_zero(const float *from) const {
    vec most = {};
    for (long i = 0, n = latent; n > 0; i += LANES, n -= LANES) {
      const vec x = load(from + i, n);
      most = x == 0.0f ? most : vec{} + 1.0f;  // NaN is not zero
    }
    return largest(most) == 0.0f;
  }

  // The table before the first step, or where an episode starts.
  void begin(const Context &ctx, long row) const {
    const bool restarts = ctx.starts_episode(row);
    const float *from = restarts ? initial_table(ctx, row) : first_table(ctx, row);
    float *to = table(ctx, row);
    int *list = listed + at(ctx, row), &used = counts[row - ctx.first];
    restarted[row - ctx.first] = restarts;
    const size_t size = latent * sizeof(float);
    if (!ctx.t && !from) memset(to, 0, slots * size);
    for (long i = 0; ctx.t && i < used; i++) memset(to + list[i] * latent, 0, size);
    used = 0;
    memset(places + at(ctx, row), 0, slots * sizeof(int));
    memset(written + at(ctx, row), 0, slots * sizeof(int));
    if (!from) return;
    memcpy(to, from, slots * size);
    for (long slot = 0; slot < slots; slot++) {
      const float *here = to + slot * latent;
      if (!is_zero(here)) enlist(ctx, row, slot, dot(here, here, latent));
    }
  }

  // Numbers that are in the order of cosines, NaN the largest.
  static uint64_t rank_of(float cosine, long place) {
    unsigned bits;
    memcpy(&bits, &cosine, sizeof bits);
    bits = cosine != cosine ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
    return (uint64_t)bits << 32 | (unsigned)place;
  }

  // What is saved of the rows that a head reads: the step that wrote one, or, of a table from before,
  // -1 minus twice its slot, and 1 less if that is the table of an episode's start.
  struct ReadRows {
    float *source, *weight, *cosine, *inverse;
  };
  ReadRows read_rows(const Context &ctx, long row, long head) const {
    float *from = ctx.saved[READ_ROWS].row(ctx.t, row) + head * count;
    const long each = heads * count;
    return {from, from + each, from + 2 * each, from + 3 * each};
  }

  void unit_key(const float *query, long head, float *key, float *inverse) const {
    const float *from = query + head * latent;
    const float length = __builtin_sqrtf(dot(from, from, latent));
    *inverse = length > SHORTEST ? 1.0f / length : 0.0f;
    for (long i = 0, n = latent; n > 0; i += LANES, n -= LANES)
      store(key + i, load(from + i, n) * *inverse, n);
  }

  void read(const Context &ctx, long row) const {
    const float *query = ctx.saved[QUERY].row(ctx.t, row), *rows = table(ctx, row);
    const float *inverse = inverses + at(ctx, row);
    const int *list = listed + at(ctx, row);
    const long used = counts[row - ctx.first];
    float *to = ctx.next(READS, row), unused;
    for (long head = 0; head < heads; head++) unit_key(query, head, keys + head * latent, &unused);
    for (long i = 0; i < used; i += 4)
      for (long head = 0; head < heads; head++) {
        float *cosine = cosines + head * slots + i;
        const long some = used - i < 4 ? used - i : 4;
        auto row_of = [=](long j) { return rows + list[i + j] * latent; };
        dots(keys + head * latent, some, row_of, latent, cosine);
        for (long j = 0; j < some; j++) cosine[j] *= inverse[list[i + j]];
      }
    for (long head = 0; head < heads; head++, to += latent) {
      const float *cosine = cosines + head * slots, *key = keys + head * latent;
      const float none = 0.0f * dot(key, key, latent);  // NaN with a key that is
      const float strength = softplus(vec{} + query[reads + head])[0];
      const ReadRows into = read_rows(ctx, row, head);
      const long above = choose(cosine, used);
      // Rows of zeros have cosine 0: they come after those of positive cosine.
      const long left = count - above, empty = left < slots - used ? left : slots - used;
      const long below = left - empty;
      if (below && above + below < used)
        std::nth_element(ranks + above, ranks + above + below, ranks + used,
                         std::greater<uint64_t>());
      for (long i = 0; i < above + below; i++) {
        const long place = (unsigned)ranks[i], slot = list[place];
        const int step = written[at(ctx, row) + slot];
        into.source[i] = step ? step - 1 : ~(2 * slot + restarted[row - ctx.first]);
        into.cosine[i] = cosine[place];
        into.inverse[i] = inverse[slot];
        into.weight[i] = strength * cosine[place];
      }
      for (long i = above + below, slot = 0; i < count; i++, slot++) {
        while (places[at(ctx, row) + slot]) slot++;
        into.source[i] = ~(2 * slot + restarted[row - ctx.first]);
        into.cosine[i] = into.inverse[i] = 0.0f;
        into.weight[i] = strength * none;
      }
      softmax(into.weight, count, scratch);
      weighted_sum<false>(
          to, above + below, [=](long i) { return into.weight[i]; },
          [=](long i) { return rows + list[(unsigned)ranks[i]] * latent; }, latent);
      const float last = into.weight[count - 1];
      for (long i = 0; i < latent && last != last; i++) to[i] = last;  // as NaN times zero
    }
  }

  // Rank places by their cosines, those of positive cosine first; how many of these may be read.
  long choose(const float *cosine, long used) const {
    for (long i = 0; i < used; i++) ranks[i] = rank_of(cosine[i], i);
    auto positive = [](uint64_t rank) { return rank >> 32 > 1u << 31; };
    const long above = std::partition(ranks, ranks + used, positive) - ranks;
    if (above <= count) return above;
    std::nth_element(ranks, ranks + count, ranks + above, std::greater<uint64_t>());
    return count;
  }

  // ---- backward ----------------------------------------------------------------------------------

  // The gradient of the final table: that of the rows which no step wrote.
  void begin_backward(const Context &ctx, long row) const {
    const LayerArgs &c = ctx.c;
    float *d = c.d_state + row * c.state_size + c.table_at;
    for (long t = c.steps - 1; t >= 0; t--) {
      memset(d + slot_of(ctx, t, row) * latent, 0, latent * sizeof(float));
      if (!ctx.starts_episode(row, t)) continue;
      if (c.d_initial) add(c.d_initial + row * c.state_size + c.table_at, d, slots * latent);
      memset(d, 0, slots * latent * sizeof(float));
      return;
    }
  }

  void backward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const long t = ctx.t;
    const Rows<float> inner = ctx.saved[HIDDEN].rows(t), d_inner = d_hidden.rows(t);
    if (heads) {
      for (long row = ctx.first; row < ctx.last; row++) {
        if (t == c.steps - 1 && c.needs_state_grad) begin_backward(ctx, row);
        read_backward(ctx, row);
      }
      ctx.product(TO_QUERY, d_query.rows(t), d_top.rows(0), SET);
    } else {
      for (long row = ctx.first; row < ctx.last; row++)
        memset(d_top.row(0, row), 0, 2 * units * sizeof(float));
    }
    for (long row = ctx.first; row < ctx.last; row++)
      add(d_top.row(0, row), ctx.d_outputs.row(t, row) + latent, 2 * units);
    layer_backward(ctx, IN_2, ctx.saved[MAPS_2], d_maps_2, H_2, d_top.rows(0).from(units));
    ctx.product(TO_2, d_maps_2.rows(t), d_middle.rows(0), SET);
    for (long row = ctx.first; row < ctx.last; row++)
      add(d_top.row(0, row), d_middle.row(0, row) + latent, units);
    layer_backward(ctx, IN_1, ctx.saved[MAPS_1], d_maps_1, H_1, d_top.rows(0));
    ctx.product(TO_1, d_maps_1.rows(t), d_latent.rows(t), SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      add(d_latent.row(t, row), d_middle.row(0, row), latent);
      add(d_latent.row(t, row), ctx.d_outputs.row(t, row), latent);
    }
    ctx.product(TO_LATENT, d_latent.rows(t), d_inner, SET);
    for (long row = ctx.first; row < ctx.last; row++)
      for (long i = 0, n = hidden; n > 0; i += LANES, n -= LANES) {
        const vec y = load(inner.row(row) + i, n);
        store(d_inner.row(row) + i, load(d_inner.row(row) + i, n) * (1.0f - y * y), n);
      }
    ctx.product(FROM_X, d_inner, ctx.d_x.rows(t), SET);
    ctx.product(FROM_H_1, d_inner, ctx.d_state(H_1), ADD);
    ctx.product(FROM_H_2, d_inner, ctx.d_state(H_2), ADD);
    if (heads) ctx.product(FROM_READS, d_inner, ctx.d_state(READS), SET);
  }

  void layer_backward(const Context &ctx, long matrix, const SequenceView &maps,
                      const SequenceView &d_maps, long part, Rows<float> d_h) const {
    const long left = columns - 2 * units;
    for (long row = ctx.first; row < ctx.last; row++) {
      float *map = maps.row(ctx.t, row), *d = d_maps.row(ctx.t, row);
      gate_forward(gate, map, true, values);
      lstm_backward(gate, values, map + left, ctx.state(part + 1, row), ctx.d_state(part).row(row),
                    d_h.row(row), gradients, d + left, ctx.d_state(part + 1).row(row));
      gate_backward(gate, map, values, gradients, d);
    }
    ctx.product(matrix, d_maps.rows(ctx.t), ctx.d_state(part), SET);
  }

  void read_backward(const Context &ctx, long row) const {
    const float *query = ctx.saved[QUERY].row(ctx.t, row);
    const float *d_output = ctx.d_outputs.row(ctx.t, row) + latent + 2 * units;
    float *d_reads = ctx.d_state(READS).row(row), *d = d_query.row(ctx.t, row);
    add(d_reads, d_output, reads);
    for (long head = 0; head < heads; head++, d_reads += latent) {
      const ReadRows of = read_rows(ctx, row, head);
      const vec raw = vec{} + query[reads + head];
      const float strength = softplus(raw)[0];
      float inverse, mean = 0.0f, d_strength = 0.0f * of.weight[count - 1];
      unit_key(query, head, keys, &inverse);
      // Rows of zeros, or nearly so, have no product with anything: they only share the weight. The
      // others are listed.
      long some = 0;
      for (long i = 0; i < count; i++) {
        float *d_row = d_source_row(ctx, row, (int)of.source[i]);
        if (d_row) add_scaled(d_row, of.weight[i], d_reads, latent);
        if (of.inverse[i] == 0.0f && of.cosine[i] == 0.0f) continue;
        sources[some] = source_row(ctx, row, (int)of.source[i]);
        listed_rows[some++] = i;
      }
      auto source_of = [=](long j) { return sources[j]; };
      dots(d_reads, some, source_of, latent, scratch);
      for (long j = 0; j < some; j++) mean += of.weight[listed_rows[j]] * scratch[j];
      for (long j = 0; j < some; j++) {
        const long i = listed_rows[j];
        const float d_logit = of.weight[i] * (scratch[j] - mean);
        d_strength += d_logit * of.cosine[i];
        scratch[j] = d_logit * strength * of.inverse[i];
        float *d_row = d_source_row(ctx, row, (int)of.source[i]);
        if (!d_row) continue;
        add_scaled(d_row, scratch[j], keys, latent);
        add_scaled(d_row, -scratch[j] * of.cosine[i] * of.inverse[i], sources[j], latent);
      }
      weighted_sum<false>(
          d_keys, some, [=](long j) { return scratch[j]; }, source_of, latent);
      const float along = dot(keys, d_keys, latent);
      for (long i = 0, n = latent; n > 0; i += LANES, n -= LANES)
        store(d + head * latent + i,
              inverse * (load(d_keys + i, n) - along * load(keys + i, n)), n);
      d[reads + head] = d_strength * sigmoid(raw)[0];
    }
  }

  // A row that was read, and its gradient: null for rows that a step wrote, which get none.
  const float *source_row(const Context &ctx, long row, int source) const {
    if (source >= 0) return ctx.saved[MIDDLE].row(source, row);
    const float *from = ~source & 1 ? initial_table(ctx, row) : first_table(ctx, row);
    return from + (~source >> 1) * latent;
  }
  float *d_source_row(const Context &ctx, long row, int source) const {
    const LayerArgs &c = ctx.c;
    if (source >= 0 || !c.needs_state_grad) return nullptr;
    float *d = ~source & 1 ? c.d_initial : c.d_state;
    return d ? d + row * c.state_size + c.table_at + (~source >> 1) * latent : nullptr;
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    const long t = ctx.t;
    const Rows<float> middle = ctx.saved[MIDDLE].rows(t);
    auto add_low = [&](long column, Rows<const float> input, long width, float *bias) {
      ctx.add(d_hidden, 0, hidden, input, width, steps, d_weights[LOW] + column, bias, low);
    };
    const long x = ctx.c.input_size;
    add_low(0, ctx.x.rows(t), x, d_weights[LOW_BIAS]);
    add_low(x, ctx.part(H_1), units, nullptr);
    add_low(x + units, ctx.part(H_2), units, nullptr);
    if (heads) add_low(x + 2 * units, ctx.part(READS), reads, nullptr);
    ctx.add(d_latent, 0, latent, ctx.saved[HIDDEN].rows(t), hidden, steps, d_weights[LATENT],
            d_weights[LATENT_BIAS]);
    ctx.add(d_maps_1, 0, columns, middle, latent, steps, d_weights[INPUT_1], d_weights[BIAS_1]);
    ctx.add(d_maps_1, 0, columns, ctx.part(H_1), units, steps, d_weights[STATE_1], nullptr);
    ctx.add(d_maps_2, 0, columns, middle, latent + units, steps, d_weights[INPUT_2],
            d_weights[BIAS_2]);
    ctx.add(d_maps_2, 0, columns, ctx.part(H_2), units, steps, d_weights[STATE_2], nullptr);
    if (heads)
      ctx.add(d_query, 0, reads + heads, ctx.saved[TOP].rows(t), 2 * units, steps, d_weights[READ],
              d_weights[READ_BIAS]);
  }
};
