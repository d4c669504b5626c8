// The product of some rows with a matrix of weights.

// Rows of some steps: row r of step t at `at[t * step + r * stride]`.
template <class T> struct Rows {
  T *at;
  long stride, step;

  T *row(long r) const { return at + r * stride; }
  Rows from(long column) const { return {at + column, stride, step}; }
  operator Rows<const T>() const { return {at, stride, step}; }
};

enum Into { SET, ADD };

// In: out (rows, columns) of the product; `bias` (columns) or null is added where it is set.
INLINE void finish(Into into, const float *bias, const float *sums, long from, long vectors,
                   long columns, float *out) {
  for (long v = 0; v < vectors; v++, from += LANES) {
    const long n = columns - from;
    vec base = {};
    if (into == ADD) base = load(out + from, n);
    else if (bias) base = load(bias + from, n);
    store(out + from, base + load(sums + v * LANES), n);
  }
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

// A few rows with weights as they are, whose entries of a column stand side by side: the scalar
// products of LANES / 4 rows and four columns at a time, whose sums fill a vector.
APART void few(const Factor &f, const float *a, long stride, long rows, Into into,
               const float *bias, float *out, long out_stride) {
  constexpr int M = LANES / 4, N = 4;
  for (long column = 0; column < f.columns; column += N)
    for (long row = 0; row < rows; row += M) {
      const float *left[M], *right[N];
      for (int m = 0; m < M; m++) left[m] = a + (row + m < rows ? row + m : row) * stride;
      for (int n = 0; n < N; n++)
        right[n] = f.weights + (column + n < f.columns ? column + n : column) * f.by_column;
      vec sum[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) sum[i] = vec{};
      auto add = [&](long k, long lanes) __attribute__((always_inline)) {
        vec b[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) b[n] = load(right[n] + k, lanes);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const vec from = load(left[m] + k, lanes);
#pragma GCC unroll 4
          for (int n = 0; n < N; n++) sum[m * N + n] += from * b[n];
        }
      };
      long k = 0;
      for (; k + LANES <= f.depth; k += LANES) add(k, LANES);
      if (k < f.depth) add(k, f.depth - k);
      // Neighbours are added until one number is left of each sum, in its own lane.
#pragma GCC unroll 4
      for (int left = LANES / 2; left; left /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < left; i++)
          sum[i] = neighbours(sum[2 * i], sum[2 * i + 1], Lanes());
      alignas(4 * LANES) float sums[LANES];
      store(sums, sum[0]);
      for (long m = 0; m < M && row + m < rows; m++) {
        float *to = out + (row + m) * out_stride + column;
        const float *base = into == ADD ? to : bias ? bias + column : nullptr;
        if (f.columns - column >= N) {
          *(four *)to = *(four *)(sums + m * N) + (base ? *(const four *)base : four{});
        } else {
          for (long n = 0; n < f.columns - column; n++)
            to[n] = sums[m * N + n] + (base ? base[n] : 0.0f);
        }
      }
    }
}

// out (+)= a * f, for rows first to last of each of some steps
static void multiply(const Factor &f, Rows<const float> a, Rows<float> out, long steps, long first,
                     long last, Into into, const float *bias = nullptr) {
  if (!f.panels) {
    for (long t = 0; t < steps; t++)
      few(f, a.at + t * a.step + first * a.stride, a.stride, last - first, into, bias,
          out.at + t * out.step + first * out.stride, out.stride);
    return;
  }
  alignas(4 * LANES) float sums[MOST_ROWS * MOST_VECTORS * LANES];
  const float *panel = f.panels;
  for (long column = 0, vectors; column < f.columns; column += vectors * LANES) {
    vectors = panel_vectors(column, f.columns);
    const Blocks blocks(last - first, rows_of(vectors));
    for (long t = 0; t < steps; t++)
      for (long block = 0, row = first; block < blocks.count; block++) {
        const long end = row + blocks.rows(block);
        tile_of(vectors, end - row, a.at + t * a.step + row * a.stride, a.stride, 1, panel,
                f.depth, sums);
        for (const float *sum = sums; row < end; row++, sum += vectors * LANES)
          finish(into, bias, sum, column, vectors, f.columns, out.row(row) + t * out.step);
      }
    panel += vectors * LANES * f.depth;
  }
}
