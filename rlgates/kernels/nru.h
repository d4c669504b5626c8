// The NRU: h' of x and [h ; m], then from [h' ; m] what is written into m and erased from it: rows
// that are products of two maps, brought to a 5-norm of 1.

struct Nru {
  // (d, I), (d); (d, d + m), (C, d + m), (C); gain and offset (d) of the normalization, or null.
  enum { INPUT, BIAS, STATE, MAPS, MAPS_BIAS, GAIN, OFFSET };
  enum { BEFORE, AFTER, NORMAL, SCALE, MAPPED };  // [h ; m], [h' ; m], (d), (1), (C)
  static constexpr bool REREADS = false;
  const long units, memory, heads, side, wide, columns;
  const bool rectified;
  const Track d_maps, d_read;
  float *const rows, *const d_rows, *const lengths;  // (k m), (k m), (k)

  static long matrices(const Loop &) { return 2; }
  static Factor matrix(const Loop &c, long i, bool back) {
    const long d = c.sizes[0], wide = d + c.sizes[1];
    if (i == 0) return matrix_of(c.weights[STATE], d, wide, back);
    return matrix_of(c.weights[MAPS], c.kept_width[MAPPED], wide, back);
  }

  Nru(const Turn &at, Room &room)
      : units(at.c.sizes[0]), memory(at.c.sizes[1]), heads(at.c.sizes[2]), side(at.c.sizes[3]),
        wide(units + memory), columns(at.c.kept_width[MAPPED]), rectified(at.c.sizes[4]),
        d_maps(at.of_slab(columns, room)), d_read(Track(room, wide, at.first, at.last, 1)),
        rows(room.take(heads * memory)), d_rows(room.take(heads * memory)),
        lengths(room.take(heads)) {}

  // Of the maps of a row, or their gradients: the amounts to write (0) or erase (1), and the two
  // maps whose products these rows are.
  struct Pair {
    float *amounts, *first, *second;
  };
  Pair pair(float *maps, long which) const {
    float *first = maps + 2 * heads + which * side;
    return {maps + which * heads, first, first + 2 * side};
  }

