// The product of some rows with a matrix of weights.

// Rows of several steps: row r of step t is at `data[t * step + r * stride]`.
template <class T> struct Rows {
  T *data;
  long stride, step;

  T *row(long r) const { return data + r * stride; }
  Rows from(long column) const { return {data + column, stride, step}; }
  operator Rows<const T>() const { return {data, stride, step}; }
};

enum WriteMode { SET, ADD };

// Write the sums of a tile's row to `out`, from column `from` on: added to it, or set, with `bias`
// (columns) if it is not null.
INLINE void write_tile(WriteMode mode, const float *bias, const float *sums, long from,
                       long vectors, long columns, float *out) {
  for (long v = 0; v < vectors; v++, from += LANES) {
    const long n = columns - from;
    vec base = {};
    if (mode == ADD) base = load(out + from, n);
    else if (bias) base = load(bias + from, n);
    store(out + from, base + load(sums + v * LANES), n);
  }
}

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

// A product for few rows, with a matrix that is not packed and has contiguous columns: dot products
// of LANES / 4 rows and four columns at a time, whose sums fill a vector.
NOINLINE void multiply_unpacked(const PackedMatrix &matrix, const float *a, long stride, long rows,
                                WriteMode mode, const float *bias, float *out, long out_stride) {
  constexpr int M = LANES / 4, N = 4;
  for (long column = 0; column < matrix.columns; column += N)
    for (long row = 0; row < rows; row += M) {
      const float *left[M], *right[N];
      for (int m = 0; m < M; m++) left[m] = a + (row + m < rows ? row + m : row) * stride;
      for (int n = 0; n < N; n++)
        right[n] = matrix.weights +
                   (column + n < matrix.columns ? column + n : column) * matrix.column_stride;
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
      for (; k + LANES <= matrix.depth; k += LANES) add(k, LANES);
      if (k < matrix.depth) add(k, matrix.depth - k);
      // Add neighbouring lanes until each sum is one number in its own lane.
#pragma GCC unroll 4
      for (int left = LANES / 2; left; left /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < left; i++)
          sum[i] = pair_sums(sum[2 * i], sum[2 * i + 1], Lanes());
      alignas(4 * LANES) float sums[LANES];
      store(sums, sum[0]);
      for (long m = 0; m < M && row + m < rows; m++) {
        float *to = out + (row + m) * out_stride + column;
        const float *base = mode == ADD ? to : bias ? bias + column : nullptr;
        if (matrix.columns - column >= N) {
          *(vec4 *)to = *(vec4 *)(sums + m * N) + (base ? *(const vec4 *)base : vec4{});
        } else {
          for (long n = 0; n < matrix.columns - column; n++)
            to[n] = sums[m * N + n] + (base ? base[n] : 0.0f);
        }
      }
    }
}

// out (+)= a * matrix, for rows first to last of each of some steps.
static void multiply(const PackedMatrix &matrix, Rows<const float> a, Rows<float> out, long steps,
                     long first, long last, WriteMode mode, const float *bias = nullptr) {
  if (!matrix.panels) {
    for (long t = 0; t < steps; t++)
      multiply_unpacked(matrix, a.data + t * a.step + first * a.stride, a.stride, last - first,
                        mode, bias, out.data + t * out.step + first * out.stride, out.stride);
    return;
  }
  alignas(4 * LANES) float sums[MAX_ROWS * MAX_VECTORS * LANES];
  const float *panel = matrix.panels;
  for (long column = 0, vectors; column < matrix.columns; column += vectors * LANES) {
    vectors = panel_vectors(column, matrix.columns);
    const Blocks blocks(last - first, tile_rows(vectors));
    for (long t = 0; t < steps; t++)
      for (long block = 0, row = first; block < blocks.count; block++) {
        const long end = row + blocks.rows(block);
        tile_of(vectors, end - row, a.data + t * a.step + row * a.stride, a.stride, 1, panel,
                matrix.depth, sums);
        for (const float *sum = sums; row < end; row++, sum += vectors * LANES)
          write_tile(mode, bias, sum, column, vectors, matrix.columns, out.row(row) + t * out.step);
      }
    panel += vectors * LANES * matrix.depth;
  }
}
