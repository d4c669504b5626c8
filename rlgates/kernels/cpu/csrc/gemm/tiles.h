// The inner loop of all products: a tile of some rows by some vectors whose sums stay in registers.

constexpr long MAX_ROWS = 12, MAX_VECTORS = 4;

// The rows of a tile of so many vectors: as many as the registers hold.
constexpr long tile_rows(long vectors) {
  return SUMS / vectors < MAX_ROWS ? SUMS / vectors : MAX_ROWS;
}

// The width in vectors of the panel that begins at `column`.
INLINE long panel_vectors(long column, long columns) {
  const long left = (columns - column + LANES - 1) / LANES;
  return left < MAX_VECTORS ? left : MAX_VECTORS;
}

// sums[m][v] = sum over k of a[m * stride + k * step] * panel[k][v]
template <int M, int V>
static void tile(const float *a, long stride, long step, const float *panel, long depth,
                 float *sums) {
  vec sum[M][V] = {};
  for (long k = 0; k < depth; k++, panel += V * LANES, a += step) {
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

// Calls `tile` with the number of rows as a compile-time constant: M counts down to it.
template <int M, int V>
INLINE void tile_of(long rows, const float *a, long stride, long step, const float *panel,
                    long depth, float *sums) {
  if (rows == M) tile<M, V>(a, stride, step, panel, depth, sums);
  else if constexpr (M > 1) tile_of<M - 1, V>(rows, a, stride, step, panel, depth, sums);
}

NOINLINE void tile_of(long vectors, long rows, const float *a, long stride, long step,
                   const float *panel, long depth, float *sums) {
  switch (vectors) {
    case 1: return tile_of<tile_rows(1), 1>(rows, a, stride, step, panel, depth, sums);
    case 2: return tile_of<tile_rows(2), 2>(rows, a, stride, step, panel, depth, sums);
    case 3: return tile_of<tile_rows(3), 3>(rows, a, stride, step, panel, depth, sums);
    default: return tile_of<tile_rows(4), 4>(rows, a, stride, step, panel, depth, sums);
  }
}

// Rows divided into blocks of nearly equal size, at most `max_size` each.
struct Blocks {
  long count, size, larger;
  Blocks(long rows, long max_size)
      : count((rows + max_size - 1) / max_size), size(count ? rows / count : 0),
        larger(count ? rows % count : 0) {}
  long rows(long block) const { return size + (block < larger); }
};
