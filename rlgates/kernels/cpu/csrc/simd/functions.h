// Functions of a vector, accurate to a few ulp, and NaN for NaN.

INLINE vec clamp(vec x, float bound) {
  x = x > bound ? vec{} + bound : x;
  return x < -bound ? vec{} - bound : x;
}

// exp x for |x| <= 87.336. Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
INLINE vec exponential(vec x) {
  const float round = 12582912.0f;
  vec shifted = x * 1.44269504f + round, n = shifted - round;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;  // x - n ln 2, ln 2 in two parts
  vec p = 8.36878130e-3f + r * 1.38144672e-3f;
  p = 4.16683927e-2f + r * p;
  p = 1.66665196e-1f + r * p;
  p = 4.99999940e-1f + r * p;
  p = 1.0f + (r + r * r * p);
  return p * (vec)(((bits)shifted << 23) + 0x3f800000u);  // 2^n; a product keeps any NaN
}

// Clamped just before it would be denormal, as sLSTMs take its logarithm. It is 0 where it is in
// PyTorch: times infinity that is NaN.
INLINE vec sigmoid(vec z) {
  const vec value = 1.0f / (1.0f + exponential(-clamp(z, 87.336f)));
  return z < -88.7228394f ? vec{} : value;
}

INLINE vec silu(vec z) { return z * sigmoid(z); }

// x P(x^2) / Q(x^2), fitted to tanh up to 8.88, beyond which it is 1 in float32; never above 1.
INLINE vec hyperbolic_tangent(vec x) {
  x = clamp(x, 8.88f);
  vec y = x * x;
  vec p = 2.060902383e-5f + y * 1.335457569e-8f;
  vec q = 3.285629136e-4f + y * 7.776524217e-7f;
  p = 3.495584710e-3f + y * p;
  q = 2.587696933e-2f + y * q;
  p = 1.338102280e-1f + y * p;
  q = 4.671433840e-1f + y * q;
  return clamp(x * (1.0f + y * p) / (1.0f + y * q), 1.0f);
}

INLINE vec relu(vec x) { return x < 0.0f ? vec{} : x; }

// The gradient through a ReLU, given its value: as in PyTorch, NaN lets it pass.
INLINE vec relu_gradient(vec value, vec d) { return value <= 0.0f ? vec{} : d; }

// log(1 + exp x). Beyond 0 it is x and its value at -x; log(1 + y) is the series of 2 artanh of
// y / (2 + y), which is at most 1/3.
INLINE vec softplus(vec x) {
  vec y = exponential(clamp(x < 0.0f ? x : -x, 60.0f)), w = y / (2.0f + y), v = w * w;
  vec p = 0.111111111f + v * (0.0909090909f + v * 0.0769230769f);
  p = 0.2f + v * (0.142857143f + v * p);
  return relu(x) + 2.0f * (w + w * v * (0.333333333f + v * p));
}

// log x of a normal number; minus infinity for 0. With x = 2^e y and y from 2/3 to 4/3, log y is the
// series of 2 artanh of (y - 1) / (y + 1), which is at most 1/5.
INLINE vec logarithm(vec x) {
  const bits e = ((bits)x - 0x3f2aaaabu) & 0xff800000u;
  vec exponents;
  for (int lane = 0; lane < LANES; lane++) exponents[lane] = (float)((int)e[lane] >> 23);
  const vec y = (vec)((bits)x - e), w = (y - 1.0f) / (y + 1.0f), v = w * w;
  vec p = 0.142857143f + v * (0.111111111f + v * 0.0909090909f);
  p = 0.333333333f + v * (0.2f + v * p);
  const vec value = exponents * 0.693147181f + 2.0f * (w + w * v * p);
  return x != x ? x : x == 0.0f ? vec{} - __builtin_inff() : value;
}

// Cosines (or sines) of a row, in place. A multiple of pi / 2 is subtracted first, in three parts
// whose products with the multiple are exact up to 8,000.
NOINLINE void cos_or_sin(float *row, long units, bool sine) {
  vec most = {};
  for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
    const vec x = load(row + unit, n), size = x < 0.0f ? -x : x;
    most = size < most ? most : size;
  }
  if (!(largest(most) < 8000.0f)) {
    for (long unit = 0; unit < units; unit++)
      row[unit] = (float)(sine ? __builtin_sin(row[unit]) : __builtin_cos(row[unit]));
    return;
  }
  for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
    const float round = 12582912.0f;  // as in `exponential`
    const vec x = load(row + unit, n), shifted = x * 0.636619772f + round, k = shifted - round;
    const vec r = x - k * 1.5703125f - k * 4.8375129699707031e-4f - k * 7.5497899548918821e-8f;
    const vec y = r * r;
    vec s = 8.3321608736e-3f - y * 1.9515295891e-4f;
    s = r + r * y * (y * s - 1.6666654611e-1f);
    vec c = y * 2.443315711809948e-5f - 1.388731625493765e-3f;
    c = 1.0f - 0.5f * y + y * y * (4.166664568298827e-2f + y * c);
    // A sine is the cosine a quarter turn earlier. Two of the four quarters swap s and c, and two
    // flip the sign.
    const bits quarter = (bits)shifted + (sine ? 3u : 0u);
    const vec value = (quarter & 1u) != 0u ? s : c;
    store(row + unit, ((quarter + 1u) & 2u) != 0u ? -value : value, n);
  }
}
