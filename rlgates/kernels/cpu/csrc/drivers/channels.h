// Channels with a linear system each, whose states are read as they come, forward and backward:
//
//     H' = A * H + w b,   y = sum over N of c * H' + skip u,   output = y * silu(gate)
//
// Fixed systems are complex, with w = u and A, b and c (E, N) that are the same at every step.
// Selective ones are real: A = exp(step rate) and w = step u with step = softplus(raw step + bias),
// and b and c (N) are those of the step, for all channels. Only they have a gate. Those of kind
// SHARED have one rate a channel.
//
// A row of the batch takes the steps in chunks, and each channel runs through all steps of a chunk,
// with its state in registers. Of the states only those before each chunk are written; the backward
// pass computes the others again. Rows are split into groups that sum the gradients of what is the
// same at every step, so that these do not depend on the number of threads.

enum { CHUNK = ChannelArgs::CHUNK };
enum { FIXED, SELECTIVE, SHARED };  // the kinds of systems

// One chunk of a row, and scratch memory: (CHUNK, E) with `stride` between steps, and (CHUNK, N).
struct ChannelChunk {
  const ChannelArgs &s;
  const long units, stride, width;  // of one part of the state; width: N in whole vectors
  float *w, *step, *left, *y, *d_y, *d_w, *d_step, *b, *c, *d_b, *d_c;
  double *d_a_sums, *d_b_sums, *d_c_sums, *d_skip_sums, *d_bias_sums;
  long row, first, steps;
  bool start[CHUNK], any;
  const float *before;  // the state before the chunk

  ChannelChunk(const ChannelArgs &s, Workspace &memory)
      : s(s), units(s.channels * s.size), stride(padded(s.channels) + LANES),
        width(padded(s.size)) {
    for (float **of_channels : {&w, &step, &left, &y, &d_y, &d_w, &d_step})
      *of_channels = memory.take(CHUNK * stride);
    for (float **of_step : {&b, &c, &d_b, &d_c}) *of_step = memory.take(CHUNK * width);
  }

  long place(long t) const { return (first + t) * s.batch_size + row; }
  const float *initial(long at) const { return s.initial + row * s.initial_stride + at; }
  // The states before a chunk that the backward pass reads.
  float *kept(long chunk) const {
    return s.kept ? s.kept + (chunk * s.batch_size + row) * s.width : nullptr;
  }

  void move_to(long chunk) {
    first = chunk * CHUNK;
    steps = s.steps - first < CHUNK ? s.steps - first : CHUNK;
    any = false;
    for (long t = 0; t < steps; t++)
      any |= start[t] = s.episode_starts && s.episode_starts[place(t)];
  }
};

// Sums of the lanes of each vector, to a column of numbers `stride` apart.
INLINE void put_totals(vec *sums, long steps, float *to, long stride) {
  if (steps < 4) {
    for (long t = 0; t < steps; t++) to[t * stride] = total(sums[t]);
    return;
  }
  for (long t = 0; t < steps; t += LANES) {
    vec *tree = sums + t;
#pragma GCC unroll 4
    for (int left = LANES; left > 1; left /= 2)
#pragma GCC unroll 8
      for (int i = 0; i < left / 2; i++) tree[i] = pair_sums(tree[2 * i], tree[2 * i + 1], Lanes());
    for (long i = 0; i < LANES && t + i < steps; i++) to[(t + i) * stride] = tree[0][i];
  }
}

// ---- fixed systems: so many vectors of one channel through a chunk ------------------------------

