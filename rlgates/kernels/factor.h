// A matrix of weights as the right-hand side of a product.

// A matrix (depth, columns) whose entry (k, n) stands at weights[k * by_depth + n * by_column];
// packed in panels, so that a tile reads it in order, or not.
struct Factor {
  const float *weights;
  long depth, columns, by_depth, by_column;
  float *panels;  // null if it is used for too few rows to be worth it

  long size() const { return depth * padded(columns); }
};

// A panel: a few vectors of columns, as (depth, vectors, LANES), the last one padded by zeros.
// Here one of its vectors, of a matrix whose rows stand side by side,
static void pack_rows(const Factor &f, long column, long width, float *to) {
  for (long k = 0; k < f.depth; k++)
    store(to + k * width, load(f.weights + k * f.by_depth + column, f.columns - column));
}

// and of one whose columns do.
static void pack_columns(const Factor &f, long column, long width, float *to) {
  for (long k = 0; k < f.depth; k += LANES) {
    vec block[LANES];
    for (long i = 0; i < LANES; i++)
      block[i] = column + i < f.columns
                     ? load(f.weights + (column + i) * f.by_column + k, f.depth - k)
                     : vec{};
    transpose(block);
    for (long i = 0; i < LANES && k + i < f.depth; i++) store(to + (k + i) * width, block[i]);
  }
}

static void pack(const Factor &f) {
  float *panel = f.panels;
  for (long column = 0, vectors; column < f.columns; column += vectors * LANES) {
    vectors = panel_vectors(column, f.columns);
    for (long v = 0; v < vectors; v++)
      (f.by_column == 1 ? pack_rows : pack_columns)(f, column + v * LANES, vectors * LANES,
                                                    panel + v * LANES);
    panel += vectors * LANES * f.depth;
  }
}
