// The weights of a gated layer, packed for one pass over a sequence.

// Those of the input; of the state; and of the last map of a GRU, which has a product of its own.
struct Plan {
  PackedMatrix input, state, last;
  float *bias;  // of input and state, summed
  long slab;    // steps whose input is projected at once
};

constexpr long SLAB = 64;  // rows that are projected at once

// The number of columns that read the sum of their two biases: all but the last map of a GRU whose
// reset gate acts between them.
INLINE long summed_biases(const GatedArgs &c) {
  return c.cell == GRU_AFTER ? c.joint_columns : c.columns;
}

// Packing the weights pays from so many rows (steps times batch) on.
constexpr long MIN_PACKED_ROWS = 32;

// The steps of a slab, for threads with at most so many rows of the batch.
static long slab_of(bool back, long rows, long steps) {
  const long fit = rows ? (back ? DEPTH : SLAB) / rows : steps;
  return fit < 1 ? 1 : fit < steps ? fit : steps;
}

// For threads with at most so many rows of the batch.
static Plan plan(const GatedArgs &c, bool back, long rows, Workspace &workspace) {
  const long slab = slab_of(back, rows, c.steps);
  const long rest = c.columns - c.joint_columns, both = summed_biases(c);
  const float *last = c.weight_hh + c.joint_columns * c.units;
  Plan p = {{c.weight_ih, c.input_size, c.columns, 1, c.input_size, nullptr},
            {c.weight_hh, c.units, c.joint_columns, 1, c.units, nullptr},
            {last, c.units, rest, 1, c.units, nullptr},
            workspace.take(c.columns),
            slab};
  for (long k = 0; workspace.data && k < c.columns; k++)
    p.bias[k] = c.bias_ih[k] + (k < both ? c.bias_hh[k] : 0.0f);
  if (back)
    p = {{c.weight_ih, c.columns, c.d_x ? c.input_size : 0, c.input_size, 1, nullptr},
         {c.weight_hh, c.joint_columns, c.units, c.units, 1, nullptr},
         {last, rest, rest ? c.units : 0, c.units, 1, nullptr},
         p.bias,
         slab};
  if (!back && c.steps * c.batch_size < MIN_PACKED_ROWS) return p;
  for (PackedMatrix *matrix : {&p.input, &p.state, &p.last}) {
    matrix->panels = workspace.take(matrix->size());
    if (workspace.data) pack(*matrix);
  }
  return p;
}