template <int count> struct Fixed {
  Number a[count], b[count], c[count], h[count];

  Fixed(const ChannelChunk &k, long at, long n) {
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      const long to = at + i * LANES, left = n - i * LANES;
      a[i] = get<true>(k.s.a + to, k.units, left);
      b[i] = get<true>(k.s.b + to, k.units, left);
      c[i] = get<true>(k.s.c + to, k.units, left);
      h[i] = get<true>(k.before + to, k.units, left);
    }
  }

  void begin(const ChannelChunk &k, long at, long n) {
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
      h[i] = get<true>(k.initial(at) + i * LANES, k.units, n - i * LANES);
  }

  void advance(float w) {
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      const Number old = h[i];
      h[i].re = w * b[i].re + a[i].re * old.re - a[i].im * old.im;
      h[i].im = w * b[i].im + a[i].re * old.im + a[i].im * old.re;
    }
  }

  static void forward(const ChannelChunk &k, long channel, long at, long n, vec *sums, bool more,
                      float *after) {
    Fixed f(k, at, n);
    for (long t = 0; t < k.steps; t++) {
      if (k.any && k.start[t]) f.begin(k, at, n);
      f.advance(k.w[t * k.stride + channel]);
      vec sum = more ? sums[t] : vec{};
#pragma GCC unroll 2
      for (int i = 0; i < count; i++) sum += f.c[i].re * f.h[i].re + f.c[i].im * f.h[i].im;
      sums[t] = sum;
    }
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
      put<true>(after + at + i * LANES, f.h[i], k.units, n - i * LANES);
  }

  static void backward(const ChannelChunk &k, long channel, long at, long n, vec *sums, bool more,
                       float *carry, float *d_initial) {
    Number states[CHUNK + 1][count], d[count], d_a[count], d_b[count], d_c[count];
    Fixed f(k, at, n);
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      states[0][i] = f.h[i];
      d[i] = get<true>(carry + at + i * LANES, k.units, n - i * LANES);
      d_a[i] = d_b[i] = d_c[i] = Number{};
    }
    for (long t = 0; t < k.steps; t++) {
      if (k.any && k.start[t]) f.begin(k, at, n);
      f.advance(k.w[t * k.stride + channel]);
#pragma GCC unroll 2
      for (int i = 0; i < count; i++) states[t + 1][i] = f.h[i];
    }
    for (long t = k.steps - 1; t >= 0; t--) {
      const float w = k.w[t * k.stride + channel], d_y = k.d_y[t * k.stride + channel];
      const bool start = k.any && k.start[t];
      if (start) f.begin(k, at, n);
      vec sum = more ? sums[t] : vec{};
#pragma GCC unroll 2
      for (int i = 0; i < count; i++) {
        const Number old = start ? f.h[i] : states[t][i], next = states[t + 1][i];
        d[i].re += d_y * f.c[i].re, d[i].im += d_y * f.c[i].im;
        d_c[i].re += d_y * next.re, d_c[i].im += d_y * next.im;
        d_b[i].re += w * d[i].re, d_b[i].im += w * d[i].im;
        d_a[i].re += d[i].re * old.re + d[i].im * old.im;
        d_a[i].im += d[i].im * old.re - d[i].re * old.im;
        sum += f.b[i].re * d[i].re + f.b[i].im * d[i].im;
        d[i] = times_conj<true>(d[i], f.a[i]);
      }
      sums[t] = sum;
      if (start)
#pragma GCC unroll 2
        for (int i = 0; i < count; i++) {
          const long left = n - i * LANES;
          float *to = d_initial + at + i * LANES;
          put<true>(to, plus<true>(get<true>(to, k.units, left), d[i]), k.units, left);
          d[i] = Number{};
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      const long to = at + i * LANES, left = n - i * LANES;
      put<true>(carry + to, d[i], k.units, left);
      add(k.d_a_sums + to, d_a[i].re, left), add(k.d_a_sums + k.units + to, d_a[i].im, left);
      add(k.d_b_sums + to, d_b[i].re, left), add(k.d_b_sums + k.units + to, d_b[i].im, left);
      add(k.d_c_sums + to, d_c[i].re, left), add(k.d_c_sums + k.units + to, d_c[i].im, left);
    }
  }
};

// ---- selective systems: a vector of one or two channels through a chunk -------------------------

// exp x for x <= 0; 0 where it is in PyTorch, and not denormal before.
INLINE vec decay(vec x) {
  const vec value = exponential(x < -60.0f ? vec{} - 60.0f : x);
  return x < -88.7228394f ? vec{} : value;
}

