// The gated LSTM over a whole sequence, forward and backward through time.
//
// `native.cpp` includes this file once an instruction set, each time inside a namespace of its
// own, with LANES (floats in a vector register) and SUMS (registers that may hold running sums).
// The vectors are the compiler's own; there is nothing here for one processor alone.
//
// One step is a matrix product and the gates. The product is done in tiles of a few rows by a
// few vectors that stay in registers, and the gates are applied to a tile while it is warm.
// Rows of a batch never meet, so threads take rows and run through time without waiting.
//
// A new activation is a case in `value` and in `recall`, a new auxiliary one a case in
// `effective` and in `effective_backward`, and a name in the enumeration of `native.cpp`.

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef unsigned bits __attribute__((vector_size(4 * LANES)));

// Only the last vector of a row of units may be partial: n lanes of it exist in memory.
INLINE vec load(const float *from, long n = LANES) {
  if (n >= LANES) return *(const loose_vec *)from;
  float part[LANES] = {};
  memcpy(part, from, n * sizeof(float));
  return *(const loose_vec *)part;
}

INLINE void store(float *to, vec value, long n = LANES) {
  if (n >= LANES) *(loose_vec *)to = value;
  else memcpy(to, &value, n * sizeof(float));
}

// ---- functions: within a few ulp of the true value, and NaN for NaN ----------------------------

INLINE vec clamp(vec x, float bound) {
  x = x > bound ? vec{} + bound : x;
  return x < -bound ? vec{} - bound : x;
}

// exp x for |x| <= 87. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
INLINE vec exponential(vec x) {
  const float round = 12582912.0f;
  vec shifted = x * 1.44269504f + round, n = shifted - round;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;  // x - n ln 2, ln 2 in two parts
  vec p = 8.36878130e-3f + r * 1.38144672e-3f;
  p = 4.16683927e-2f + r * p;
  p = 1.66665196e-1f + r * p;
  p = 4.99999940e-1f + r * p;
  p = 1.0f + (r + r * r * p);
  return (vec)((bits)p + ((bits)shifted << 23));  // times 2^n
}

// Held at +-60: 1e-26 is 0 for a gate, but a product with it is not denormal, which would take
// a hundred times as long.
INLINE vec sigmoid(vec z) { return 1.0f / (1.0f + exponential(-clamp(z, 60.0f))); }

// x P(x^2) / Q(x^2), fitted to tanh up to 8.88, from where on it is 1 in float32; never above.
INLINE vec hyperbolic_tangent(vec x) {
  x = clamp(x, 8.88f);
  vec y = x * x;
  vec p = 2.060902383e-5f + y * 1.335457569e-8f;
  vec q = 3.285629136e-4f + y * 7.776524217e-7f;
  p = 3.495584710e-3f + y * p;
  q = 2.587696933e-2f + y * q;
  p = 1.338102280e-1f + y * p;
  q = 4.671433840e-1f + y * q;
  return clamp(x * (1.0f + y * p) / (1.0f + y * q), 1.0f);
}

// sinh and cosh inside the clamp of `rlgates.gates`
struct Hyperbolic {
  vec sine, cosine;
};
INLINE Hyperbolic hyperbolic(vec z) {
  vec up = exponential(clamp(z, 8.0f)), down = 1.0f / up;
  return {0.5f * (up - down), 0.5f * (up + down)};
}

// ---- the two axes of a gate --------------------------------------------------------------------

// Axis A: `value` of a raw gate, what is `kept` of it for the backward pass (the value, or the
// pre-activation where the value does not tell the slope), and value and slope from that.
struct Slope {
  vec value, slope;
};

template <int activation> INLINE vec value(vec z) {
  switch (activation) {
    case FAST: return sigmoid(hyperbolic(z).sine);
    case ITERATED_FAST: return sigmoid(hyperbolic(hyperbolic(z).sine).sine);
    case SOFTSIGN: {
      vec y = 0.5f * z, size = (vec)((bits)y & 0x7fffffffu);
      return 0.5f * (y / (1.0f + size)) + 0.5f;
    }
    default: return sigmoid(z);
  }
}

template <int activation> INLINE vec kept(vec z, vec value) {
  return activation == FAST || activation == ITERATED_FAST ? z : value;
}

