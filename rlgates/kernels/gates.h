// The gates of a row of units: the effective pair (forget, input) from the maps, and back.
//
// Axis B of a gate. The maps stand side by side, as `rlgates.gates.AUXILIARIES` says.

struct Gate {
  long activation, auxiliary, units, chunk;  // chunk: units that share a master value
};

// Rows of the gates of one row of units, in whole vectors: values, or gradients of them.
struct GateRows {
  float *forget, *input, *raw, *other, *master, *master_other;
  explicit GateRows(Room &room, long units)
      : forget(room.take(units)), input(room.take(units)), raw(room.take(units)),
        other(room.take(units)), master(room.take(units)), master_other(room.take(units)) {}
};

static void complement(const float *of, float *to, long units) {
  for (long unit = 0; unit < units; unit += LANES) store(to + unit, 1.0f - load(of + unit));
}

static void negate(float *row, long units) {
  for (long unit = 0; unit < units; unit += LANES) store(row + unit, -load(row + unit));
}

// A gate of cumax falls where it lets in: its input gate is 1 - cumax.
static void activate_input(const Gate &gate, float *map, long units, bool kept, float *values) {
  activate(gate.activation, map, units, kept, values);
  if (gate.activation == CUMAX) complement(values, values, units);
}

static void activate_input_backward(const Gate &gate, const float *kept, float *d, long units,
                                    float *d_map) {
  if (gate.activation == CUMAX) negate(d, units);
  activate_backward(gate.activation, kept, d, units, d_map);
}

// A value for each chunk becomes one for each unit. From the last one down, so that it can be
// done in place.
static void spread(float *row, long units, long chunk) {
  if (chunk > 1)
    for (long unit = units - 1; unit >= 0; unit--) row[unit] = row[unit / chunk];
}

static void gather(float *row, long units, long chunk) {
  if (chunk > 1)
    for (long unit = 0; unit < units; unit += chunk) {
      float sum = 0.0f;
      for (long i = 0; i < chunk; i++) sum += row[unit + i];
      row[unit / chunk] = sum;
    }
}

// In: the pre-activations, or what was `kept` of them; out: the values, and what to keep.
static void gate_forward(const Gate &gate, float *maps, bool kept, const GateRows &rows) {
  const long units = gate.units, chunks = units / gate.chunk;
  switch (gate.auxiliary) {
    case UNTIED:
      activate_input(gate, maps, units, kept, rows.input);
      return activate(gate.activation, maps + units, units, kept, rows.forget);
    case TIED:
      activate(gate.activation, maps, units, kept, rows.forget);
      return complement(rows.forget, rows.input, units);
    case REFINE:
      activate(SIGMOID, maps, units, kept, rows.other);
      activate(gate.activation, maps + units, units, kept, rows.raw);
      for (long unit = 0; unit < units; unit += LANES) {
        vec f = load(rows.raw + unit), r = load(rows.other + unit);
        store(rows.forget + unit, f * (f + 2.0f * r * (1.0f - f)));
      }
      return complement(rows.forget, rows.input, units);
    case MASTER:
      activate(SIGMOID, maps, units, kept, rows.other);
      activate(SIGMOID, maps + units, units, kept, rows.raw);
      maps += 2 * units;
      activate_input(gate, maps, chunks, kept, rows.master_other);
      activate(gate.activation, maps + chunks, chunks, kept, rows.master);
      spread(rows.master_other, units, gate.chunk);
      spread(rows.master, units, gate.chunk);
      for (long unit = 0; unit < units; unit += LANES) {
        vec f = load(rows.master + unit), i = load(rows.master_other + unit), both = f * i;
        store(rows.forget + unit, load(rows.raw + unit) * both + (f - both));
        store(rows.input + unit, load(rows.other + unit) * both + (i - both));
      }
  }
}

// From what was kept, its `values` and the gradients `d` of the pair: the gradients of the
// pre-activations. `d` is spent.
static void gate_backward(const Gate &gate, const float *kept, const GateRows &values,
                          const GateRows &d, float *d_maps) {
  const long units = gate.units, chunks = units / gate.chunk;
  switch (gate.auxiliary) {
    case UNTIED:
      activate_input_backward(gate, kept, d.input, units, d_maps);
      return activate_backward(gate.activation, kept + units, d.forget, units, d_maps + units);
    case TIED:
      for (long unit = 0; unit < units; unit += LANES)
        store(d.raw + unit, load(d.forget + unit) - load(d.input + unit));
      return activate_backward(gate.activation, kept, d.raw, units, d_maps);
    case REFINE:
      for (long unit = 0; unit < units; unit += LANES) {
        vec f = load(values.raw + unit), r = load(values.other + unit);
        vec both = 2.0f * (load(d.forget + unit) - load(d.input + unit));
        store(d.raw + unit, both * (f + r - 2.0f * r * f));
        store(d.other + unit, both * f * (1.0f - f));
      }
      activate_backward(SIGMOID, kept, d.other, units, d_maps);
      return activate_backward(gate.activation, kept + units, d.raw, units, d_maps + units);
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
      gather(d.master_other, units, gate.chunk);
      gather(d.master, units, gate.chunk);
      activate_backward(SIGMOID, kept, d.other, units, d_maps);
      activate_backward(SIGMOID, kept + units, d.raw, units, d_maps + units);
      kept += 2 * units, d_maps += 2 * units;
      activate_input_backward(gate, kept, d.master_other, chunks, d_maps);
      activate_backward(gate.activation, kept + chunks, d.master, chunks, d_maps + chunks);
  }
}
