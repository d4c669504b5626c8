// What a thread sees of a layer at one step.

// A (T, B, width) tensor: all its steps, or, where no tensor is passed, the last `period` steps of
// the thread's own rows in its workspace.
struct SequenceView {
  float *data;
  long stride, step, period;

  SequenceView() = default;
  SequenceView(float *tensor, long width, long rows, long period)
      : data(tensor), stride(width), step(rows * width), period(period) {}
  SequenceView(Workspace &workspace, long width, long first, long last, long period)
      : data(workspace.take((last - first) * width * period) - first * width), stride(width),
        step((last - first) * width), period(period) {}

  Rows<float> rows(long t) const { return {data + t % period * step, stride, step}; }
  float *row(long t, long r) const { return rows(t).row(r); }
};

// The gradients of the weights, as one thread accumulates them: the first thread in the tensors
// themselves, the others in their workspaces.
struct WeightGradients {
  float *of[LayerArgs::WEIGHTS] = {};
  WeightGradients(const LayerArgs &c, bool back, long worker, Workspace &workspace) {
    for (long i = 0; back && i < LayerArgs::WEIGHTS; i++)
      of[i] = worker || !c.d_weights[i] ? workspace.take(c.weight_numel[i]) : c.d_weights[i];
  }
};

// A thread at step t: it owns rows first to last of the batch.
struct Context {
  const LayerArgs &c;
  const PackedMatrix *matrices;  // of the cell, then of the input projection
  const float *projection_bias;
  const long first, last, slab;
  const WeightGradients &d_weights;
  SequenceView x, d_x;            // (I)
  SequenceView inputs, d_inputs;  // what the steps read: x or its projection
  SequenceView noise, outputs, d_outputs, states, saved[LayerArgs::SAVED];
  SequenceView d_given;           // the gradients of the outputs; `d_outputs` is what the cell reads
  float *d_kept;                  // of zoneout: gradients that skip the cell, (S) for each row
  float *zeros;                   // (output_size)
  long offset[LayerArgs::PARTS];  // of each part in a row of `states`
  long whole[LayerArgs::PARTS];   // and in a row of the whole state, with the table
  float *outer_workspace = nullptr;
  long t = 0;

  // The projected input is one of the tensors that are saved, `projection`, or (-1) none of them.
  Context(const LayerArgs &c, const PackedMatrix *matrices, const float *projection_bias,
          const WeightGradients &d_weights, long projection, bool back, long first, long last,
          long slab, Workspace &workspace)
      : c(c), matrices(matrices), projection_bias(projection_bias), first(first), last(last),
        slab(slab), d_weights(d_weights), x(view(c.x, c.input_size)), d_x(view(c.d_x, c.input_size)),
        inputs(x), d_inputs(d_x), noise(view(c.noise, c.noise_width)),
        outputs(view(c.outputs, c.output_size)) {
    const long width = c.projected_width;
    float *place = c.saved;
    auto next_saved = [&](long steps, long width, long period) {
      if (!c.saved) return SequenceView(workspace, width, first, last, period);
      SequenceView saved(place, width, c.batch_size, steps);
      place += steps * c.batch_size * width;
      return saved;
    };
    states = next_saved(c.steps + 1, c.state_size - c.table_size, 2);
    for (long i = 0; i < LayerArgs::SAVED; i++)
      saved[i] = next_saved(c.steps, c.saved_width[i], i == projection ? slab : 1);
    if (width) inputs = projection < 0 ? slab_view(width, workspace) : saved[projection];
    for (long part = 0, next = 0; part < LayerArgs::PARTS; next += c.part_width[part++]) {
      whole[part] = next;
      offset[part] = next > c.table_at ? next - c.table_size : next;
    }
    if (!back) return;
    zeros = workspace.take(c.output_size);
    if (width) d_inputs = slab_view(width, workspace);
    d_given = d_outputs = view(c.d_outputs, c.output_size);
    if (!c.d_outputs) d_given = no_gradient();
    if (!c.d_outputs || c.zoneout[0] > 0) d_outputs = no_gradient();
    d_kept = workspace.take(zones_out() ? (last - first) * c.state_size : 0);
  }

  SequenceView view(float *tensor, long width) const {
    return SequenceView(tensor, width, c.batch_size, c.steps);
  }
  SequenceView no_gradient() const { return SequenceView(zeros, 0, 0, 1); }
  // Workspace for the steps of a slab, side by side.
  SequenceView slab_view(long width, Workspace &workspace) const {
    return SequenceView(workspace, width, first, last, slab);
  }
  // The steps of the slab that begins at a step; 0 if none does.
  long slab_length(long t) const {
    if (t % slab) return 0;
    return c.steps - t < slab ? c.steps - t : slab;
  }
  // Project the input of the slab that begins at a step, if one does.
  void project(long matrix, long from) const {
    if (const long steps = c.projected_width ? slab_length(from) : 0)
      product(matrix, x.rows(from), inputs.rows(from), SET, projection_bias, steps);
  }