  void make_rows(const Pair &p) const {
    for (long i = 0; i < side; i++)
      for (long j = 0; j < side; j++) {
        const float x = p.first[i] * p.second[j];
        rows[i * side + j] = rectified && x < 0.0f ? 0.0f : x;
      }
    for (long head = 0; head < heads; head++) {
      float *row = rows + head * memory;
      vec most = {}, sum = {};
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES) {
        const vec x = load(row + i, n), size = x < 0.0f ? -x : x;
        most = size < most ? most : size;
      }
      // Fifth powers of numbers up to 1.
      const float peak = largest(most), whole = peak < 1e-12f ? 1e-12f : peak;
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES) {
        const vec x = load(row + i, n) / whole, size = x < 0.0f ? -x : x;
        sum += size * (x * x) * (x * x);
      }
      const float norm = __builtin_powf(total(sum), 0.2f);
      lengths[head] = whole * (norm < 1.0f ? 1.0f : norm);
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES)
        store(row + i, load(row + i, n) / lengths[head], n);
    }
  }

  float amount(const Pair &p, long head, long which) const {
    const float x = rectified && p.amounts[head] < 0.0f ? 0.0f : p.amounts[head];
    return (which ? -x : x) / heads;
  }

  void forward(const Turn &at) const {
    const Loop &c = at.c;
    const Rows<float> before = at.kept[BEFORE].rows(at.t), after = at.kept[AFTER].rows(at.t);
    const Rows<float> normal = at.kept[NORMAL].rows(at.t), maps = at.kept[MAPPED].rows(at.t);
    for (long row = at.first; row < at.last; row++) {
      memcpy(before.row(row), at.state(0, row), units * sizeof(float));
      for (const Rows<float> &to : {before, after})
        memcpy(to.row(row) + units, at.state(1, row), memory * sizeof(float));
    }
    at.product(0, before, normal, SET);
    for (long row = at.first; row < at.last; row++) {
      float *z = normal.row(row), *h = after.row(row);
      const float *input = at.inputs.row(at.t, row);
      for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
        store(z + i, load(z + i, n) + load(input + i, n), n);
      if (c.weights[GAIN]) *at.kept[SCALE].row(at.t, row) = normalize(z);
      for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) {
        vec x = load(z + i, n);
        if (c.weights[GAIN])
          x = x * load(c.weights[GAIN] + i, n) + load(c.weights[OFFSET] + i, n);
        store(h + i, relu(x), n);
      }
      memcpy(at.outputs.row(at.t, row), h, units * sizeof(float));
      memcpy(at.next(0, row), h, units * sizeof(float));
    }
    at.product(1, after, maps, SET, c.weights[MAPS_BIAS]);
    for (long row = at.first; row < at.last; row++) {
      float *m = at.next(1, row);
      memcpy(m, at.state(1, row), memory * sizeof(float));
      for (long which = 0; which < 2; which++) {
        const Pair p = pair(maps.row(row), which);
        make_rows(p);
        for (long head = 0; head < heads; head++) {
          const float share = amount(p, head, which);
          for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES)
            store(m + i, load(m + i, n) + share * load(rows + head * memory + i, n), n);
        }
      }
    }
  }

  // A row becomes one of mean 0 and variance 1; by what it was multiplied.
  float normalize(float *z) const {
    vec sum = {}, squares = {};
    for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) sum += load(z + i, n);
    const float mean = total(sum) / units;
    for (long i = 0; i < units; i++) z[i] -= mean;
    for (long i = 0, n = units; n > 0; i += LANES, n -= LANES)
      squares += load(z + i, n) * load(z + i, n);
    const float scale = 1.0f / __builtin_sqrtf(total(squares) / units + 1e-5f);
    for (long i = 0; i < units; i++) z[i] *= scale;
    return scale;
  }

  void backward(const Turn &at) const {
    const Rows<float> maps = at.kept[MAPPED].rows(at.t), after = at.kept[AFTER].rows(at.t);
    const Rows<float> d_z = d_maps.rows(at.t), d_wide = d_read.rows(0);
    for (long row = at.first; row < at.last; row++)
      for (long which = 0; which < 2; which++) {
        const Pair p = pair(maps.row(row), which), d = pair(d_z.row(row), which);
        make_rows(p);
        backward_rows(p, d, which, at.d_state(1).row(row));
      }
    at.product(1, d_z, d_wide, SET);
    for (long row = at.first; row < at.last; row++) {
      const float *d_output = at.d_outputs.row(at.t, row), *h = after.row(row);
      float *d = d_wide.row(row), *d_h = at.d_state(0).row(row), *d_m = at.d_state(1).row(row);
      float *d_input = at.d_inputs.row(at.t, row);
      for (long i = 0, n = units; n > 0; i += LANES, n -= LANES) {
        const vec sum = load(d + i, n) + load(d_h + i, n) + load(d_output + i, n);
        store(d_input + i, load(h + i, n) > 0.0f ? sum : vec{}, n);
      }
      add(d_m, d + units, memory);
      if (at.c.weights[GAIN])
        backward_normalized(at, at.kept[NORMAL].row(at.t, row), *at.kept[SCALE].row(at.t, row),
                            d_input);
    }
    if (!at.carries()) return;
    at.product(0, at.d_inputs.rows(at.t), d_wide, SET);
    for (long row = at.first; row < at.last; row++) {
      memcpy(at.d_state(0).row(row), d_wide.row(row), units * sizeof(float));
      add(at.d_state(1).row(row), d_wide.row(row) + units, memory);
    }
  }

  // A row u = v / |v| feels what changes its direction: with the 5-norm, d less the sum of d u
  // times u |u|^3, over |v|. One that is too small for that is divided by a constant.
  void backward_rows(const Pair &p, const Pair &d, long which, const float *d_m) const {
    for (long head = 0; head < heads; head++) {
      const float *row = rows + head * memory;
      const float share = amount(p, head, which);
      float *d_row = d_rows + head * memory;
      vec products = {};
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES)
        products += load(row + i, n) * load(d_m + i, n);
      const float sum = total(products), along = lengths[head] > 1e-12f ? sum : 0.0f;
      const bool shut = rectified && p.amounts[head] <= 0.0f;
      d.amounts[head] = shut ? 0.0f : (which ? -sum : sum) / heads;
      for (long i = 0, n = memory; n > 0; i += LANES, n -= LANES) {
        const vec u = load(row + i, n), size = u < 0.0f ? -u : u;
        const vec all = load(d_m + i, n) - along * u * size * size * size;
        const vec value = all * (share / lengths[head]);
        store(d_row + i, rectified ? (u > 0.0f ? value : vec{}) : value, n);
      }
    }
    for (long j = 0; j < side; j++) d.second[j] = 0.0f;
    for (long i = 0; i < side; i++) {
      float sum = 0.0f;
      for (long j = 0; j < side; j++) {
        sum += d_rows[i * side + j] * p.second[j];
        d.second[j] += d_rows[i * side + j] * p.first[i];
      }
      d.first[i] = sum;
    }
  }

  // d: the gradients of what was scaled and moved; becomes those of the sum before.
  void backward_normalized(const Turn &at, const float *normal, float scale, float *d) const {
    const float *gain = at.c.weights[GAIN];
    float *d_gain = at.sums.of[GAIN], *d_offset = at.sums.of[OFFSET], sum = 0.0f, along = 0.0f;
    for (long i = 0; i < units; i++) {
      d_gain[i] += d[i] * normal[i];
      d_offset[i] += d[i];
      d[i] *= gain[i];
      sum += d[i];
      along += d[i] * normal[i];
    }
    for (long i = 0; i < units; i++)
      d[i] = scale * (d[i] - (sum + along * normal[i]) / units);
  }

  void weights(const Turn &at, long steps) const {
    float *const *sums = at.sums.of;
    at.add(at.d_inputs, 0, units, at.kept[BEFORE].rows(at.t), wide, steps, sums[STATE], nullptr);
    at.add(d_maps, 0, columns, at.kept[AFTER].rows(at.t), wide, steps, sums[MAPS],
           sums[MAPS_BIAS]);
  }
};
