// Features of small images with few colours, forward and backward: `rlgates.kernels.cpu.grid`.
//
// The embedding of a cell depends on its colour alone. So each colour is embedded once, what every
// place makes of it is computed once, and an image adds one row of this table for each place.

// The embeddings of the colours, `cells` (K, D), and the table, `places` (P, K, O), in whole vectors.
struct GridTable {
  const long colours, cell_stride, place_stride;
  float *cells, *places;

  GridTable(const GridArgs &g, long colours, Workspace &workspace)
      : colours(colours), cell_stride(padded(g.cell_dim)), place_stride(padded(g.place_dim)),
        cells(workspace.take(colours * cell_stride)),
        places(workspace.take(g.num_places * colours * place_stride)) {}

  float *cell(long colour) const { return cells + colour * cell_stride; }
  float *place(long place, long colour) const {
    return places + (place * colours + colour) * place_stride;
  }
  long size() const { return cell_stride * colours; }

  // Returns whether there is NaN among the embeddings, which are at least 0.
  bool embed(const GridArgs &g) const {
    FlushDenormals here;
    bool has_nan = false;
    for (long k = 0; k < colours; k++)
      for (long d = 0; d < cell_stride; d++) {
        float sum = d < g.cell_dim ? g.cell_bias[d] : 0.0f;
        for (long c = 0; d < g.cell_dim && c < g.channels; c++)
          sum += g.cell_weight[d * g.channels + c] * (2.0f * g.palette[k * g.channels + c] - 1.0f);
        const float nan = __builtin_nanf("");  // always the same one
        cell(k)[d] = sum > 0.0f ? sum : sum != sum ? nan : 0.0f;
        has_nan |= sum != sum;
      }
    return has_nan;
  }
  void fill(const GridArgs &g) const {
    FlushDenormals here;
    for (long p = 0; p < g.num_places; p++)
      for (long o = 0; o < g.place_dim; o += LANES)
        for (long d = 0; d < g.cell_dim; d += LANES) {
          // LANES outputs by LANES parts of a cell, then turned: one output in each lane.
          vec weights[LANES];
          for (long i = 0; i < LANES; i++)
            weights[i] = o + i < g.place_dim
                             ? load(g.place_weight + ((o + i) * g.num_places + p) * g.cell_dim + d,
                                    g.cell_dim - d)
                             : vec{};
          transpose(weights);
          const long parts = g.cell_dim - d < LANES ? g.cell_dim - d : LANES;
          for (long k = 0; k < colours; k++) {
            vec sum = d ? load(place(p, k) + o) : vec{};
            for (long i = 0; i < parts; i++) sum += cell(k)[d + i] * weights[i];
            store(place(p, k) + o, sum);
          }
        }
  }
};

// The index of every pixel's colour, in the order in which colours appear; returns their number, or
// one more than the most.
static long find_colours(const GridArgs &g) {
  long count = 0, last = 0;
  for (long image = 0; image < g.images; image++)
    for (long p = 0; p < g.num_places; p++) {
      const float *pixel = g.x + image * g.channels * g.num_places + p;
      auto is = [&](long colour) {
        for (long c = 0; c < g.channels; c++)
          if (pixel[c * g.num_places] != g.palette[colour * g.channels + c]) return false;
        return true;
      };
      if (!count || !is(last)) {
        for (last = 0; last < count && !is(last);) last++;
        if (last == GridArgs::COLOURS) return last + 1;
        if (last == count) {
          for (long c = 0; c < g.channels; c++)
            g.palette[last * g.channels + c] = pixel[c * g.num_places];
          count++;
        }
      }
      g.colours[image * g.num_places + p] = last;
    }
  return count;
}

static long grid_threads(const GridArgs &g) {
  return num_threads(g.threads, g.images, (double)g.images * g.num_places * g.place_dim);
}

static bool grid_forward(const GridArgs &g) {
  const long count = *g.num_colours = find_colours(g);
  if (count > GridArgs::COLOURS) return true;
  Workspace workspace = {};
  GridTable measured(g, count, workspace);
  AlignedBuffer buffer(workspace.used);
  if (!buffer.data) return false;
  workspace = {buffer.data, 0};
  const GridTable table(g, count, workspace);
  const bool has_nan = table.embed(g);
  table.fill(g);
  const long width = g.place_dim + g.cell_dim;
  parallel_for(g.images, grid_threads(g), [&](long first, long last, long) {
    for (long image = first; image < last; image++) {
      const unsigned char *colours = g.colours + image * g.num_places;
      float *features = g.features + image * width;
      for (long o = 0, n = g.place_dim; n > 0; o += LANES, n -= LANES) {
        vec sum = load(g.place_bias + o, n);
        for (long p = 0; p < g.num_places; p++) sum += load(table.place(p, colours[p]) + o);
        store(features + o, relu(sum), n);
      }
      for (long d = 0, n = g.cell_dim; n > 0; d += LANES, n -= LANES) {
        vec most = {};  // embeddings are at least 0
        for (long p = 0; p < g.num_places; p++) {
          const vec cell = load(table.cell(colours[p]) + d);
          most = cell > most ? cell : most;
        }
        for (long p = 0; has_nan && p < g.num_places; p++) {
          const vec cell = load(table.cell(colours[p]) + d);
          most = cell != cell ? cell : most;
        }
        store(features + g.place_dim + d, most, n);
      }
    }
  });
  return true;
}

