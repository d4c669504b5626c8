// Memories of keys and values, forward and backward: for each head a matrix S with a row a value,
//
//     S' = S diag(a) - (S r) e^T + v k^T,   y = S' q
//
// with vectors a, r, e, k and q of the step. So the rows of S are linear systems that read the same
// vectors, and ROWS of them at a time run through a chunk of steps, while they stay in the cache.
// Of the memories only those before each chunk are written; the backward pass computes the others
// again. No gradient is a sum over heads or over rows of the batch, so these run on any thread.

constexpr int ROWS = 4;

// One chunk of a head, in vectors of `width` numbers, of which those behind the keys are zero.
struct MemoryChunk {
  enum { QUERY, KEY, DECAY, REMOVAL, RATE, VECTORS };
  const MemoryArgs &s;
  const long keys, values, width, matrix;  // matrix: numbers of one memory
  float *vectors[VECTORS], *d_vectors[VECTORS];  // (CHUNK, width)
  float *states;        // (CHUNK + 1, ROWS, width)
  float *begin, *d;     // (ROWS, width): where an episode starts, and gradients
  float *removed;       // (CHUNK, ROWS)
  long row, head, first, steps;
  bool start[CHUNK];

  MemoryChunk(const MemoryArgs &s, bool back, Workspace &memory)
      : s(s), keys(s.key_size), values(s.value_size), width(padded(keys)), matrix(keys * values) {
    for (float *&vector : vectors) vector = memory.take(CHUNK * width);
    begin = memory.take(ROWS * width);
    states = memory.take((back ? CHUNK + 1 : 1) * ROWS * width);
    if (!back) return;
    for (float *&vector : d_vectors) vector = memory.take(CHUNK * width);
    d = memory.take(ROWS * width);
    removed = memory.take(CHUNK * ROWS);
  }

  long place(long t) const { return (first + t) * s.batch_size + row; }
  // Where the vectors and the values of a step are.
  long vector_at(long t) const { return (place(t) * s.heads + head) * keys; }
  long value_at(long t) const { return (place(t) * s.heads + head) * values; }
  const float *value(long t) const { return s.v + place(t) * s.v_stride + head * values; }
  long memory_at(long stride) const { return row * stride + head * matrix; }
  float *kept(long chunk) const {
    return s.kept + chunk * s.batch_size * s.width + memory_at(s.width);
  }

