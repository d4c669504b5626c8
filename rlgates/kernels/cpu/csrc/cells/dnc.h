// The DNC: an LSTM that writes to a memory and reads from it, by content, by usage and by the order
// of writing.

// Order the slots by rising keys, NaN last; slots of equal keys stay in order. The orders are
// numbers of slots, as floats; `workspace` holds as many.
NOINLINE void sort_rising(const float *keys, long count, float *order, float *workspace) {
  constexpr long RUN = 16;
  auto before = [keys](float a, float b) {
    const float x = keys[(long)a], y = keys[(long)b];
    return x < y || (x == x && y != y);
  };
  for (long first = 0; first < count; first += RUN)
    for (long i = first; i < count && i < first + RUN; i++) {
      long place = i;
      for (; place > first && before(i, order[place - 1]); place--) order[place] = order[place - 1];
      order[place] = i;
    }
  for (long run = RUN; run < count; run *= 2) {
    memcpy(workspace, order, count * sizeof(float));
    for (long first = 0; first < count; first += 2 * run) {
      const long middle = first + run < count ? first + run : count;
      const long last = middle + run < count ? middle + run : count;
      for (long i = first, left = first, right = middle; i < last; i++) {
        const bool takes_right =
            left == middle || (right < last && before(workspace[right], workspace[left]));
        order[i] = workspace[takes_right ? right++ : left++];
      }
    }
  }
}

struct Dnc : CellDefaults {
  // Weights: (C, I), (C), (C, R W + d) for the last reads and h; the interface (Z, d), (Z); the
  // output (O, d + R W), (O).
  enum { INPUT, BIAS, STATE, CONTROL, CONTROL_BIAS, OUT, OUT_BIAS };
  // Saved: the maps of the controller; [reads ; h] before, [h ; reads] after; what h says to the
  // memory, (Z); weights by content of the write heads and the read heads, (K + R, N); allocation
  // and the order of usage for each write head, (K, N); the output before it is clipped.
  enum { MAPS, BEFORE, AFTER, CONTROLS, CONTENT, ALLOCATED, ORDER, RAW };
  enum { H, C, MEMORY, READ, WRITE, LINK, PRECEDENCE, USAGE, WORDS };  // parts of the state
  static constexpr long PROJECTION = MAPS;
  static constexpr float EPSILON = 1e-6f;
  const long units, slots, word, reads, writes, outs, columns, said, modes;
  const float clip;  // 0 for none
  const Gate gate;
  const GateRows values, gradients;
  float *const shifted, *const norms, *const slot_row, *const other_row;  // (N)
  float *const usages, *const d_content, *const d_read, *const next_state;  // (K N), (K + R, N)
  const SequenceView d_after, d_before, d_controls, d_outs;

  static long matrix_count(const LayerArgs &) { return 3; }
  static PackedMatrix matrix(const LayerArgs &c, long i, bool back) {
    const long d = c.sizes[0], both = d + c.sizes[2] * c.sizes[3];
    if (i == 0) return weight_matrix(c.weights[STATE], c.projected_width, both, back);
    if (i == 1) return weight_matrix(c.weights[CONTROL], c.saved_width[CONTROLS], d, back);
    return weight_matrix(c.weights[OUT], c.output_size, both, back);
  }

  Dnc(const Context &ctx, Workspace &workspace)
      : units(ctx.c.sizes[0]), slots(ctx.c.sizes[1]), word(ctx.c.sizes[2]), reads(ctx.c.sizes[3]),
        writes(ctx.c.sizes[4]), outs(ctx.c.output_size), columns(ctx.c.projected_width),
        said(ctx.c.saved_width[CONTROLS]), modes(1 + 2 * writes), clip(ctx.c.constant),
        gate(ctx.c, units), values(workspace, units), gradients(workspace, units),
        shifted(workspace.take(slots)), norms(workspace.take(slots)),
        slot_row(workspace.take(slots > modes ? slots : modes)), other_row(workspace.take(slots)),
        usages(workspace.take(writes * slots)),
        d_content(workspace.take((writes + reads) * slots)), d_read(workspace.take(reads * slots)),
        next_state(workspace.take(ctx.c.state_size)),
        d_after(SequenceView(workspace, units + reads * word, ctx.first, ctx.last, 1)),
        d_before(SequenceView(workspace, units + reads * word, ctx.first, ctx.last, 1)),
        d_controls(ctx.slab_view(said, workspace)), d_outs(ctx.slab_view(outs, workspace)) {}

