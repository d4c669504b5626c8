// Memories of keys and values, forward and backward: for each head a matrix S with a row a value,
//
//     S' = S diag(a) - (S r) e^T + v k^T,   y = S' q
//
// with vectors a, r, e, k and q of the step. So the rows of S are linear systems that read the same
// vectors, and ROWS of them at a time run through a chunk of steps, while they stay in the cache.
// Of the memories only those before each chunk are written; the backward pass computes the others
// again. No gradient is a sum over heads or over rows of the batch, so these run on any thread.

constexpr int ROWS = 4;  // as many as `four_totals` adds up

// One chunk of a head, in vectors of `width` numbers: those of a key, then zeros (or any decays).
struct MemoryChunk {
  enum { QUERY, KEY, DECAY, REMOVAL, RATE, VECTORS };
  const MemoryArgs &s;
  const long keys, values, width, matrix;  // matrix: numbers of one memory
  float *vectors[VECTORS], *d_vectors[VECTORS];  // (CHUNK, width)
  float *states;     // (CHUNK + 1, ROWS, width)
  float *begin, *d;  // (ROWS, width): where an episode starts, and gradients
  float *removed;    // (CHUNK, ROWS)
  long row, head, first, steps;
  bool start[CHUNK];

  MemoryChunk(const MemoryArgs &s, bool back, Workspace &memory)
      : s(s), keys(s.key_size), values(s.value_size), width(padded(keys)), matrix(keys * values) {
    for (float *&vector : vectors) vector = memory.take(CHUNK * width);
    states = memory.take((back ? CHUNK + 1 : 1) * ROWS * width);
    if (!back) return;
    for (float *&vector : d_vectors) vector = memory.take(CHUNK * width);
    for (float **rows : {&begin, &d}) *rows = memory.take(ROWS * width);
    removed = memory.take(CHUNK * ROWS);
  }

  // Where the numbers of a step are: one of the head, those of a key and those of a value.
  long place(long t) const { return ((first + t) * s.batch_size + row) * s.heads + head; }
  long key_at(long t) const { return place(t) * keys; }
  long value_at(long t) const { return place(t) * values; }
  long memory_at(long stride) const { return row * stride + head * matrix; }
  const float *initial(long at) const {
    return s.initial ? s.initial + memory_at(s.initial_stride) + at * keys : nullptr;
  }
  float *kept(long chunk) const {
    return s.kept + chunk * s.batch_size * s.width + memory_at(s.width);
  }

  void move_to(long chunk) {
    first = chunk * CHUNK;
    steps = s.steps - first < CHUNK ? s.steps - first : CHUNK;
    const float *const from[] = {s.q, s.k, s.decay, s.removal, s.rate};
    for (long t = 0; t < steps; t++) {
      start[t] = s.episode_starts && s.episode_starts[(first + t) * s.batch_size + row];
      for (long i = 0; i < VECTORS; i++) {
        if (!from[i]) continue;
        float *to = vectors[i] + t * width;
        if (i == DECAY && s.decays_alike)
          for (long key = 0; key < width; key += LANES) store(to + key, vec{} + s.decay[place(t)]);
        else
          take<1>(to, from[i] + key_at(t));
      }
    }
  }

  // Rows of a memory, or zeros, and back.
  template <int count> void take(float *to, const float *from) const {
    for (long i = 0; i < count; i++)
      for (long key = 0, n = keys; n > 0; key += LANES, n -= LANES)
        store(to + i * width + key, from ? load(from + i * keys + key, n) : vec{});
  }
  template <int count> void give(float *to, const float *from) const {
    for (long i = 0; i < count; i++)
      for (long key = 0, n = keys; n > 0; key += LANES, n -= LANES)
        store(to + i * keys + key, load(from + i * width + key), n);
  }
};

// The sums of each of `count` vectors.
template <int count> INLINE void totals(const vec *sums, float *to) {
  if (count == ROWS) {
    const vec all = four_totals(sums);
    for (int i = 0; i < ROWS; i++) to[i] = all[i];
  } else {
    for (int i = 0; i < count; i++) to[i] = total(sums[i]);
  }
}

// Numbers in vectors of their own: a compiler has to assume that a store of a vector changes memory.
template <int count> struct Scales {
  vec of[count];
  explicit Scales(const float *from) {
    for (int i = 0; i < count; i++) of[i] = vec{} + from[i];
  }
};