template <int activation> INLINE Slope recall(vec kept) {
  switch (activation) {
    case FAST: {
      Hyperbolic h = hyperbolic(kept);
      vec f = sigmoid(h.sine);
      return {f, f * (1.0f - f) * h.cosine};
    }
    case ITERATED_FAST: {
      Hyperbolic inner = hyperbolic(kept), outer = hyperbolic(inner.sine);
      vec f = sigmoid(outer.sine);
      return {f, f * (1.0f - f) * outer.cosine * inner.cosine};
    }
    case SOFTSIGN: {
      vec y = 2.0f * kept - 1.0f, rest = 1.0f - (vec)((bits)y & 0x7fffffffu);
      return {kept, 0.25f * rest * rest};
    }
    default: return {kept, kept * (1.0f - kept)};
  }
}

// Axis B: the effective pair from the raw gate f and `other`, the map before it in the stack
// (i of untied gates, r of refine gates, none of tied gates).
struct Pair {
  vec forget, input;
};

template <int auxiliary> INLINE Pair effective(vec f, vec other) {
  switch (auxiliary) {
    case UNTIED: return {f, other};
    case REFINE: f = f * (f + 2.0f * other * (1.0f - f)); break;
  }
  return {f, 1.0f - f};
}

// The gradients of the raw gates from those of the effective pair.
template <int auxiliary> INLINE Pair effective_backward(Pair d, vec f, vec other) {
  vec both = d.forget - d.input;
  switch (auxiliary) {
    case UNTIED: return d;
    case REFINE:
      return {2.0f * both * (f + other - 2.0f * other * f), 2.0f * both * f * (1.0f - f)};
    default: return {both, both};
  }
}

// ---- one step of the cell, for one row and one vector of units ---------------------------------

// In: the recurrent part of the pre-activations, map k at recurrent + k * stride.
template <int activation, int auxiliary>
static void cell_forward(const Sequence &s, long t, long row, long unit, long n,
                         const float *recurrent, long stride) {
  constexpr int maps = auxiliary == TIED ? 3 : 4, at = maps - 3;
  const long place = t * s.rows + row, width = s.units;
  const bool start = s.starts && s.starts[place];
  float *gates = s.gates + place * maps * width + unit;
  // Where an episode starts the old state is left out and not multiplied by zero: it may be NaN.
  vec z[maps], before = {};
  for (int k = 0; k < maps; k++) z[k] = load(gates + k * width, n);
  if (!start) {
    for (int k = 0; k < maps; k++) z[k] += load(recurrent + k * stride, n);
    before = load(cells_before(s, t, row) + unit, n);
  }
  vec f = value<activation>(z[at]), u = hyperbolic_tangent(z[at + 1]), o = sigmoid(z[at + 2]);
  vec other = {};
  if (auxiliary == UNTIED) other = value<activation>(z[0]);
  if (auxiliary == REFINE) other = sigmoid(z[0]);
  Pair gate = effective<auxiliary>(f, other);
  vec cell = gate.forget * before + gate.input * u;
  store(s.cells + t * s.cell_step + row * width + unit, cell, n);
  store(s.outputs + place * width + unit, o * hyperbolic_tangent(cell), n);
  if (!s.keep) return;
  if (auxiliary == UNTIED) store(gates, kept<activation>(z[0], other), n);
  if (auxiliary == REFINE) store(gates, other, n);
  store(gates + at * width, kept<activation>(z[at], f), n);
  store(gates + (at + 1) * width, u, n);
  store(gates + (at + 2) * width, o, n);
}

// In: the gradient of the output; out: those of the pre-activations and of the old cell state.
template <int activation, int auxiliary>
static void cell_backward(const Sequence &s, long t, long row, long unit, long n, vec d_output) {
  constexpr int maps = auxiliary == TIED ? 3 : 4, at = maps - 3;
  const long place = t * s.rows + row, width = s.units;
  const bool start = s.starts && s.starts[place];
  const float *gates = s.gates + place * maps * width + unit;
  float *d_gates = s.d_gates + place * maps * width + unit;
  float *d_cells = s.d_cells + row * width + unit;
  Slope f = recall<activation>(load(gates + at * width, n)), other = {};
  if (auxiliary == UNTIED) other = recall<activation>(load(gates, n));
  if (auxiliary == REFINE) other = recall<SIGMOID>(load(gates, n));
  vec u = load(gates + (at + 1) * width, n), o = load(gates + (at + 2) * width, n);
  vec before = {};
  if (!start) before = load(cells_before(s, t, row) + unit, n);
  vec squashed = hyperbolic_tangent(load(s.cells + place * width + unit, n));
  Pair gate = effective<auxiliary>(f.value, other.value);
  vec d = load(d_cells, n) + d_output * o * (1.0f - squashed * squashed);
  Pair raw = effective_backward<auxiliary>({d * before, d * u}, f.value, other.value);
  if (auxiliary != TIED) store(d_gates, raw.input * other.slope, n);
  store(d_gates + at * width, raw.forget * f.slope, n);
  store(d_gates + (at + 1) * width, d * gate.input * (1.0f - u * u), n);
  store(d_gates + (at + 2) * width, d_output * squashed * o * (1.0f - o), n);
  store(d_cells, start ? vec{} : d * gate.forget, n);
  if (s.entering && t + 1 < s.steps) {  // the output, as it entered the next step
    const bool cut = s.starts && s.starts[place + s.rows];
    store(s.entering + (place + s.rows) * width + unit, cut ? vec{} : o * squashed, n);
  }
}

