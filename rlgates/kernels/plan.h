// The weights of a layer, as a pass over a sequence needs them.

// Those of the input; of the state; and of the last map of a GRU, whose product stands alone.
struct Plan {
  Factor input, state, last;
  float *bias;  // of the input and the state together
  long slab;    // steps
};

constexpr long SLAB = 64;  // rows that are projected at once

// How many maps see the sum of their two biases: where the reset gate of a GRU stands between
// them, the last one does not.
INLINE long summed_biases(const Call &c) { return c.cell == GRU_AFTER ? c.joint : c.columns; }

// A sequence of fewer rows is run without packing its weights.
constexpr long WORTH_PACKING = 32;

// The steps of a slab, for threads that have at most so many rows.
static long slab_of(bool back, long rows, long steps) {
  const long fit = rows ? (back ? DEPTH : SLAB) / rows : steps;
  return fit < 1 ? 1 : fit < steps ? fit : steps;
}

// For threads that have at most so many rows.
static Plan plan(const Call &c, bool back, long rows, Room &room) {
  const long slab = slab_of(back, rows, c.steps);
  const long rest = c.columns - c.joint, both = summed_biases(c);
  const float *last = c.weight_hh + c.joint * c.units;
  Plan p = {{c.weight_ih, c.inputs, c.columns, 1, c.inputs, nullptr},
            {c.weight_hh, c.units, c.joint, 1, c.units, nullptr},
            {last, c.units, rest, 1, c.units, nullptr},
            room.take(c.columns),
            slab};
  for (long k = 0; room.at && k < c.columns; k++)
    p.bias[k] = c.bias_ih[k] + (k < both ? c.bias_hh[k] : 0.0f);
  if (back)
    p = {{c.weight_ih, c.columns, c.d_x ? c.inputs : 0, c.inputs, 1, nullptr},
         {c.weight_hh, c.joint, c.units, c.units, 1, nullptr},
         {last, rest, rest ? c.units : 0, c.units, 1, nullptr},
         p.bias,
         slab};
  if (!back && c.steps * c.rows < WORTH_PACKING) return p;
  for (Factor *f : {&p.input, &p.state, &p.last}) {
    f->panels = room.take(f->size());
    if (room.at) pack(*f);
  }
  return p;
}