// So many channels, next to each other, share what they read of a step. Pointers are copied, because
// a compiler has to assume that a store of a vector changes them.
template <int kind, int count> struct Selective {
  static void forward(const ChannelChunk &k, long channel, long at, long n, vec *sums, bool more,
                      float *after) {
    const long size = k.s.size, unit = at - channel * size, steps = k.steps;
    const long stride = k.stride, width = k.width;
    // SHARED systems read what a step leaves, where others read the step.
    const float *step = (kind == SHARED ? k.left : k.step) + channel, *w = k.w + channel;
    const float *b = k.b + unit, *c = k.c + unit;
    const bool *start = k.any ? k.start : nullptr;
    vec rate[count], h[count];
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      rate[i] = kind == SHARED ? vec{} : load(k.s.a + at + i * size, n);
      h[i] = load(k.before + at + i * size, n);
    }
    for (long t = 0; t < steps; t++, step += stride, w += stride, b += width, c += width) {
      const bool starts = start && start[t];
#pragma GCC unroll 2
      for (int i = 0; i < count; i++) {
        if (starts) h[i] = load(k.initial(at + i * size), n);
        const vec left = kind == SHARED ? vec{} + step[i] : decay(step[i] * rate[i]);
        h[i] = left * h[i] + w[i] * load(b);
        const vec read = h[i] * load(c);
        vec &sum = sums[i * 2 * CHUNK + t];
        sum = more ? sum + read : read;
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) store(after + at + i * size, h[i], n);
  }

  // Sums: of the gradients of w, then those of the gradients of the steps.
  static void backward(const ChannelChunk &k, long channel, long at, long n, vec *sums, bool more,
                       float *carry, float *d_initial) {
    const long size = k.s.size, unit = at - channel * size, steps = k.steps;
    const long stride = k.stride, width = k.width;
    const float *step = (kind == SHARED ? k.left : k.step) + channel, *w = k.w + channel;
    const float *b = k.b + unit, *c = k.c + unit + steps * width;
    const float *d_y = k.d_y + channel + steps * stride;
    float *d_b = k.d_b + unit + steps * width, *d_c = k.d_c + unit + steps * width;
    const bool *start = k.any ? k.start : nullptr;
    vec states[CHUNK + 1][count], decays[kind == SHARED ? 1 : CHUNK][count];
    vec rate[count], h[count], d[count], d_rate[count];
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      rate[i] = kind == SHARED ? vec{} : load(k.s.a + at + i * size, n);
      states[0][i] = h[i] = load(k.before + at + i * size, n);
      d[i] = load(carry + at + i * size, n);
      d_rate[i] = vec{};
    }
    for (long t = 0; t < steps; t++, step += stride, w += stride, b += width) {
      const bool starts = start && start[t];
#pragma GCC unroll 2
      for (int i = 0; i < count; i++) {
        if (starts) h[i] = load(k.initial(at + i * size), n);
        vec left = vec{} + step[i];
        if (kind != SHARED) decays[t][i] = left = decay(left * rate[i]);
        states[t + 1][i] = h[i] = left * h[i] + w[i] * load(b);
      }
    }
    for (long t = steps - 1; t >= 0; t--) {
      step -= stride, w -= stride, d_y -= stride;
      b -= width, c -= width, d_b -= width, d_c -= width;
      const bool starts = start && start[t];
      vec of_b = load(d_b), of_c = load(d_c);
#pragma GCC unroll 2
      for (int i = 0; i < count; i++) {
        const vec old = starts ? load(k.initial(at + i * size), n) : states[t][i];
        d[i] += d_y[i] * load(c);
        of_c += d_y[i] * states[t + 1][i];
        of_b += w[i] * d[i];
        const vec written = d[i] * load(b);
        d[i] *= kind == SHARED ? vec{} + step[i] : decays[t][i];
        const vec slope = d[i] * old;  // of step * rate
        if (kind != SHARED) d_rate[i] += step[i] * slope;
        const vec of_step = kind == SHARED ? slope : rate[i] * slope;
        vec &of_w = sums[i * 2 * CHUNK + t], &of_steps = sums[i * 2 * CHUNK + CHUNK + t];
        of_w = more ? of_w + written : written;
        of_steps = more ? of_steps + of_step : of_step;
      }
      store(d_b, of_b);
      store(d_c, of_c);
      if (starts)
#pragma GCC unroll 2
        for (int i = 0; i < count; i++) {
          float *to = d_initial + at + i * size;
          store(to, load(to, n) + d[i], n);
          d[i] = vec{};
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      store(carry + at + i * size, d[i], n);
      if (kind != SHARED) add(k.d_a_sums + at + i * size, d_rate[i], n);
    }
  }
};

// ---- a row through all chunks --------------------------------------------------------------------