  // What the controller says to the memory, or gradients of it.
  struct Control {
    float *vectors, *erase, *free, *allocate, *gate, *modes, *write_keys, *write_strengths,
        *read_keys, *read_strengths;
  };
  Control control_of(float *row) const {
    Control c;
    c.vectors = row;
    c.erase = c.vectors + writes * word;
    c.free = c.erase + writes * word;
    c.allocate = c.free + reads;
    c.gate = c.allocate + writes;
    c.modes = c.gate + writes;
    c.write_keys = c.modes + reads * modes;
    c.write_strengths = c.write_keys + writes * word;
    c.read_keys = c.write_strengths + writes;
    c.read_strengths = c.read_keys + reads * word;
    return c;
  }

  static float length(const float *row, long units) {
    return __builtin_sqrtf(dot(row, row, units) + EPSILON);
  }
  void clip_row(float *row, long count) const {
    for (long i = 0, n = count; clip > 0 && n > 0; i += LANES, n -= LANES)
      store(row + i, clamp(load(row + i, n), clip), n);
  }
  // The gradient through the clip of a raw value.
  vec unclipped(vec raw, vec d) const {
    return clip > 0 ? ((raw < 0.0f ? -raw : raw) <= clip ? d : vec{}) : d;
  }

  // ---- forward -----------------------------------------------------------------------------------

  void forward(const Context &ctx) const {
    const LayerArgs &c = ctx.c;
    const long t = ctx.t, words = reads * word;
    const Rows<float> maps = ctx.inputs.rows(t), before = ctx.saved[BEFORE].rows(t);
    const Rows<float> after = ctx.saved[AFTER].rows(t), controls = ctx.saved[CONTROLS].rows(t);
    for (long row = ctx.first; row < ctx.last; row++) {
      memcpy(before.row(row), ctx.state(WORDS, row), words * sizeof(float));
      memcpy(before.row(row) + words, ctx.state(H, row), units * sizeof(float));
    }
    ctx.product(0, before, maps, ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      float *h = after.row(row);
      gate_forward(gate, maps.row(row), false, values);
      lstm_forward(gate, values, maps.row(row) + columns - 2 * units, ctx.state(C, row),
                   ctx.next(C, row), h, h);
      clip_row(h, units);
      clip_row(ctx.next(C, row), units);
      memcpy(ctx.next(H, row), h, units * sizeof(float));
    }
    ctx.product(1, after, controls, SET, c.weights[CONTROL_BIAS]);
    for (long row = ctx.first; row < ctx.last; row++) {
      const Control say = control_of(controls.row(row));
      for (long i = 0, n = say.modes - say.erase; n > 0; i += LANES, n -= LANES)
        store(say.erase + i, sigmoid(load(say.erase + i, n)), n);
      for (long head = 0; head < reads; head++)
        softmax(say.modes + head * modes, modes, slot_row);
      use_memory(ctx, row, say, ctx.states.row(t + 1, row));
      memcpy(after.row(row) + units, ctx.next(WORDS, row), words * sizeof(float));
    }
    const SequenceView &raw = ctx.saved[RAW];
    ctx.product(2, after, raw.rows(t), SET, c.weights[OUT_BIAS]);
    for (long row = ctx.first; row < ctx.last; row++) {
      memcpy(ctx.outputs.row(t, row), raw.row(t, row), outs * sizeof(float));
      clip_row(ctx.outputs.row(t, row), outs);
    }
  }

  // The weights of some heads by content: the softmax of softplus(strength) times the cosine.
  void by_content(const float *keys, const float *strengths, long heads, const float *memory,
                  float *weights) const {
    for (long slot = 0; slot < slots; slot++) norms[slot] = length(memory + slot * word, word);
    for (long head = 0; head < heads; head++, keys += word, weights += slots) {
      const float norm = length(keys, word), sharpness = softplus(vec{} + strengths[head])[0];
      for (long slot = 0; slot < slots; slot++)
        weights[slot] = dot(keys, memory + slot * word, word);
      for (long slot = 0, n = slots; n > 0; slot += LANES, n -= LANES)
        store(weights + slot,
              sharpness * load(weights + slot, n) / (norm * load(norms + slot, n) + EPSILON), n);
      softmax(weights, slots, slot_row);
    }
  }

