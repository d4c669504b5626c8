// Functions of a vector: within a few ulp of the true value, and NaN for NaN.

INLINE vec clamp(vec x, float bound) {
  x = x > bound ? vec{} + bound : x;
  return x < -bound ? vec{} - bound : x;
}

// exp x for |x| <= 87. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
INLINE vec exponential(vec x) {
  const float round = 12582912.0f;
  vec shifted = x * 1.44269504f + round, n = shifted - round;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;  // x - n ln 2, ln 2 in two parts
  vec p = 8.36878130e-3f + r * 1.38144672e-3f;
  p = 4.16683927e-2f + r * p;
  p = 1.66665196e-1f + r * p;
  p = 4.99999940e-1f + r * p;
  p = 1.0f + (r + r * r * p);
  return (vec)((bits)p + ((bits)shifted << 23));  // times 2^n
}

// Held at +-60: 1e-26 is 0 for a gate, but a product with it is not denormal, which would take
// a hundred times as long.
INLINE vec sigmoid(vec z) { return 1.0f / (1.0f + exponential(-clamp(z, 60.0f))); }

// x P(x^2) / Q(x^2), fitted to tanh up to 8.88, from where on it is 1 in float32; never above.
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