// Bring what the cell will read into the cache while the product is made: rows of a step lie too
// far apart for the processor to see them coming.
INLINE void warm(const Sequence &s, long t, long row, long unit, long maps, long vectors) {
  const long place = t * s.rows + row;
  for (long v = 0; v < vectors; v++, unit += LANES) {
    for (long map = 0; map < maps; map++)
      __builtin_prefetch(s.gates + (place * maps + map) * s.units + unit, 1);
    if (s.d_outputs) __builtin_prefetch(s.d_outputs + place * s.units + unit);
  }
}

// ---- the product -------------------------------------------------------------------------------

constexpr long MOST_ROWS = 12, MOST_VECTORS = 4, WIDE = 4;

// The rows of a tile that is `vectors` wide: as many as the registers hold.
constexpr long rows_of(long vectors) {
  return SUMS / vectors < MOST_ROWS ? SUMS / vectors : MOST_ROWS;
}

// out[m][v] = sum over k of a[m][k] * panel[k][v]
template <int M, int V>
static void product(const float *a, long stride, const float *panel, long depth, float *out) {
  vec sum[M][V] = {};
  for (long k = 0; k < depth; k++, panel += V * LANES) {
    vec b[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) b[v] = load(panel + v * LANES);
#pragma GCC unroll 12
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sum[m][v] += a[m * stride + k] * b[v];
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) store(out + (m * V + v) * LANES, sum[m][v]);
}

// The product with M rows known to the compiler; M counts down to the rows there are.
template <int M, int V>
INLINE void products(long rows, const float *a, long stride, const float *panel, long depth,
                     float *out) {
  if (rows == M) product<M, V>(a, stride, panel, depth, out);
  else if constexpr (M > 1) products<M - 1, V>(rows, a, stride, panel, depth, out);
}

static void product_of(long vectors, long rows, const float *a, long stride, const float *panel,
                       long depth, float *out) {
  switch (vectors) {
    case 1: return products<rows_of(1), 1>(rows, a, stride, panel, depth, out);
    case 2: return products<rows_of(2), 2>(rows, a, stride, panel, depth, out);
    case 3: return products<rows_of(3), 3>(rows, a, stride, panel, depth, out);
    default: return products<rows_of(4), 4>(rows, a, stride, panel, depth, out);
  }
}

// Rows cut into blocks of nearly equal size, none larger than `most`.
struct Blocks {
  long count, size, larger;
  Blocks(long rows, long most)
      : count((rows + most - 1) / most), size(rows / count), larger(rows % count) {}
  long rows(long block) const { return size + (block < larger); }
};

// ---- the weights, packed so that the product reads them in order -------------------------------

// The vectors that a panel of the backward product is wide, from `unit` on.
INLINE long panel_vectors(long unit, long units) {
  const long left = (units - unit + LANES - 1) / LANES;
  return left < WIDE ? left : WIDE;
}

// Forward, a panel: one vector of units of all maps, as (units, maps, LANES), padded by zeros.
static void pack_forward(const float *weight, long maps, long units, float *to) {
  for (long unit = 0; unit < units; unit += LANES, to += units * maps * LANES)
    for (long map = 0; map < maps; map++)
      for (long lane = 0; lane < LANES; lane++) {
        const bool padding = unit + lane >= units;
        const float *row = padding ? nullptr : weight + (map * units + unit + lane) * units;
        for (long k = 0; k < units; k++)
          to[(k * maps + map) * LANES + lane] = padding ? 0.0f : row[k];
      }
}

// Backward, a panel: a few vectors of units, as (maps * units, vectors, LANES).
static void pack_backward(const float *weight, long maps, long units, float *to) {
  for (long unit = 0, width; unit < units; unit += width) {
    width = panel_vectors(unit, units) * LANES;
    const long n = units - unit < width ? units - unit : width;
    for (long k = 0; k < maps * units; k++, to += width) {
      memcpy(to, weight + k * units + unit, n * sizeof(float));
      memset(to + n, 0, (width - n) * sizeof(float));
    }
  }
}

