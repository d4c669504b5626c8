// Axis B of a gate: the effective forget and input gates of a row of units from its maps, forward
// and backward. The order of the maps is that of `rlgates.gates.AUXILIARIES`.

struct Gate {
  long activation, auxiliary, units, chunk;  // chunk: how many units share a master value
  Gate(const LayerArgs &c, long units)
      : activation(c.activation), auxiliary(c.auxiliary), units(units), chunk(c.chunk_size) {}
};

// Scratch rows for the gates of one row of units, in whole vectors: values, or their gradients.
// `other` is the raw input gate or r, `master_other` the master input gate.
struct GateRows {
  float *forget, *input, *raw, *other, *master, *master_other;
  explicit GateRows(Workspace &workspace, long units)
      : forget(workspace.take(units)), input(workspace.take(units)), raw(workspace.take(units)),
        other(workspace.take(units)), master(workspace.take(units)),
        master_other(workspace.take(units)) {}
};

static void complement(const float *row, float *to, long units) {
  for (long unit = 0; unit < units; unit += LANES) store(to + unit, 1.0f - load(row + unit));
}

static void negate(float *row, long units) {
  for (long unit = 0; unit < units; unit += LANES) store(row + unit, -load(row + unit));
}

// The input gate beside a cumax is 1 - cumax, beside any other a sigmoid.
static long input_activation(const Gate &gate) {
  return gate.activation == CUMAX ? CUMAX : SIGMOID;
}

static void activate_input(const Gate &gate, float *map, long units, bool saved, float *values) {
  activate(input_activation(gate), map, units, saved, values);
  if (gate.activation == CUMAX) complement(values, values, units);
}

static void activate_input_backward(const Gate &gate, const float *saved, float *d, long units,
                                    float *d_map) {
  if (gate.activation == CUMAX) negate(d, units);
  activate_backward(input_activation(gate), saved, d, units, d_map);
}

// Repeat the value of each chunk for its units, in place: from the last chunk down.
static void repeat_chunks(float *row, long units, long chunk) {
  if (chunk > 1)
    for (long n = units / chunk - 1; n >= 0; n--) {
      const float value = row[n];
      for (long i = 0; i < chunk; i++) row[n * chunk + i] = value;
    }
}

static void sum_chunks(float *row, long units, long chunk) {
  if (chunk > 1)
    for (long unit = 0; unit < units; unit += chunk) {
      float sum = 0.0f;
      for (long i = 0; i < chunk; i++) sum += row[unit + i];
      row[unit / chunk] = sum;
    }
}

// Compute the gates from the pre-activations, which become what the backward pass needs; or, with
// `saved`, from that.
static void gate_forward(const Gate &gate, float *maps, bool saved, const GateRows &rows) {
  const long units = gate.units, chunks = units / gate.chunk;
  switch (gate.auxiliary) {
    case UNTIED:
      activate_input(gate, maps, units, saved, rows.input);
      return activate(gate.activation, maps + units, units, saved, rows.forget);
    case TIED:
      activate(gate.activation, maps, units, saved, rows.forget);
      return complement(rows.forget, rows.input, units);
    case REFINE:
      activate(SIGMOID, maps, units, saved, rows.other);
      activate(gate.activation, maps + units, units, saved, rows.raw);
      for (long unit = 0; unit < units; unit += LANES) {
        vec f = load(rows.raw + unit), r = load(rows.other + unit);
        store(rows.forget + unit, f * (f + 2.0f * r * (1.0f - f)));
      }
      return complement(rows.forget, rows.input, units);
    case MASTER:
      activate(SIGMOID, maps, units, saved, rows.other);
      activate(SIGMOID, maps + units, units, saved, rows.raw);
      maps += 2 * units;
      activate_input(gate, maps, chunks, saved, rows.master_other);
      activate(gate.activation, maps + chunks, chunks, saved, rows.master);
      repeat_chunks(rows.master_other, units, gate.chunk);
      repeat_chunks(rows.master, units, gate.chunk);
      for (long unit = 0; unit < units; unit += LANES) {
        vec f = load(rows.master + unit), i = load(rows.master_other + unit), both = f * i;
        store(rows.forget + unit, load(rows.raw + unit) * both + (f - both));
        store(rows.input + unit, load(rows.other + unit) * both + (i - both));
      }
  }
}

// The gradients of the pre-activations from what was saved, the values computed from it, and the
// gradients of the two gates in `d`, which is overwritten.
static void gate_backward(const Gate &gate, const float *saved, const GateRows &values,
                          const GateRows &d, float *d_maps) {
  const long units = gate.units, chunks = units / gate.chunk;
  switch (gate.auxiliary) {
    case UNTIED:
      activate_input_backward(gate, saved, d.input, units, d_maps);
      return activate_backward(gate.activation, saved + units, d.forget, units, d_maps + units);
    case TIED:
      for (long unit = 0; unit < units; unit += LANES)
        store(d.raw + unit, load(d.forget + unit) - load(d.input + unit));
      return activate_backward(gate.activation, saved, d.raw, units, d_maps);
    case REFINE:
      for (long unit = 0; unit < units; unit += LANES) {
        vec f = load(values.raw + unit), r = load(values.other + unit);
        vec both = 2.0f * (load(d.forget + unit) - load(d.input + unit));
        store(d.raw + unit, both * (f + r - 2.0f * r * f));
        store(d.other + unit, both * f * (1.0f - f));
      }
      activate_backward(SIGMOID, saved, d.other, units, d_maps);
      return activate_backward(gate.activation, saved + units, d.raw, units, d_maps + units);
    case MASTER:
      for (long unit = 0; unit < units; unit += LANES) {
        vec d_f = load(d.forget + unit), d_i = load(d.input + unit);
        vec f = load(values.master + unit), i = load(values.master_other + unit);
        vec d_both = d_f * (load(values.raw + unit) - 1.0f) +
                     d_i * (load(values.other + unit) - 1.0f);
        store(d.raw + unit, d_f * f * i);
        store(d.other + unit, d_i * f * i);
        store(d.master + unit, d_f + d_both * i);
        store(d.master_other + unit, d_i + d_both * f);
      }
      sum_chunks(d.master_other, units, gate.chunk);
      sum_chunks(d.master, units, gate.chunk);
      activate_backward(SIGMOID, saved, d.other, units, d_maps);
      activate_backward(SIGMOID, saved + units, d.raw, units, d_maps + units);
      saved += 2 * units, d_maps += 2 * units;
      activate_input_backward(gate, saved, d.master_other, chunks, d_maps);
      activate_backward(gate.activation, saved + chunks, d.master, chunks, d_maps + chunks);
  }
}
