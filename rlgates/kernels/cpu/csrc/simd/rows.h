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