// ---- the sequence, for rows first to last ------------------------------------------------------

template <int activation, int auxiliary>
static void forward(const Sequence &s, long first, long last) {
  constexpr long maps = auxiliary == TIED ? 3 : 4;
  const long width = s.units;
  const Blocks blocks(last - first, rows_of(maps));
  alignas(4 * LANES) float sums[MOST_ROWS * MOST_VECTORS * LANES];
  for (long t = 0; t < s.steps; t++) {
    const float *panel = s.packed;
    for (long unit = 0; unit < width; unit += LANES, panel += width * maps * LANES)
      for (long block = 0, row = first; block < blocks.count; block++) {
        const long end = row + blocks.rows(block);
        const float *h = t ? s.outputs + ((t - 1) * s.rows + row) * width
                           : s.first_h + row * s.first_h_stride;
        for (long near = row; near < end; near++) warm(s, t, near, unit, maps, 1);
        product_of(maps, end - row, h, t ? width : s.first_h_stride, panel, width, sums);
        for (const float *sum = sums; row < end; row++, sum += maps * LANES)
          cell_forward<activation, auxiliary>(s, t, row, unit, width - unit, sum, LANES);
      }
  }
}

// One step whose product another library has made: a single step is not worth the packing.
template <int activation, int auxiliary>
static void step(const Sequence &s, long first, long last) {
  constexpr long maps = auxiliary == TIED ? 3 : 4;
  for (long row = first; row < last; row++)
    for (long unit = 0; unit < s.units; unit += LANES)
      cell_forward<activation, auxiliary>(s, 0, row, unit, s.units - unit,
                                          s.product + row * maps * s.units + unit, s.units);
}

template <int activation, int auxiliary>
static void backward(const Sequence &s, long first, long last) {
  constexpr long maps = auxiliary == TIED ? 3 : 4;
  const long width = s.units, depth = maps * width, end = s.steps - 1;
  alignas(4 * LANES) float sums[MOST_ROWS * MOST_VECTORS * LANES];
  for (long row = first; row < last; row++)
    for (long unit = 0; unit < width; unit += LANES) {
      const long n = width - unit, place = row * width + unit;
      vec d = load(s.d_outputs + end * s.rows * width + place, n) + load(s.d_h + place, n);
      cell_backward<activation, auxiliary>(s, end, row, unit, n, d);
    }
  // Step t gives the gradient of the state that entered it, and so the cell of step t - 1.
  for (long t = end; t >= (s.wants_first_h ? 0 : 1); t--) {
    const float *panel = s.packed, *d_outputs = t ? s.d_outputs + (t - 1) * s.rows * width : nullptr;
    for (long unit = 0, vectors; unit < width; unit += vectors * LANES) {
      vectors = panel_vectors(unit, width);
      const Blocks blocks(last - first, rows_of(vectors));
      for (long block = 0, row = first; block < blocks.count; block++) {
        const long below = row + blocks.rows(block);
        if (t)
          for (long near = row; near < below; near++) warm(s, t - 1, near, unit, maps, vectors);
        product_of(vectors, below - row, s.d_gates + (t * s.rows + row) * depth, depth, panel,
                   depth, sums);
        for (const float *sum = sums; row < below; row++) {
          const bool start = s.starts && s.starts[t * s.rows + row];
          for (long v = 0; v < vectors; v++, sum += LANES) {
            const long at = unit + v * LANES, n = width - at, place = row * width + at;
            vec d = start ? vec{} : load(sum);
            if (t == 0) store(s.d_h + place, d, n);
            else
              cell_backward<activation, auxiliary>(s, t - 1, row, at, n,
                                                   d + load(d_outputs + place, n));
          }
        }
      }
      panel += vectors * LANES * depth;
    }
  }
}

#define EVERY_AUXILIARY(part, activation) \
  {part<activation, UNTIED>, part<activation, TIED>, part<activation, REFINE>}
#define EVERY_GATE(part)                                        \
  {EVERY_AUXILIARY(part, SIGMOID), EVERY_AUXILIARY(part, FAST), \
   EVERY_AUXILIARY(part, ITERATED_FAST), EVERY_AUXILIARY(part, SOFTSIGN)}

static const Kernels kernels = {LANES,
                                pack_forward,
                                pack_backward,
                                EVERY_GATE(forward),
                                EVERY_GATE(step),
                                EVERY_GATE(backward)};

#undef EVERY_GATE
#undef EVERY_AUXILIARY
#undef INLINE
