// The gradient of weights: a sum of outer products over the rows of many steps at once.

constexpr long DEPTH = 256;  // rows that are summed while the rest stays in the cache

// Gradients of a weight matrix, whose rows may be a stride apart, and of its bias, or null.
struct WeightGradient {
  float *matrix, *bias;
  long stride = 0;  // 0 for rows side by side
};

// Pack the columns of d for `depth` rows in panels of one vector, (depth, LANES), and sum them.
static void pack_gradient(const float *d, long stride, long columns, long depth, WriteMode mode,
                          float *sums, float *to) {
  for (long column = 0; column < columns; column += LANES, to += DEPTH * LANES) {
    vec sum = {};
    for (long k = 0; k < depth;) {
      vec part = {};  // short partial sums lose less to rounding
      for (const long end = k + 16 < depth ? k + 16 : depth; k < end; k++) {
        const vec row = load(d + k * stride + column, columns - column);
        store(to + k * LANES, row);
        part += row;
      }
      sum += part;
    }
    if (!sums) continue;
    if (mode == ADD) sum += load(sums + column, columns - column);
    store(sums + column, sum, columns - column);
  }
}

// out.matrix (+)= d^T input, and out.bias (+)= the column sums of d. For rows first to last of each
// step, `d` has contiguous rows of `columns`, `stride` apart, and `input` has rows of `width`.
static void outer(const float *d, long stride, long columns, Rows<const float> input, long width,
                  long steps, long first, long last, WriteMode mode, WeightGradient out,
                  float *workspace) {
  alignas(4 * LANES) float sums[MAX_ROWS * MAX_VECTORS * LANES];
  const long rows = last - first, all = steps * rows;
  float *panel = workspace + DEPTH * padded(columns);
  const long out_stride = out.stride ? out.stride : width;
  long done = 0;
  do {
    const long depth = all - done < DEPTH ? all - done : DEPTH;
    pack_gradient(d + done * stride, stride, columns, depth, mode, out.bias, workspace);
    for (long from = 0, vectors; from < width; from += vectors * LANES) {
      vectors = panel_vectors(from, width);
      for (long k = 0; k < depth; k++) {
        const long step = (done + k) / rows, row = first + (done + k) % rows;
        const float *source = input.row(row) + step * input.step + from;
        for (long v = 0; v < vectors; v++)
          store(panel + (k * vectors + v) * LANES,
                load(source + v * LANES, width - from - v * LANES));
      }
      for (long column = 0; column < columns; column += LANES) {
        const long left = columns - column < LANES ? columns - column : LANES;
        const Blocks blocks(left, tile_rows(vectors));
        for (long block = 0, row = 0; block < blocks.count; block++) {
          const long end = row + blocks.rows(block);
          tile_of(vectors, end - row, workspace + column * DEPTH + row, 1, LANES, panel, depth,
                  sums);
          for (const float *sum = sums; row < end; row++, sum += vectors * LANES)
            write_tile(mode, nullptr, sum, from, vectors, width,
                       out.matrix + (column + row) * out_stride);
        }
      }
    }
    done += DEPTH;
    mode = ADD;
  } while (done < all);
}

static void add(float *to, const float *from, long n) {
  for (long i = 0; i < n; i++) to[i] += from[i];
}
