// The gradient of weights: a product over the rows of many steps at once.

constexpr long DEPTH = 256;  // rows that are added up while the rest stays in the cache

// Gradients of a matrix of weights, and of the biases beside it, or null.
struct Weights {
  float *matrix, *sums;
};

// The columns of d for `depth` rows in panels of one vector, (depth, LANES); and their sums.
static void pack_columns_of(const float *d, long stride, long columns, long depth, Into into,
                            float *sums, float *to) {
  for (long column = 0; column < columns; column += LANES, to += DEPTH * LANES) {
    vec sum = {};
    for (long k = 0; k < depth;) {
      vec part = {};  // short sums, which rounding harms less
      for (const long end = k + 16 < depth ? k + 16 : depth; k < end; k++) {
        const vec row = load(d + k * stride + column, columns - column);
        store(to + k * LANES, row);
        part += row;
      }
      sum += part;
    }
    if (!sums) continue;
    if (into == ADD) sum += load(sums + column, columns - column);
    store(sums + column, sum, columns - column);
  }
}

// d^T with, which becomes `out` or is added to it, with the sums of the columns of d. For each of
// rows first to last of each step `d` has a row, side by side, and `with` one of `width`.
static void outer(const float *d, long stride, long columns, Rows<const float> with, long width,
                  long steps, long first, long last, Into into, Weights out, float *room) {
  alignas(4 * LANES) float sums[MOST_ROWS * MOST_VECTORS * LANES];
  const long rows = last - first, all = steps * rows;
  float *panel = room + DEPTH * padded(columns);
  long from = 0;
  do {
    const long depth = all - from < DEPTH ? all - from : DEPTH;
    pack_columns_of(d + from * stride, stride, columns, depth, into, out.sums, room);
    for (long at = 0, vectors; at < width; at += vectors * LANES) {
      vectors = panel_vectors(at, width);
      for (long k = 0; k < depth; k++) {
        const long step = (from + k) / rows, row = first + (from + k) % rows;
        const float *source = with.row(row) + step * with.step + at;
        for (long v = 0; v < vectors; v++)
          store(panel + (k * vectors + v) * LANES,
                load(source + v * LANES, width - at - v * LANES));
      }
      for (long column = 0; column < columns; column += LANES) {
        const long left = columns - column < LANES ? columns - column : LANES;
        const Blocks blocks(left, rows_of(vectors));
        for (long block = 0, row = 0; block < blocks.count; block++) {
          const long end = row + blocks.rows(block);
          tile_of(vectors, end - row, room + column * DEPTH + row, 1, LANES, panel, depth, sums);
          for (const float *sum = sums; row < end; row++, sum += vectors * LANES)
            finish(into, nullptr, sum, at, vectors, width, out.matrix + (column + row) * width);
        }
      }
    }
    from += DEPTH;
    into = ADD;
  } while (from < all);
}

static void add(float *to, const float *from, long n) {
  for (long i = 0; i < n; i++) to[i] += from[i];
}