  bool starts_episode(long row) const { return starts_episode(row, t); }
  bool starts_episode(long row, long step) const {
    return c.episode_starts && c.episode_starts[step * c.batch_size + row];
  }
  // The two stretches of a state beside the table, as `visit(offset, place, size)`.
  template <class Visitor> void for_stretches(const Visitor &visit) const {
    const long end = c.table_at + c.table_size;
    if (c.table_at) visit(0l, 0l, c.table_at);
    if (end < c.state_size) visit(c.table_at, end, c.state_size - end);
  }
  void take_state(float *to, const float *whole) const {
    for_stretches([=](long offset, long place, long size) {
      memcpy(to + offset, whole + place, size * sizeof(float));
    });
  }
  // The state before the step, part by part, and the one after it.
  Rows<float> part(long part) const { return states.rows(t).from(offset[part]); }
  const float *state(long part, long row) const { return states.row(t, row) + offset[part]; }
  float *next(long part, long row) const { return states.row(t + 1, row) + offset[part]; }
  // The gradients of the state after the step, which become those of the state before it.
  Rows<float> d_state(long part) const { return {c.d_state + whole[part], c.state_size, 0}; }
  bool needs_d_state() const { return t || c.needs_state_grad; }

  // out (+)= a * matrix, for the thread's rows.
  void product(long matrix, Rows<const float> a, Rows<float> out, WriteMode mode,
               const float *bias = nullptr, long steps = 1) const {
    multiply(matrices[matrix], a, out, steps, first, last, mode, bias);
  }
  // Add to the gradients of a matrix and its bias (or null), from the gradients of its outputs,
  // `columns` of d for each step of a slab, and its inputs. The rows of the matrix may be a stride
  // apart.
  void add(const SequenceView &d, long column, long columns, Rows<const float> input, long width,
           long steps, float *matrix, float *bias, long stride = 0) const {
    outer(d.row(t, first) + column, d.stride, columns, input, width, steps, first, last, ADD,
          {matrix, bias, stride}, outer_workspace);
  }

  // Recurrent dropout of the candidate, which acts through the input gate alone: the gate of a unit
  // that is dropped becomes 0. On the gradients of the gate it acts likewise.
  void drop_candidates(long row, float *input_gate, long units) const {
    if (!(c.dropout > 0)) return;
    const float *noise_row = noise.row(t, row), scale = 1.0f / (1.0f - (float)c.dropout);
    for (long unit = 0, n = units; n > 0; unit += LANES, n -= LANES) {
      // A product, as in PyTorch: NaN is not dropped.
      const vec keeps = load(noise_row + unit, n) < (float)c.dropout ? vec{} : vec{} + scale;
      store(input_gate + unit, load(input_gate + unit) * keeps);
    }
  }

  // ---- zoneout: a unit keeps its old value, or in evaluation that is the expectation ----

  bool zones_out() const {
    for (double probability : c.zoneout)
      if (probability > 0) return true;
    return false;
  }
  // Calls `visit(part, row, unit, n, share)`: share is how much of the old value remains.
  template <class Visitor> void for_zoned_units(const Visitor &visit) const {
    for (long part = 0; part < LayerArgs::PARTS; part++)
      for (long row = first; row < last && c.zoneout[part] > 0; row++) {
        const float *noise_row = c.noise_width > c.dropout_width
                                     ? noise.row(t, row) + c.dropout_width + offset[part]
                                     : nullptr;
        const vec probability = vec{} + (float)c.zoneout[part];
        for (long unit = 0, n = c.part_width[part]; n > 0; unit += LANES, n -= LANES) {
          vec share = probability;
          if (noise_row) share = load(noise_row + unit, n) < probability ? vec{} + 1.0f : vec{};
          visit(part, row, unit, n, share);
        }
      }
  }
  // A cell with zoneout of its first part puts this part out.
  void zone_out() const {
    for_zoned_units([&](long part, long row, long unit, long n, vec share) {
      float *now = next(part, row) + unit;
      const vec new_value = load(now, n), old = load(state(part, row) + unit, n);
      const vec both = new_value + share * (old - new_value);
      // Selected where the choice is sharp: the value that goes may be infinite.
      const vec value = share == 0.0f ? new_value : share == 1.0f ? old : both;
      store(now, value, n);
      if (!part) store(outputs.row(t, row) + unit, value, n);
    });
  }
  // Before the backward pass of the cell, and after it.
  void split_zoned_gradients() const {
    for_zoned_units([&](long part, long row, long unit, long n, vec share) {
      float *d = d_state(part).row(row) + unit;
      vec whole = load(d, n);
      if (!part) whole += load(d_given.row(t, row) + unit, n);
      const vec kept = share == 0.0f ? vec{} : share * whole;
      store(d_kept + (row - first) * c.state_size + offset[part] + unit, kept, n);
      store(d, share == 1.0f ? vec{} : (1.0f - share) * whole, n);
    });
  }
  void add_zoned_gradients() const {
    for_zoned_units([&](long part, long row, long unit, long n, vec) {
      float *d = d_state(part).row(row) + unit;
      const float *kept = d_kept + (row - first) * c.state_size + offset[part] + unit;
      store(d, load(d, n) + load(kept, n), n);
    });
  }
};