  void move_to(long chunk) {
    first = chunk * CHUNK;
    steps = s.steps - first < CHUNK ? s.steps - first : CHUNK;
    const float *const from[] = {s.q, s.k, s.decay, s.removal, s.rate};
    const long strides[] = {s.q_stride, s.k_stride, s.decay_stride, s.removal_stride, s.rate_stride};
    for (long t = 0; t < steps; t++) {
      start[t] = s.episode_starts && s.episode_starts[place(t)];
      for (long i = 0; i < VECTORS; i++) {
        if (!from[i]) continue;
        float *to = vectors[i] + t * width;
        const float *vector = from[i] + place(t) * strides[i];
        if (i == DECAY && s.decays_alike)
          for (long key = 0; key < width; key += LANES) store(to + key, vec{} + vector[head]);
        else
          for (long key = 0, n = keys; n > 0; key += LANES, n -= LANES)
            store(to + key, load(vector + head * keys + key, n));
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

// The sums of so many vectors.
template <int count> INLINE void totals(const vec *sums, float *to) {
  if (count == 4) {
    vec all = pair_sums(pair_sums(sums[0], sums[1], Lanes()), pair_sums(sums[2], sums[3], Lanes()),
                        Lanes());
#pragma GCC unroll 2
    for (int width = LANES / 4; width > 1; width /= 2) all = pair_sums(all, all, Lanes());
    for (int i = 0; i < 4; i++) to[i] = all[i];
  } else {
    for (int i = 0; i < count; i++) to[i] = total(sums[i]);
  }
}

// So many numbers, in vectors of their own: a compiler has to assume that a store of a vector changes
// what is in memory, pointers too.
template <int count> struct Scales {
  vec of[count];
  explicit Scales(const float *from) {
    for (int i = 0; i < count; i++) of[i] = vec{} + from[i];
  }
};

// Rows `at` and so many more of a memory, from `before` to `next`, which may be the same; y to `y`,
// and what is removed to `removed`, unless they are null.
template <int count, bool decays, bool removes>
INLINE void advance(const MemoryChunk &m, long t, long at, const float *before, float *next,
                    float *y, float *removed) {
  const long width = m.width;
  const float *vectors[m.VECTORS];
  for (long i = 0; i < m.VECTORS; i++) vectors[i] = m.vectors[i] + t * width;
  const Scales<count> value(m.value(t) + at);
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
  const float *initial = s.initial ? s.initial + m.memory_at(s.initial_stride) + at * m.keys : nullptr;
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
  const float *initial = s.initial ? s.initial + m.memory_at(s.initial_stride) + at * m.keys : nullptr;
  m.take<count>(m.begin, initial);
  m.take<count>(m.states, before + at * m.keys);
  float *const rows = m.d;
  m.take<count>(rows, s.d_carry + memory);
  for (long t = 0; t < m.steps; t++)
    advance<count, decays, removes>(m, t, at, m.start[t] ? m.begin : m.states + t * block,
                                    m.states + (t + 1) * block, nullptr, m.removed + t * ROWS);
  for (long t = m.steps - 1; t >= 0; t--) {
    const float *next = m.states + (t + 1) * block;
    const float *old = m.start[t] ? m.begin : m.states + t * block;
    const Scales<count> value(m.value(t) + at), d_y(s.d_outputs + m.value_at(t) + at);
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
        const long place = i * width + key;
        vec d = load(rows + place) + d_y.of[i] * q;
        d_q += d_y.of[i] * load(next + place);
        d_k += value.of[i] * d;
        of_value[i] += d * k;
        if (decays) d_decay += d * load(old + place);
        if (removes) {
          d_rate -= removed.of[i] * d;
          of_removed[i] -= d * rate;
        }
        if (decays) d *= decay;
        store(rows + place, d);
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
          const long place = i * width + key;
          d_removal += d_removed.of[i] * load(old + place);
          store(rows + place, load(rows + place) + d_removed.of[i] * removal);
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

// What a chunk adds to the gradients of its vectors.
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
        s.d_decay[m.place(t) * s.heads + m.head] = total(sum);
      } else {
        memcpy(to[i] + m.vector_at(t), from, m.keys * sizeof(float));
      }
    }
}

template <bool back, bool decays, bool removes> static void run_head(MemoryChunk &m) {
  const MemoryArgs &s = m.s;
  const long chunks = (s.steps + CHUNK - 1) / CHUNK;
  const float *h_0 = s.h_0 + m.memory_at(s.h_0_stride), *before = h_0;
  float *last = s.last + m.memory_at(s.width);
  for (long i = 0; i < chunks; i++) {
    const long chunk = back ? chunks - 1 - i : i;
    m.move_to(chunk);
    if (back) {
      before = chunk ? m.kept(chunk - 1) : h_0;
      for (float *vector : m.d_vectors) memset(vector, 0, m.steps * m.width * sizeof(float));
    }
    float *after = s.kept && chunk + 1 < chunks ? m.kept(chunk) : last;
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
  Workspace needed{};
  MemoryChunk measure(s, back, needed);
  const long heads = s.batch_size * s.heads;
  const double numbers = (double)s.steps * s.batch_size * s.width;
  const long workers = num_threads(s.threads, heads, (back ? 12 : 4) * numbers);
  AlignedBuffer buffer(workers * needed.used);
  if (!buffer.data) return false;
  parallel_for(heads, workers, [&](long first, long last, long worker) {
    Workspace memory{buffer.data + worker * needed.used, 0};
    MemoryChunk m(s, back, memory);
    for (long i = first; i < last; i++) {
      m.row = i / s.heads, m.head = i % s.heads;
      if (s.decay && s.removal) run_head<back, true, true>(m);
      else if (s.decay) run_head<back, true, false>(m);
      else if (s.removal) run_head<back, false, true>(m);
      else run_head<back, false, false>(m);
    }
  });
  return true;
}