// What the systems read: w, and of selective ones the steps, b and c.
template <int kind> static void read_chunk(ChannelChunk &k) {
  const ChannelArgs &s = k.s;
  constexpr bool selective = kind != FIXED;
  for (long t = 0; t < k.steps; t++) {
    const long place = k.place(t);
    const float *u = s.u + place * s.u_stride;
    float *w = k.w + t * k.stride, *step = k.step + t * k.stride;
    for (long e = 0, n = s.channels; n > 0; e += LANES, n -= LANES) {
      vec value = load(u + e, n);
      if (selective) {
        const vec raw = load(s.step + place * s.step_stride + e, n);
        const vec of_step = softplus(raw + load(s.step_bias + e, n));
        store(step + e, of_step, n);
        value *= of_step;
        if (kind == SHARED)
          store(k.left + t * k.stride + e, decay(of_step * load(s.a + e, n)), n);
      }
      store(w + e, value, n);
    }
    if (selective)
      for (long i = 0, n = s.size; n > 0; i += LANES, n -= LANES) {
        store(k.b + t * k.width + i, load(s.b + place * s.b_stride + i, n));
        store(k.c + t * k.width + i, load(s.c + place * s.c_stride + i, n));
      }
  }
}

template <int kind> static void channels_forward(ChannelChunk &k) {
  const ChannelArgs &s = k.s;
  constexpr bool selective = kind != FIXED;
  vec sums[3 * CHUNK];
  const long chunks = (s.steps + CHUNK - 1) / CHUNK;
  float *last = s.last + k.row * s.width;
  k.before = s.h_0 + k.row * s.h_0_stride;
  for (long chunk = 0; chunk < chunks; chunk++) {
    k.move_to(chunk);
    read_chunk<kind>(k);
    float *after = s.kept && chunk + 1 < chunks ? k.kept(chunk) : last;
    for (long e = 0, count; e < s.channels; e += count) {
      long at = e * s.size, n = s.size;
      bool more = false;
      count = selective && e + 1 < s.channels ? 2 : 1;
      if constexpr (selective)
        for (; n > 0; at += LANES, n -= LANES, more = true)
          if (count == 2) Selective<kind, 2>::forward(k, e, at, n, sums, more, after);
          else Selective<kind, 1>::forward(k, e, at, n, sums, more, after);
      else {
        for (; n > LANES; at += 2 * LANES, n -= 2 * LANES, more = true)
          Fixed<2>::forward(k, e, at, n, sums, more, after);
        if (n > 0) Fixed<1>::forward(k, e, at, n, sums, more, after);
      }
      for (long i = 0; i < count; i++)
        put_totals(sums + i * 2 * CHUNK, k.steps, k.y + e + i, k.stride);
    }
    k.before = after;
    for (long t = 0; t < k.steps; t++) {
      const long place = k.place(t);
      const float *u = s.u + place * s.u_stride, *gate = s.gate + place * s.gate_stride;
      float *outputs = s.outputs + place * s.channels, *y = k.y + t * k.stride;
      for (long e = 0, n = s.channels; n > 0; e += LANES, n -= LANES) {
        vec value = load(y + e, n) + load(s.skip + e, n) * load(u + e, n);
        if (selective) {
          if (s.y) store(s.y + place * s.channels + e, value, n);
          value *= silu(load(gate + e, n));
        }
        store(outputs + e, value, n);
      }
    }
  }
}