// `count` rows of a memory, from row `at` on, from `before` to `next`, which may be the same; their
// y and what is removed from them, unless these are null.
template <int count, bool decays, bool removes>
INLINE void advance(const MemoryChunk &m, long t, long at, const float *before, float *next,
                    float *y, float *removed) {
  const long width = m.width;
  const float *vectors[m.VECTORS];
  for (long i = 0; i < m.VECTORS; i++) vectors[i] = m.vectors[i] + t * width;
  const Scales<count> value(m.s.v + m.value_at(t) + at);
  float out[count] = {};
  if (removes) {
    vec sums[count] = {};
    for (long key = 0; key < width; key += LANES) {
      const vec removal = load(vectors[m.REMOVAL] + key);
#pragma GCC unroll 4
      for (int i = 0; i < count; i++) sums[i] += load(before + i * width + key) * removal;
    }
    totals<count>(sums, out);
    for (int i = 0; removed && i < count; i++) removed[i] = out[i];
  }
  const Scales<count> taken(out);
  vec sums[count] = {};
  for (long key = 0; key < width; key += LANES) {
    const vec k = load(vectors[m.KEY] + key), q = load(vectors[m.QUERY] + key);
    const vec decay = decays ? load(vectors[m.DECAY] + key) : vec{};
    const vec rate = removes ? load(vectors[m.RATE] + key) : vec{};
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
      vec x = load(before + i * width + key);
      if (decays) x *= decay;
      if (removes) x -= taken.of[i] * rate;
      x += value.of[i] * k;
      store(next + i * width + key, x);
      sums[i] += x * q;
    }
  }
  if (y) totals<count>(sums, y);
}

template <int count, bool decays, bool removes>
static void memories_forward(MemoryChunk &m, long at, const float *before, float *after) {
  const MemoryArgs &s = m.s;
  m.take<count>(m.states, before + at * m.keys);
  const float *initial = m.initial(at);
  for (long t = 0; t < m.steps; t++) {
    if (m.start[t]) m.take<count>(m.states, initial);
    advance<count, decays, removes>(m, t, at, m.states, m.states, s.outputs + m.value_at(t) + at,
                                    nullptr);
  }
  m.give<count>(after + at * m.keys, m.states);
}

template <int count, bool decays, bool removes>
static void memories_backward(MemoryChunk &m, long at, const float *before) {
  const MemoryArgs &s = m.s;
  const long width = m.width, block = ROWS * width, memory = m.memory_at(s.width) + at * m.keys;
  m.take<count>(m.begin, m.initial(at));
  m.take<count>(m.states, before + at * m.keys);
  float *const rows = m.d;
  m.take<count>(rows, s.d_carry + memory);
  for (long t = 0; t < m.steps; t++)
    advance<count, decays, removes>(m, t, at, m.start[t] ? m.begin : m.states + t * block,
                                    m.states + (t + 1) * block, nullptr, m.removed + t * ROWS);
  for (long t = m.steps - 1; t >= 0; t--) {
    const float *next = m.states + (t + 1) * block;
    const float *old = m.start[t] ? m.begin : m.states + t * block;
    const Scales<count> value(s.v + m.value_at(t) + at), d_y(s.d_outputs + m.value_at(t) + at);
    const Scales<count> removed(m.removed + t * ROWS);
    const float *vectors[m.VECTORS];
    float *d_vectors[m.VECTORS];
    for (long i = 0; i < m.VECTORS; i++)
      vectors[i] = m.vectors[i] + t * width, d_vectors[i] = m.d_vectors[i] + t * width;
    vec of_value[count] = {}, of_removed[count] = {};
    for (long key = 0; key < width; key += LANES) {
      const vec q = load(vectors[m.QUERY] + key), k = load(vectors[m.KEY] + key);
      const vec decay = decays ? load(vectors[m.DECAY] + key) : vec{};
      const vec rate = removes ? load(vectors[m.RATE] + key) : vec{};
      vec d_q = load(d_vectors[m.QUERY] + key), d_k = load(d_vectors[m.KEY] + key);
      vec d_decay = decays ? load(d_vectors[m.DECAY] + key) : vec{};
      vec d_rate = removes ? load(d_vectors[m.RATE] + key) : vec{};
#pragma GCC unroll 4
      for (int i = 0; i < count; i++) {
        const long here = i * width + key;
        vec d = load(rows + here) + d_y.of[i] * q;
        d_q += d_y.of[i] * load(next + here);
        d_k += value.of[i] * d;
        of_value[i] += d * k;
        if (decays) d_decay += d * load(old + here);
        if (removes) {
          d_rate -= removed.of[i] * d;
          of_removed[i] -= d * rate;
        }
        if (decays) d *= decay;
        store(rows + here, d);
      }
      store(d_vectors[m.QUERY] + key, d_q);
      store(d_vectors[m.KEY] + key, d_k);
      if (decays) store(d_vectors[m.DECAY] + key, d_decay);
      if (removes) store(d_vectors[m.RATE] + key, d_rate);
    }
    totals<count>(of_value, s.d_v + m.value_at(t) + at);
    if (removes) {
      float sums[count];
      totals<count>(of_removed, sums);
      const Scales<count> d_removed(sums);
      for (long key = 0; key < width; key += LANES) {
        const vec removal = load(vectors[m.REMOVAL] + key);
        vec d_removal = load(d_vectors[m.REMOVAL] + key);
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) {
          const long here = i * width + key;
          d_removal += d_removed.of[i] * load(old + here);
          store(rows + here, load(rows + here) + d_removed.of[i] * removal);
        }
        store(d_vectors[m.REMOVAL] + key, d_removal);
      }
    }
    if (!m.start[t]) continue;
    for (long i = 0; i < count; i++) {
      if (s.d_initial) add(s.d_initial + memory + i * m.keys, rows + i * width, m.keys);
      memset(rows + i * width, 0, width * sizeof(float));
    }
  }
  m.give<count>(s.d_carry + memory, rows);
}

