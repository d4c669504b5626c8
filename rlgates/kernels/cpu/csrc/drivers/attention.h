// Attention to the last `window` steps of an episode, the present one among them, forward and
// backward. Of a step s with a lag, for each head:
//
//     score = q k_s + scores[lag],   y = sum of softmax(score) v_s
//
// Steps before the first one are in `before`, the oldest first. A head of a row of the batch runs
// through a chunk of steps, whose keys and values lie side by side. No gradient is a sum over heads
// or rows of the batch, so these run on any thread.

struct AttentionHead {
  enum { CHUNK = 64 };
  const AttentionArgs &s;
  const long old, size, width;  // steps before the present one; numbers of a head, also in vectors
  float *keys, *values;         // (old + CHUNK, width): of the steps before a chunk, then its own
  float *queries, *d_outputs;   // (CHUNK, width)
  float *weights, *workspace;   // (window)
  long row, head, first, steps;

  AttentionHead(const AttentionArgs &s, bool back, Workspace &memory)
      : s(s), old(s.window - 1), size(s.head_size), width(padded(size)) {
    const long most = s.steps < CHUNK ? s.steps : CHUNK;
    for (float **rows : {&keys, &values}) *rows = memory.take((old + most) * width);
    for (float **rows : {&weights, &workspace}) *rows = memory.take(s.window);
    if (!back) return;
    for (float **rows : {&queries, &d_outputs}) *rows = memory.take(most * width);
  }

  // How many steps before this one are of its episode, and in the window.
  long lags(long t) const {
    const float earlier = s.length[t * s.batch_size + row];
    return earlier >= old ? old : earlier > 0.0f ? (long)(earlier + 0.5f) : 0;
  }
  // Where the numbers of a step begin: of tensors with a place for each head, of the scores of all
  // lags, and of the keys (0) or values (1) that were before the first step.
  long at(long t, long stride) const { return (t * s.batch_size + row) * stride + head * size; }
  long at(long t) const { return at(t, s.heads * size); }
  long scores_at(long t) const {
    return ((head * s.steps + t) * s.batch_size + row) * s.window;
  }
  long before_at(long t, long which, long stride) const {
    return row * stride + ((which * old + t + old) * s.heads + head) * size;
  }
  long before_width() const { return 2 * old * s.heads * size; }
  const float *key(long t) const {
    return t < 0 ? s.before + before_at(t, 0, s.before_stride) : s.k + at(t, s.k_stride);
  }
  const float *value(long t) const {
    return t < 0 ? s.before + before_at(t, 1, s.before_stride) : s.v + at(t, s.v_stride);
  }
  float *d_key(long t) const {
    return t < 0 ? s.d_before + before_at(t, 0, before_width()) : s.d_k + at(t);
  }
  float *d_value(long t) const {
    return t < 0 ? s.d_before + before_at(t, 1, before_width()) : s.d_v + at(t);
  }
  // In `last` and its gradient, of a lag behind the last step.
  long last_at(long lag, long which) const { return before_at(-1 - lag, which, before_width()); }

  void copy(float *to, const float *from) const { memcpy(to, from, size * sizeof(float)); }
  void move_to(long t) {
    first = t;
    steps = s.steps - first < CHUNK ? s.steps - first : CHUNK;
    for (long i = 0; i < old + steps; i++) {
      copy(keys + i * width, key(first + i - old));
      copy(values + i * width, value(first + i - old));
    }
  }
};

static void attention_forward(AttentionHead &m) {
  const AttentionArgs &s = m.s;
  for (long t = m.first; t < m.first + m.steps; t++) {
    const long begin = m.old - m.lags(t), count = s.window - begin;
    float *weights = s.weights ? s.weights + m.scores_at(t) : m.weights;
    memset(weights, 0, begin * sizeof(float));
    weights += begin;
    const long row = (t - m.first + begin) * m.width;
    dots(s.q + m.at(t), count, [&](long i) { return m.keys + row + i * m.width; }, m.size, weights);
    add_scaled(weights, 1.0f, s.scores + m.scores_at(t) + begin, count);
    softmax(weights, count, m.workspace);
    weighted_sum<false>(s.outputs + m.at(t), count, [&](long i) { return weights[i]; },
                        [&](long i) { return m.values + row + i * m.width; }, m.size);
  }
}

static void attention_backward(AttentionHead &m) {
  const AttentionArgs &s = m.s;
  for (long i = 0; i < m.steps; i++) {
    const long t = m.first + i, begin = m.old - m.lags(t), count = s.window - begin;
    m.copy(m.queries + i * m.width, s.q + m.at(t));
    m.copy(m.d_outputs + i * m.width, s.d_outputs + m.at(t));
    const float *weights = s.weights + m.scores_at(t) + begin;
    float *d = s.d_scores + m.scores_at(t);
    memset(d, 0, begin * sizeof(float));
    d += begin;
    const long row = (i + begin) * m.width;
    dots(m.d_outputs + i * m.width, count, [&](long j) { return m.values + row + j * m.width; },
         m.size, d);
    const float mean = dot(weights, d, count);
    for (long j = 0, n = count; n > 0; j += LANES, n -= LANES)
      store(d + j, load(weights + j, n) * (load(d + j, n) - mean), n);
    weighted_sum<false>(s.d_q + m.at(t), count, [&](long j) { return d[j]; },
                        [&](long j) { return m.keys + row + j * m.width; }, m.size);
  }
  // What a step was to those that attend to it: its own one, and later ones up to the next episode.
  for (long i = 0; i < m.old + m.steps; i++) {
    const long begin = i < m.old ? 0 : i - m.old;
    long end = begin;
    while (end < m.steps && end + m.old - i <= m.lags(m.first + end)) end++;
    auto scores = [&](const float *of) {
      return [=, &m](long j) {
        return of[m.scores_at(m.first + begin + j) + i - begin - j];
      };
    };
    weighted_sum<true>(m.d_key(m.first + i - m.old), end - begin, scores(s.d_scores),
                       [&](long j) { return m.queries + (begin + j) * m.width; }, m.size);
    weighted_sum<true>(m.d_value(m.first + i - m.old), end - begin, scores(s.weights),
                       [&](long j) { return m.d_outputs + (begin + j) * m.width; }, m.size);
  }
}

// The keys and values that later steps may attend to, and their gradients.
template <bool back> static void keep_last(const AttentionHead &m) {
  const AttentionArgs &s = m.s;
  const long lags = m.lags(s.steps - 1);
  for (long lag = 0; lag < m.old; lag++) {
    const long t = s.steps - 1 - lag, key = m.last_at(lag, 0), value = m.last_at(lag, 1);
    if (back && lag <= lags) {
      add_scaled(m.d_key(t), 1.0f, s.d_last + key, m.size);
      add_scaled(m.d_value(t), 1.0f, s.d_last + value, m.size);
    } else if (!back && lag <= lags) {
      m.copy(s.last + key, m.key(t));
      m.copy(s.last + value, m.value(t));
    } else if (!back) {
      memset(s.last + key, 0, m.size * sizeof(float));
      memset(s.last + value, 0, m.size * sizeof(float));
    }
  }
}

template <bool back> static bool run_attention(const AttentionArgs &s) {
  const double scores = (double)s.steps * s.batch_size * s.heads * s.window;
  const double work = (back ? 2 : 1) * scores * (2 * s.head_size + 10);
  return each_head<AttentionHead>(s, back, work, [&](AttentionHead &m) {
    for (long t = 0; t < s.steps; t += m.CHUNK) {
      m.move_to(t);
      if (back) attention_backward(m);
      else attention_forward(m);
    }
    keep_last<back>(m);
  });
}