  // Usage is shifted from 0, so that products of it have gradients.
  void shift(const float *usage) const {
    for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES)
      store(shifted + i, EPSILON + (1.0f - EPSILON) * load(usage + i, n), n);
  }
  // The product of the usages so far, times one more.
  static float times(float product, float usage) {
    if (usage < 0.0f) return __builtin_nanf("");  // as by logarithms
    product *= usage;
    return product < 1e-30f ? 0.0f : product;  // no denormals
  }

  void use_memory(const Context &ctx, long row, const Control &say, float *after) const {
    const long t = ctx.t;
    const float *memory = ctx.state(MEMORY, row), *read = ctx.state(READ, row);
    const float *write = ctx.state(WRITE, row), *usage = ctx.state(USAGE, row);
    float *next_usage = after + ctx.offset[USAGE], *content = ctx.saved[CONTENT].row(t, row);
    float *next_write = after + ctx.offset[WRITE], *next_memory = after + ctx.offset[MEMORY];
    for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
      vec unwritten = vec{} + 1.0f, kept = vec{} + 1.0f;
      for (long k = 0; k < writes; k++) unwritten *= 1.0f - load(write + k * slots + i, n);
      for (long r = 0; r < reads; r++) kept *= 1.0f - say.free[r] * load(read + r * slots + i, n);
      const vec u = load(usage + i, n);
      store(next_usage + i, (u + (1.0f - u) * (1.0f - unwritten)) * kept, n);
    }
    by_content(say.write_keys, say.write_strengths, writes, memory, content);
    memcpy(usages, next_usage, slots * sizeof(float));
    for (long k = 0; k < writes; k++) {
      float *allocated = ctx.saved[ALLOCATED].row(t, row) + k * slots;
      float *order = ctx.saved[ORDER].row(t, row) + k * slots;
      shift(usages);
      sort_rising(shifted, slots, order, slot_row);
      float before = 1.0f;
      for (long j = 0; j < slots; j++) {
        const long slot = order[j];
        allocated[slot] = (1.0f - shifted[slot]) * before;
        before = times(before, shifted[slot]);
      }
      const float allocate = say.allocate[k], gate = say.gate[k];
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
        const vec a = load(allocated + i, n), u = load(usages + i, n);
        const vec by_key = load(content + k * slots + i, n);
        store(next_write + k * slots + i, gate * (allocate * a + (1.0f - allocate) * by_key), n);
        store(usages + i, u + (1.0f - u) * (allocate * gate) * a, n);
      }
    }
    for (long slot = 0; slot < slots; slot++)
      for (long i = 0, n = word; n > 0; i += LANES, n -= LANES) {
        vec kept = vec{} + 1.0f, added = {};
        for (long k = 0; k < writes; k++) {
          const float weight = next_write[k * slots + slot];
          kept *= 1.0f - weight * load(say.erase + k * word + i, n);
          added += weight * load(say.vectors + k * word + i, n);
        }
        const long place = slot * word + i;
        store(next_memory + place, load(memory + place, n) * kept + added, n);
      }
    for (long k = 0; k < writes; k++) link(ctx, row, k, after);
    read_memory(ctx, row, say, after);
  }

  // The links of a write head, and its precedence.
  void link(const Context &ctx, long row, long k, float *after) const {
    const float *links = ctx.state(LINK, row) + k * slots * slots;
    const float *precedence = ctx.state(PRECEDENCE, row) + k * slots;
    const float *write = after + ctx.offset[WRITE] + k * slots;
    float *next = after + ctx.offset[LINK] + k * slots * slots;
    float *next_precedence = after + ctx.offset[PRECEDENCE] + k * slots;
    for (long to = 0; to < slots; to++, links += slots, next += slots) {
      const float weight = write[to];
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES)
        store(next + i, (1.0f - weight - load(write + i, n)) * load(links + i, n) +
                            weight * load(precedence + i, n), n);
      next[to] = 0.0f;
    }
    const float left = 1.0f - sum_of(write);
    for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES)
      store(next_precedence + i, left * load(precedence + i, n) + load(write + i, n), n);
  }
  float sum_of(const float *row) const {
    vec sum = {};
    for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) sum += load(row + i, n);
    return total(sum);
  }

  void read_memory(const Context &ctx, long row, const Control &say, float *after) const {
    const float *memory = after + ctx.offset[MEMORY], *read = ctx.state(READ, row);
    float *content = ctx.saved[CONTENT].row(ctx.t, row) + writes * slots;
    float *next = after + ctx.offset[READ], *words = after + ctx.offset[WORDS];
    by_content(say.read_keys, say.read_strengths, reads, memory, content);
    for (long head = 0; head < reads; head++, read += slots, next += slots, content += slots) {
      const float *mode = say.modes + head * modes;
      memset(next, 0, slots * sizeof(float));
      add_scaled(next, mode[2 * writes], content, slots);
      for (long k = 0; k < writes; k++) {
        const float *links = after + ctx.offset[LINK] + k * slots * slots;
        for (long i = 0; i < slots; i++) {
          add_scaled(next, mode[k] * read[i], links + i * slots, slots);
          slot_row[i] = dot(links + i * slots, read, slots);
        }
        add_scaled(next, mode[writes + k], slot_row, slots);
      }
      float *to = words + head * word;
      memset(to, 0, word * sizeof(float));
      for (long slot = 0; slot < slots; slot++)
        add_scaled(to, next[slot], memory + slot * word, word);
    }
  }

  // ---- backward ----------------------------------------------------------------------------------

  void backward(const Context &ctx) const {
    const long t = ctx.t, words = reads * word, left = columns - 2 * units;
    const Rows<float> maps = ctx.saved[MAPS].rows(t), d_maps = ctx.d_inputs.rows(t);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *given = ctx.d_outputs.row(t, row), *raw = ctx.saved[RAW].row(t, row);
      float *d = d_outs.row(t, row);
      for (long i = 0, n = outs; n > 0; i += LANES, n -= LANES)
        store(d + i, unclipped(load(raw + i, n), load(given + i, n)), n);
    }
    ctx.product(2, d_outs.rows(t), d_after.rows(0), SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      add(ctx.d_state(WORDS).row(row), d_after.row(0, row) + units, words);
      use_memory_backward(ctx, row);
    }
    ctx.product(1, d_controls.rows(t), d_after.rows(0), ADD);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *map = maps.row(row) + left, *before = ctx.state(C, row);
      float *d_h = ctx.d_state(H).row(row), *d_c = ctx.d_state(C).row(row);
      float *d_output = d_after.row(0, row);
      gate_forward(gate, maps.row(row), true, values);
      for (long unit = 0, n = clip > 0 ? units : 0; n > 0; unit += LANES, n -= LANES) {
        const vec c = load(values.forget + unit) * load(before + unit, n) +
                      load(values.input + unit) * load(map + unit, n);
        const vec h = load(map + units + unit, n) * hyperbolic_tangent(c);
        store(d_c + unit, unclipped(c, load(d_c + unit, n)), n);
        store(d_h + unit, unclipped(h, load(d_h + unit, n)), n);
        store(d_output + unit, unclipped(h, load(d_output + unit, n)), n);
      }
      lstm_backward(gate, values, map, before, d_h, d_output, gradients, d_maps.row(row) + left,
                    d_c);
      gate_backward(gate, maps.row(row), values, gradients, d_maps.row(row));
    }
    if (!ctx.needs_d_state()) return;
    ctx.product(0, d_maps, d_before.rows(0), SET);
    for (long row = ctx.first; row < ctx.last; row++) {
      const float *d = d_before.row(0, row);
      memcpy(ctx.d_state(WORDS).row(row), d, words * sizeof(float));
      memcpy(ctx.d_state(H).row(row), d + words, units * sizeof(float));
    }
  }

  // The gradients of what the controller says, and of the state before, in place.
  void use_memory_backward(const Context &ctx, long row) const {
    const Control say = control_of(ctx.saved[CONTROLS].row(ctx.t, row));
    const Control d = control_of(d_controls.row(ctx.t, row));
    memset(d.vectors, 0, said * sizeof(float));
    // Where an episode starts, the state after this step was replaced: it is computed again.
    const bool replaced = ctx.t + 1 < ctx.c.steps && ctx.starts_episode(row, ctx.t + 1);
    float *after = replaced ? next_state : ctx.states.row(ctx.t + 1, row);
    if (replaced) use_memory(ctx, row, say, after);
    const float *content = ctx.saved[CONTENT].row(ctx.t, row);
    float *d_memory = ctx.d_state(MEMORY).row(row), *d_write = ctx.d_state(WRITE).row(row);
    read_memory_backward(ctx, row, say, d, after);
    by_content_backward(say.read_keys, say.read_strengths, reads, after + ctx.offset[MEMORY],
                        content + writes * slots, d_content + writes * slots, d.read_keys,
                        d.read_strengths, d_memory);
    for (long k = 0; k < writes; k++) link_backward(ctx, row, k, after);
    write_backward(ctx, row, say, d, after);
    for (long k = 0; k < writes; k++) {
      const float *d_w = d_write + k * slots, *a = ctx.saved[ALLOCATED].row(ctx.t, row) + k * slots;
      const float *by_key = content + k * slots, allocate = say.allocate[k], gate = say.gate[k];
      vec d_gate = {}, d_allocate = {};
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
        const vec given = load(d_w + i, n), free = load(a + i, n), key = load(by_key + i, n);
        d_gate += given * (allocate * free + (1.0f - allocate) * key);
        d_allocate += given * (free - key);
        store(d_content + k * slots + i, gate * (1.0f - allocate) * given, n);
      }
      d.gate[k] = total(d_gate);
      d.allocate[k] = gate * total(d_allocate);
    }
    by_content_backward(say.write_keys, say.write_strengths, writes, ctx.state(MEMORY, row),
                        content, d_content, d.write_keys, d.write_strengths, d_memory);
    allocate_backward(ctx, row, say, d, after);
    usage_backward(ctx, row, say, d);
    memset(d_write, 0, writes * slots * sizeof(float));  // the next usage does not see it
    for (long i = 0, n = say.modes - say.erase; n > 0; i += LANES, n -= LANES) {
      const vec y = load(say.erase + i, n);
      store(d.erase + i, load(d.erase + i, n) * y * (1.0f - y), n);
    }
  }

  // From the words read to the read weights, and from these to the links and the last ones.
  void read_memory_backward(const Context &ctx, long row, const Control &say, const Control &d,
                            const float *after) const {
    const float *memory = after + ctx.offset[MEMORY], *read = ctx.state(READ, row);
    const float *next = after + ctx.offset[READ], *d_words = ctx.d_state(WORDS).row(row);
    const float *content = ctx.saved[CONTENT].row(ctx.t, row) + writes * slots;
    float *d_memory = ctx.d_state(MEMORY).row(row), *d_next = ctx.d_state(READ).row(row);
    memset(d_read, 0, reads * slots * sizeof(float));
    for (long head = 0; head < reads; head++, d_next += slots) {
      const long at = head * slots;
      const float *mode = say.modes + head * modes, *given = d_words + head * word;
      float *d_mode = d.modes + head * modes;
      for (long slot = 0; slot < slots; slot++) {
        d_next[slot] += dot(given, memory + slot * word, word);
        add_scaled(d_memory + slot * word, next[at + slot], given, word);
      }
      d_mode[2 * writes] = dot(d_next, content + at, slots);
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES)
        store(d_content + writes * slots + at + i, mode[2 * writes] * load(d_next + i, n), n);
      for (long k = 0; k < writes; k++) {
        const float *links = after + ctx.offset[LINK] + k * slots * slots;
        float *d_links = ctx.d_state(LINK).row(row) + k * slots * slots;
        memset(other_row, 0, slots * sizeof(float));
        for (long i = 0; i < slots; i++, links += slots, d_links += slots) {
          slot_row[i] = dot(links, d_next, slots);
          add_scaled(other_row, d_next[i], links, slots);
          add_scaled(d_links, mode[k] * read[at + i], d_next, slots);
          add_scaled(d_links, mode[writes + k] * d_next[i], read + at, slots);
        }
        d_mode[k] = dot(read + at, slot_row, slots);
        d_mode[writes + k] = dot(read + at, other_row, slots);
        add_scaled(d_read + at, mode[k], slot_row, slots);
        add_scaled(d_read + at, mode[writes + k], other_row, slots);
      }
      const float mean = dot(mode, d_mode, modes);
      for (long i = 0; i < modes; i++) d_mode[i] = mode[i] * (d_mode[i] - mean);
    }
    memcpy(ctx.d_state(READ).row(row), d_read, reads * slots * sizeof(float));
  }

  // From the gradients of weights by content, which are overwritten.
  void by_content_backward(const float *keys, const float *strengths, long heads,
                           const float *memory, const float *weights, float *d_weights,
                           float *d_keys, float *d_strengths, float *d_memory) const {
    for (long slot = 0; slot < slots; slot++) norms[slot] = length(memory + slot * word, word);
    for (long head = 0; head < heads; head++) {
      const float norm = length(keys, word), mean = dot(weights, d_weights, slots);
      const vec strength = vec{} + strengths[head];
      const float sharpness = softplus(strength)[0], slope = sigmoid(strength)[0];
      float d_sharpness = 0.0f, d_norm = 0.0f;
      for (long slot = 0; slot < slots; slot++) {
        const float *row = memory + slot * word;
        const float product = dot(keys, row, word), size = norm * norms[slot] + EPSILON;
        const float d_score = weights[slot] * (d_weights[slot] - mean), cosine = product / size;
        const float d_product = d_score * sharpness / size, d_size = -d_product * cosine;
        d_sharpness += d_score * cosine;
        d_norm += d_size * norms[slot];
        float *d_row = d_memory + slot * word;
        add_scaled(d_keys, d_product, row, word);
        add_scaled(d_row, d_product, keys, word);
        add_scaled(d_row, d_size * norm / norms[slot], row, word);
      }
      add_scaled(d_keys, d_norm / norm, keys, word);
      d_strengths[head] = d_sharpness * slope;
      keys += word, d_keys += word, weights += slots, d_weights += slots;
    }
  }

  void link_backward(const Context &ctx, long row, long k, const float *after) const {
    const float *links = ctx.state(LINK, row) + k * slots * slots;
    const float *precedence = ctx.state(PRECEDENCE, row) + k * slots;
    const float *write = after + ctx.offset[WRITE] + k * slots;
    float *d_links = ctx.d_state(LINK).row(row) + k * slots * slots;
    float *d_precedence = ctx.d_state(PRECEDENCE).row(row) + k * slots;
    float *d_write = ctx.d_state(WRITE).row(row) + k * slots;
    const float less = dot(d_precedence, precedence, slots), left = 1.0f - sum_of(write);
    for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
      const vec given = load(d_precedence + i, n);
      store(d_write + i, load(d_write + i, n) + given - less, n);
      store(d_precedence + i, left * given, n);
    }
    for (long to = 0; to < slots; to++, links += slots, d_links += slots) {
      const float weight = write[to];
      vec sum = {};
      d_links[to] = 0.0f;
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
        const vec given = load(d_links + i, n), old = load(links + i, n);
        sum += given * (load(precedence + i, n) - old);
        store(d_write + i, load(d_write + i, n) - given * old, n);
        store(d_precedence + i, load(d_precedence + i, n) + weight * given, n);
        store(d_links + i, (1.0f - weight - load(write + i, n)) * given, n);
      }
      d_write[to] += total(sum);
    }
  }

  // Erase and add.
  void write_backward(const Context &ctx, long row, const Control &say, const Control &d,
                      const float *after) const {
    const float *memory = ctx.state(MEMORY, row), *write = after + ctx.offset[WRITE];
    float *d_memory = ctx.d_state(MEMORY).row(row), *d_write = ctx.d_state(WRITE).row(row);
    for (long slot = 0; slot < slots; slot++)
      for (long i = 0, n = word; n > 0; i += LANES, n -= LANES) {
        const long place = slot * word + i;
        const vec given = load(d_memory + place, n), old = load(memory + place, n);
        vec kept = vec{} + 1.0f;
        for (long k = 0; k < writes; k++) {
          const float weight = write[k * slots + slot];
          const long at = k * word + i;
          const vec erase = load(say.erase + at, n);
          vec d_erased = -given * old;
          for (long other = 0; other < writes; other++)
            if (other != k)
              d_erased *= 1.0f - write[other * slots + slot] * load(say.erase + other * word + i, n);
          kept *= 1.0f - weight * erase;
          store(d.vectors + at, load(d.vectors + at, n) + weight * given, n);
          store(d.erase + at, load(d.erase + at, n) + weight * d_erased, n);
          d_write[k * slots + slot] +=
              total(given * load(say.vectors + at, n) + d_erased * erase);
        }
        store(d_memory + place, kept * given, n);
      }
  }

  // From the gradients of the write weights, by allocation, to those of usage.
  void allocate_backward(const Context &ctx, long row, const Control &say, const Control &d,
                         const float *after) const {
    const float *write_gradients = ctx.d_state(WRITE).row(row);
    float *d_usage = norms;  // of the usage that a head sees
    const float *allocated = ctx.saved[ALLOCATED].row(ctx.t, row);
    memset(d_usage, 0, slots * sizeof(float));
    memcpy(usages, after + ctx.offset[USAGE], slots * sizeof(float));
    for (long k = 1; k < writes; k++)  // the usage that each head sees
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
        const vec u = load(usages + (k - 1) * slots + i, n);
        const vec a = load(allocated + (k - 1) * slots + i, n);
        const float share = say.allocate[k - 1] * say.gate[k - 1];
        store(usages + k * slots + i, u + (1.0f - u) * share * a, n);
      }
    for (long k = writes - 1; k >= 0; k--) {
      const float *order = ctx.saved[ORDER].row(ctx.t, row) + k * slots;
      const float *usage = usages + k * slots, *a = allocated + k * slots;
      float *d_a = slot_row, *before = other_row;
      const float share = say.allocate[k] * say.gate[k];
      vec d_share = {};
      for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
        vec given = share * load(write_gradients + k * slots + i, n);
        if (k < writes - 1) {  // later heads see a usage that this one raises
          const vec d_u = load(d_usage + i, n), unused = 1.0f - load(usage + i, n);
          const vec free = load(a + i, n);
          d_share += d_u * unused * free;
          given += d_u * unused * share;
          store(d_usage + i, d_u * (1.0f - share * free), n);
        }
        store(d_a + i, given, n);
      }
      d.allocate[k] += total(d_share) * say.gate[k];
      d.gate[k] += total(d_share) * say.allocate[k];
      shift(usage);
      float product = 1.0f, rest = 0.0f;
      for (long j = 0; j < slots; j++) {
        before[j] = product;
        product = times(product, shifted[(long)order[j]]);
      }
      for (long j = slots - 1; j >= 0; j--) {
        const long slot = order[j];
        const float d_shifted = rest / shifted[slot] - d_a[slot] * before[j];
        rest += d_a[slot] * (1.0f - shifted[slot]) * before[j];
        d_usage[slot] += (1.0f - EPSILON) * d_shifted;
      }
    }
    add(ctx.d_state(USAGE).row(row), d_usage, slots);
  }

  void usage_backward(const Context &ctx, long row, const Control &say, const Control &d) const {
    const float *read = ctx.state(READ, row), *write = ctx.state(WRITE, row);
    const float *usage = ctx.state(USAGE, row);
    float *d_usage = ctx.d_state(USAGE).row(row), *d_last = ctx.d_state(READ).row(row);
    for (long i = 0, n = slots; n > 0; i += LANES, n -= LANES) {
      vec unwritten = vec{} + 1.0f, kept = vec{} + 1.0f;
      for (long k = 0; k < writes; k++) unwritten *= 1.0f - load(write + k * slots + i, n);
      for (long r = 0; r < reads; r++) kept *= 1.0f - say.free[r] * load(read + r * slots + i, n);
      const vec u = load(usage + i, n), given = load(d_usage + i, n);
      const vec raised = u + (1.0f - u) * (1.0f - unwritten);
      for (long r = 0; r < reads; r++) {
        const long at = r * slots + i;
        vec d_freed = -given * raised;
        for (long other = 0; other < reads; other++)
          if (other != r) d_freed *= 1.0f - say.free[other] * load(read + other * slots + i, n);
        d.free[r] += total(d_freed * load(read + at, n));
        store(d_last + at, load(d_last + at, n) + d_freed * say.free[r], n);
      }
      store(d_usage + i, given * kept * unwritten, n);
    }
  }

  void weights(const Context &ctx, long steps) const {
    float *const *d_weights = ctx.d_weights.of;
    const long t = ctx.t, both = units + reads * word;
    ctx.add(ctx.d_inputs, 0, columns, ctx.saved[BEFORE].rows(t), both, steps, d_weights[STATE],
            nullptr);
    ctx.add(d_controls, 0, said, ctx.saved[AFTER].rows(t), units, steps, d_weights[CONTROL],
            d_weights[CONTROL_BIAS]);
    ctx.add(d_outs, 0, outs, ctx.saved[AFTER].rows(t), both, steps, d_weights[OUT],
            d_weights[OUT_BIAS]);
  }
};