// Write the gradients of the vectors of a chunk.
static void give_gradients(const MemoryChunk &m) {
  const MemoryArgs &s = m.s;
  float *const to[] = {s.d_q, s.d_k, s.d_decay, s.d_removal, s.d_rate};
  for (long t = 0; t < m.steps; t++)
    for (long i = 0; i < m.VECTORS; i++) {
      if (!to[i]) continue;
      const float *from = m.d_vectors[i] + t * m.width;
      if (i == m.DECAY && s.decays_alike) {
        vec sum = {};
        for (long key = 0; key < m.width; key += LANES) sum += load(from + key);
        s.d_decay[m.place(t)] = total(sum);
      } else {
        memcpy(to[i] + m.key_at(t), from, m.keys * sizeof(float));
      }
    }
}

template <bool back, bool decays, bool removes> static void run_head(MemoryChunk &m) {
  const MemoryArgs &s = m.s;
  const long chunks = (s.steps + CHUNK - 1) / CHUNK;
  const float *const first = s.before + m.memory_at(s.before_stride), *before = first;
  for (long i = 0; i < chunks; i++) {
    const long chunk = back ? chunks - 1 - i : i;
    m.move_to(chunk);
    if (back) {
      before = chunk ? m.kept(chunk - 1) : first;
      for (float *vector : m.d_vectors) memset(vector, 0, m.steps * m.width * sizeof(float));
    }
    float *after = nullptr;
    if (!back) after = s.kept && i + 1 < chunks ? m.kept(i) : s.last + m.memory_at(s.width);
    long at = 0;
    for (; at + ROWS <= m.values; at += ROWS)
      if (back) memories_backward<ROWS, decays, removes>(m, at, before);
      else memories_forward<ROWS, decays, removes>(m, at, before, after);
    for (; at < m.values; at++)
      if (back) memories_backward<1, decays, removes>(m, at, before);
      else memories_forward<1, decays, removes>(m, at, before, after);
    if (back) give_gradients(m);
    else before = after;
  }
}

template <bool back> static bool run_memories(const MemoryArgs &s) {
  const double numbers = (double)s.steps * s.batch_size * s.width;
  return each_head<MemoryChunk>(s, back, (back ? 12 : 4) * numbers, [&](MemoryChunk &m) {
    if (s.decay && s.removal) run_head<back, true, true>(m);
    else if (s.decay) run_head<back, true, false>(m);
    else if (s.removal) run_head<back, false, true>(m);
    else run_head<back, false, false>(m);
  });
}
