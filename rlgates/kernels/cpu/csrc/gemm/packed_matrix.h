// A weight matrix as the right-hand side of a product.

// A matrix (depth, columns) with entry (k, n) at weights[k * depth_stride + n * column_stride].
// Packed copies store panels: up to MAX_VECTORS vectors of columns as (depth, vectors, LANES), the
// last one padded with zeros, so that a tile reads them in order.
struct PackedMatrix {
  const float *weights;
  long depth, columns, depth_stride, column_stride;
  float *panels;  // null where too few rows read the matrix for packing to pay

  long size() const { return depth * padded(columns); }
};

// Pack one vector of columns of a panel, of a matrix with contiguous rows,
static void pack_rows(const PackedMatrix &matrix, long column, long width, float *to) {
  for (long k = 0; k < matrix.depth; k++)
    store(to + k * width,
          load(matrix.weights + k * matrix.depth_stride + column, matrix.columns - column));
}

// and of one with contiguous columns.
static void pack_columns(const PackedMatrix &matrix, long column, long width, float *to) {
  for (long k = 0; k < matrix.depth; k += LANES) {
    vec block[LANES];
    for (long i = 0; i < LANES; i++)
      block[i] = column + i < matrix.columns
                     ? load(matrix.weights + (column + i) * matrix.column_stride + k,
                            matrix.depth - k)
                     : vec{};
    transpose(block);
    for (long i = 0; i < LANES && k + i < matrix.depth; i++) store(to + (k + i) * width, block[i]);
  }
}

static void pack(const PackedMatrix &matrix) {
  const auto pack_vector = matrix.column_stride == 1 ? pack_rows : pack_columns;
  float *panel = matrix.panels;
  for (long column = 0, vectors; column < matrix.columns; column += vectors * LANES) {
    vectors = panel_vectors(column, matrix.columns);
    for (long v = 0; v < vectors; v++)
      pack_vector(matrix, column + v * LANES, vectors * LANES, panel + v * LANES);
    panel += vectors * LANES * matrix.depth;
  }
}
