// The heart of all products: tiles of a few rows by a few vectors whose sums stay in registers.

constexpr long MOST_ROWS = 12, MOST_VECTORS = 4;

// The rows of a tile that is `vectors` wide: as many as the registers hold.
constexpr long rows_of(long vectors) {
  return SUMS / vectors < MOST_ROWS ? SUMS / vectors : MOST_ROWS;
}

// The vectors that a panel is wide, from `column` on.
INLINE long panel_vectors(long column, long columns) {
  const long left = (columns - column + LANES - 1) / LANES;
  return left < MOST_VECTORS ? left : MOST_VECTORS;
}

// sums[m][v] = sum over k of a[m * stride + k * next] * panel[k][v]
template <int M, int V>
static void tile(const float *a, long stride, long next, const float *panel, long depth,
                 float *sums) {
  vec sum[M][V] = {};
  for (long k = 0; k < depth; k++, panel += V * LANES, a += next) {
    vec b[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) b[v] = load(panel + v * LANES);
#pragma GCC unroll 12
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[m][v] += a[m * stride] * b[v];
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(sums + (m * V + v) * LANES, sum[m][v]);
}

// The tile with M rows known to the compiler; M counts down to the rows there are.
template <int M, int V>
INLINE void tile_of(long rows, const float *a, long stride, long next, const float *panel,
                    long depth, float *sums) {
  if (rows == M) tile<M, V>(a, stride, next, panel, depth, sums);
  else if constexpr (M > 1) tile_of<M - 1, V>(rows, a, stride, next, panel, depth, sums);
}

APART void tile_of(long vectors, long rows, const float *a, long stride, long next,
                   const float *panel, long depth, float *sums) {
  switch (vectors) {
    case 1: return tile_of<rows_of(1), 1>(rows, a, stride, next, panel, depth, sums);
    case 2: return tile_of<rows_of(2), 2>(rows, a, stride, next, panel, depth, sums);
    case 3: return tile_of<rows_of(3), 3>(rows, a, stride, next, panel, depth, sums);
    default: return tile_of<rows_of(4), 4>(rows, a, stride, next, panel, depth, sums);
  }
}

// Rows cut into blocks of nearly equal size, none larger than `most`.
struct Blocks {
  long count, size, larger;
  Blocks(long rows, long most)
      : count((rows + most - 1) / most), size(count ? rows / count : 0),
        larger(count ? rows % count : 0) {}
  long rows(long block) const { return size + (block < larger); }
};