template <int kind> static void channels_backward(ChannelChunk &k) {
  const ChannelArgs &s = k.s;
  constexpr bool selective = kind != FIXED;
  vec sums[4 * CHUNK];
  float *carry = s.d_carry + k.row * s.width;
  float *d_initial = s.d_initial ? s.d_initial + k.row * s.width : nullptr;
  for (long chunk = (s.steps + CHUNK - 1) / CHUNK - 1; chunk >= 0; chunk--) {
    k.move_to(chunk);
    k.before = chunk ? k.kept(chunk - 1) : s.h_0 + k.row * s.h_0_stride;
    read_chunk<kind>(k);
    for (long t = 0; t < k.steps; t++) {
      const float *gate = s.gate + k.place(t) * s.gate_stride;
      const float *d_outputs = s.d_outputs + k.place(t) * s.channels;
      for (long e = 0, n = s.channels; n > 0; e += LANES, n -= LANES) {
        vec d = load(d_outputs + e, n);
        if (selective) d *= silu(load(gate + e, n));
        store(k.d_y + t * k.stride + e, d, n);
      }
    }
    if (selective)
      for (long i = 0; i < k.steps * k.width; i++) k.d_b[i] = k.d_c[i] = 0.0f;
    for (long e = 0, count; e < s.channels; e += count) {
      long at = e * s.size, n = s.size;
      bool more = false;
      count = selective && e + 1 < s.channels ? 2 : 1;
      if constexpr (selective)
        for (; n > 0; at += LANES, n -= LANES, more = true)
          if (count == 2) Selective<kind, 2>::backward(k, e, at, n, sums, more, carry, d_initial);
          else Selective<kind, 1>::backward(k, e, at, n, sums, more, carry, d_initial);
      else {
        for (; n > LANES; at += 2 * LANES, n -= 2 * LANES, more = true)
          Fixed<2>::backward(k, e, at, n, sums, more, carry, d_initial);
        if (n > 0) Fixed<1>::backward(k, e, at, n, sums, more, carry, d_initial);
      }
      for (long i = 0; i < count; i++) {
        vec *of_channel = sums + i * 2 * CHUNK;
        put_totals(of_channel, k.steps, k.d_w + e + i, k.stride);
        if (selective) put_totals(of_channel + CHUNK, k.steps, k.d_step + e + i, k.stride);
      }
    }
    for (long t = 0; t < k.steps; t++) {
      const long place = k.place(t), here = t * k.stride, there = place * s.channels;
      const float *inputs = s.u + place * s.u_stride;
      for (long e = 0, n = s.channels; n > 0; e += LANES, n -= LANES) {
        const vec u = load(inputs + e, n), skip = load(s.skip + e, n);
        const vec d_y = load(k.d_y + here + e, n), d_w = load(k.d_w + here + e, n);
        vec d_u = skip * d_y + d_w;
        add(k.d_skip_sums + e, d_y * u, n);
        if (selective) {
          const vec step = load(k.step + here + e, n);
          const vec raw = load(s.step + place * s.step_stride + e, n) + load(s.step_bias + e, n);
          vec d_step = load(k.d_step + here + e, n);
          if (kind == SHARED) {
            add(k.d_a_sums + e, step * d_step, n);
            d_step *= load(s.a + e, n);
          }
          const vec d_raw = (d_step + d_w * u) * sigmoid(raw);
          d_u = skip * d_y + d_w * step;
          store(s.d_step + there + e, d_raw, n);
          add(k.d_bias_sums + e, d_raw, n);
          const vec z = load(s.gate + place * s.gate_stride + e, n), open = sigmoid(z);
          const vec d_gated = load(s.d_outputs + there + e, n) * load(s.y + there + e, n);
          store(s.d_gate + there + e, d_gated * open * (1.0f + z * (1.0f - open)), n);
        }
        store(s.d_u + there + e, d_u, n);
      }
      if (selective)
        for (long i = 0, n = s.size; n > 0; i += LANES, n -= LANES) {
          store(s.d_b + place * s.size + i, load(k.d_b + t * k.width + i), n);
          store(s.d_c + place * s.size + i, load(k.d_c + t * k.width + i), n);
        }
    }
  }
}

template <bool back, int kind> static void run_channels_of(ChannelChunk &k) {
  back ? channels_backward<kind>(k) : channels_forward<kind>(k);
}

template <bool back> static bool run_channels(const ChannelArgs &s) {
  Workspace needed{};
  ChannelChunk measure(s, needed);
  const double numbers = (double)s.steps * s.batch_size * s.width;
  const long workers = num_threads(s.threads, s.groups, (back ? 24 : 8) * numbers);
  AlignedBuffer buffer(workers * needed.used);
  if (!buffer.data) return false;
  parallel_for(s.groups, workers, [&](long first_group, long last_group, long worker) {
    Workspace memory{buffer.data + worker * needed.used, 0};
    ChannelChunk k(s, memory);
    for (long group = first_group; group < last_group; group++) {
      if (back) {
        double *sums = s.d_sums + group * s.sums;
        const long of_state = s.kind == FIXED ? s.width : 0;
        k.d_a_sums = sums, k.d_b_sums = sums + (s.kind == SHARED ? s.channels : s.width);
        k.d_c_sums = k.d_b_sums + of_state;
        k.d_skip_sums = k.d_c_sums + of_state, k.d_bias_sums = k.d_skip_sums + s.channels;
      }
      const long end = s.batch_size * (group + 1) / s.groups;
      for (k.row = s.batch_size * group / s.groups; k.row < end; k.row++)
        if (s.kind == FIXED) run_channels_of<back, FIXED>(k);
        else if (s.kind == SELECTIVE) run_channels_of<back, SELECTIVE>(k);
        else run_channels_of<back, SHARED>(k);
    }
  });
  return true;
}
