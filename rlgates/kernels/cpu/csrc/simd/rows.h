// Functions of whole rows of numbers.

INLINE float dot(const float *a, const float *b, long units) {
  vec sum = {};
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) sum += load(a + i, n) * load(b + i, n);
  return total(sum);
}

INLINE void add_scaled(float *to, float scale, const float *from, long units) {
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
    store(to + i, load(to + i, n) + scale * load(from + i, n), n);
}

// The sums of four vectors, in the first four lanes.
INLINE vec four_totals(const vec *sums) {
  vec all = pair_sums(pair_sums(sums[0], sums[1], Lanes()), pair_sums(sums[2], sums[3], Lanes()),
                      Lanes());
#pragma GCC unroll 2
  for (int width = LANES / 4; width > 1; width /= 2) all = pair_sums(all, all, Lanes());
  return all;
}

// The products of a row with `count` others, which `row(i)` points to: four at a time, whose sums
// end in neighbouring lanes.
template <class Row> INLINE void dots(const float *a, long count, Row row, long units, float *to) {
  for (long i = 0; i < count; i += 4) {
    const long left = count - i;
    if (left == 1) {
      to[i] = dot(a, row(i), units);
      return;
    }
    const float *const b[4] = {row(i), row(i + 1), row(i + (left > 2 ? 2 : 0)),
                               row(i + (left > 3 ? 3 : 0))};
    vec sum[4] = {};
    for (long k = 0, n = units; n > 0; k += LANES, n -= LANES) {
      const vec from = load(a + k, n);
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) sum[j] += from * load(b[j] + k, n);
    }
    store(to + i, four_totals(sum), left < 4 ? left : 4);
  }
}

// to (+)= the sum of weight(i) * row(i) over `count` rows.
template <bool add, class Weight, class Row>
INLINE void weighted_sum(float *to, long count, Weight weight, Row row, long units) {
  constexpr int V = 4;
  for (long k = 0, n = units; n > 0; k += V * LANES, n -= V * LANES) {
    if (n >= V * LANES) {
      vec sum[V] = {};
#pragma GCC unroll 4
      for (int v = 0; add && v < V; v++) sum[v] = load(to + k + v * LANES);
      for (long i = 0; i < count; i++) {
        const vec scale = vec{} + weight(i);
        const float *from = row(i) + k;
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[v] += scale * load(from + v * LANES);
      }
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) store(to + k + v * LANES, sum[v]);
      continue;
    }
    for (long at = k, rest = n; rest > 0; at += LANES, rest -= LANES) {
      vec sum = {};
      if (add) sum = load(to + at, rest);
      for (long i = 0; i < count; i++) sum += weight(i) * load(row(i) + at, rest);
      store(to + at, sum, rest);
    }
  }
}

// The value of a layer normalization from what `normalize` gives.
INLINE void scale_and_shift(const float *normal, const float *gain, const float *offset,
                            long units, float *to) {
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
    store(to + i, load(normal + i, n) * load(gain + i, n) + load(offset + i, n), n);
}

// Normalize a row to mean 0 and variance 1, in place; returns the scale.
NOINLINE float normalize(float *row, long units) {
  vec sum = {}, squares = {};
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) sum += load(row + i, n);
  const float mean = total(sum) / units;
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) {
    store(row + i, load(row + i, n) - mean, n);
    const vec x = load(row + i, n);
    squares += x * x;
  }
  const float scale = 1.0f / __builtin_sqrtf(total(squares) / units + 1e-5f);
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
    store(row + i, load(row + i, n) * scale, n);
  return scale;
}

// The gradients d of gain * normal + offset become those of the row before normalization, and are
// added to those of gain and offset.
NOINLINE void normalize_backward(const float *normal, float scale, const float *gain, float *d,
                                 long units, float *d_gain, float *d_offset) {
  vec sum = {}, along = {};
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) {
    const vec x = load(normal + i, n), given = load(d + i, n), scaled = given * load(gain + i, n);
    store(d_gain + i, load(d_gain + i, n) + given * x, n);
    store(d_offset + i, load(d_offset + i, n) + given, n);
    store(d + i, scaled, n);
    sum += scaled;
    along += scaled * x;
  }
  const float mean = total(sum) / units, slope = total(along) / units;
  for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
    store(d + i, scale * (load(d + i, n) - (mean + slope * load(normal + i, n))), n);
}