// Gradients of the features of some images become those of the table and of the embeddings, which
// are added to.
static void grid_table_gradients(const GridArgs &g, const GridTable &table, const GridTable &d,
                                 float *row, long first, long last) {
  const long width = g.place_dim + g.cell_dim;
  for (long image = first; image < last; image++) {
    const unsigned char *colours = g.colours + image * g.num_places;
    const float *features = g.features + image * width, *d_features = g.d_features + image * width;
    for (long o = 0, n = g.place_dim; n > 0; o += LANES, n -= LANES)
      store(row + o, relu_gradient(load(features + o, n), load(d_features + o, n)));
    for (long p = 0; p < g.num_places; p++) {
      float *sums = d.place(p, colours[p]);
      for (long o = 0; o < g.place_dim; o += LANES)
        store(sums + o, load(sums + o) + load(row + o));
    }
    features += g.place_dim, d_features += g.place_dim;
    for (long unit = 0; unit < g.cell_dim; unit++) {
      // Where several colours have the maximum, it belongs to the first place, as in torch. Bits are
      // compared, since NaN is not equal to itself.
      auto is_most = [&](long p) {
        return !memcmp(table.cell(colours[p]) + unit, features + unit, sizeof(float));
      };
      long p = 0;
      while (p < g.num_places - 1 && !is_most(p)) p++;
      d.cell(colours[p])[unit] += d_features[unit];
    }
  }
}

static bool grid_backward(const GridArgs &g) {
  const long count = *g.num_colours, threads = grid_threads(g);
  Workspace shared = {}, per_thread = {};
  GridTable measured(g, count, shared), also(g, count, per_thread);
  per_thread.take(g.place_dim);
  AlignedBuffer buffer(shared.used + threads * per_thread.used);
  if (!buffer.data) return false;
  shared = {buffer.data, 0};
  const GridTable table(g, count, shared);
  table.embed(g);
  float *workspaces = buffer.data + shared.used;
  memset(workspaces, 0, threads * per_thread.used * sizeof(float));
  parallel_for(g.images, threads, [&](long first, long last, long worker) {
    Workspace workspace = {workspaces + worker * per_thread.used, 0};
    const GridTable d(g, count, workspace);
    grid_table_gradients(g, table, d, workspace.take(g.place_dim), first, last);
  });
  FlushDenormals here;
  for (long worker = 1; worker < threads; worker++)
    add(workspaces, workspaces + worker * per_thread.used, per_thread.used);
  Workspace workspace = {workspaces, 0};
  const GridTable d(g, count, workspace);
  for (long o = 0; o < g.place_dim; o++) {
    g.d_place_bias[o] = 0.0f;
    for (long k = 0; k < count; k++) g.d_place_bias[o] += d.place(0, k)[o];
    for (long p = 0; p < g.num_places; p++) {
      const long at = (o * g.num_places + p) * g.cell_dim;
      for (long unit = 0, n = g.cell_dim; n > 0; unit += LANES, n -= LANES) {
        vec sum = {};
        for (long k = 0; k < count; k++) {
          const float by = d.place(p, k)[o];
          float *d_cell = d.cell(k) + unit;
          sum += by * load(table.cell(k) + unit);
          store(d_cell, load(d_cell) + by * load(g.place_weight + at + unit, n));
        }
        store(g.d_place_weight + at + unit, sum, n);
      }
    }
  }
  for (long unit = 0; unit < g.cell_dim; unit++) {
    float *row = g.d_cell_weight + unit * g.channels;
    g.d_cell_bias[unit] = 0.0f;
    memset(row, 0, g.channels * sizeof(float));
    for (long k = 0; k < count; k++) {
      if (table.cell(k)[unit] <= 0.0f) continue;
      g.d_cell_bias[unit] += d.cell(k)[unit];
      for (long c = 0; c < g.channels; c++)
        row[c] += d.cell(k)[unit] * (2.0f * g.palette[k * g.channels + c] - 1.0f);
    }
  }
  return true;
}
