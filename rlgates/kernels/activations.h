// Axis A of a gate: a raw gate from its pre-activation, for a row of units at a time.

struct Slope {
  vec value, slope;
};

// `value` of a raw gate, what is `kept` of it for the backward pass (the value, or the
// pre-activation where the value does not tell the slope), and value and slope from that.
struct Sigmoid {
  INLINE vec value(vec z) { return sigmoid(z); }
  INLINE vec kept(vec, vec value) { return value; }
  INLINE Slope recall(vec kept) { return {kept, kept * (1.0f - kept)}; }
};

// sinh and cosh inside the clamp of `rlgates.gates`
struct Hyperbolic {
  vec sine, cosine;
};
INLINE Hyperbolic hyperbolic(vec z) {
  vec up = exponential(clamp(z, 8.0f)), down = 1.0f / up;
  return {0.5f * (up - down), 0.5f * (up + down)};
}

struct Fast {
  INLINE vec value(vec z) { return sigmoid(hyperbolic(z).sine); }
  INLINE vec kept(vec z, vec) { return z; }
  INLINE Slope recall(vec kept) {
    Hyperbolic h = hyperbolic(kept);
    vec f = sigmoid(h.sine);
    return {f, f * (1.0f - f) * h.cosine};
  }
};

struct IteratedFast {
  INLINE vec value(vec z) { return Fast::value(hyperbolic(z).sine); }
  INLINE vec kept(vec z, vec) { return z; }
  INLINE Slope recall(vec kept) {
    Hyperbolic inner = hyperbolic(kept);
    Slope outer = Fast::recall(inner.sine);
    return {outer.value, outer.slope * inner.cosine};
  }
};

struct Softsign {
  INLINE vec value(vec z) {
    vec y = 0.5f * z;
    return 0.5f * (y / (1.0f + size(y))) + 0.5f;
  }
  INLINE vec kept(vec, vec value) { return value; }
  INLINE Slope recall(vec kept) {
    vec rest = 1.0f - size(2.0f * kept - 1.0f);
    return {kept, 0.25f * rest * rest};
  }
  INLINE vec size(vec x) { return (vec)((bits)x & 0x7fffffffu); }
};

// ---- cumax, which couples the units of a row: the running sum of softmax -----------------------

// In: the pre-activations; out: softmax of them, which is what is kept.
APART void softmax(float *map, long units, float *room) {
  vec most = vec{} - 3e38f, sum = {};
  memcpy(room, map, units * sizeof(float));
  for (long unit = units; unit < padded(units); unit++) room[unit] = -3e38f;
  for (long unit = 0; unit < units; unit += LANES) {
    vec z = load(room + unit);
    most = z > most ? z : most;
  }
  const float peak = largest(most);
  for (long unit = 0; unit < units; unit += LANES) {
    // Held at -60 as in sigmoid: no term is denormal. What stands behind the row counts nothing.
    vec term = exponential(clamp(load(room + unit) - peak, 60.0f));
    store(room + unit, term);
    sum += load(room + unit, units - unit);
  }
  const float share = 1.0f / total(sum);
  for (long unit = 0; unit < units; unit += LANES)
    store(map + unit, load(room + unit) * share, units - unit);
}

APART void running_sum(const float *terms, long units, float *sums) {
  float before = 0.0f;
  for (long unit = 0; unit < units; unit += LANES) {
    vec sum = running<1>(load(terms + unit, units - unit)) + before;
    before = sum[LANES - 1];
    store(sums + unit, sum > 1.0f ? vec{} + 1.0f : sum);  // which rounding may exceed
  }
}

// With p the softmax and d the gradient of the running sum: p_k (sum of d from k on, less its mean
// under p). `d` is spent.
APART void cumax_backward(const float *p, float *d, long units, float *d_map) {
  float after = 0.0f;
  vec mean = {};
  for (long unit = padded(units) - LANES; unit >= 0; unit -= LANES) {
    vec sum = running<-1>(load(d + unit, units - unit)) + after;
    after = sum[0];
    mean += sum * load(p + unit, units - unit);
    store(d + unit, sum);
  }
  const float less = total(mean);
  for (long unit = 0; unit < units; unit += LANES)
    store(d_map + unit, load(p + unit, units - unit) * (load(d + unit) - less), units - unit);
}

// ---- any activation ----------------------------------------------------------------------------

template <class Task> INLINE void each_unit(long activation, Task task) {
  switch (activation) {
    case FAST: return task(Fast());
    case ITERATED_FAST: return task(IteratedFast());
    case SOFTSIGN: return task(Softsign());
    default: return task(Sigmoid());
  }
}

// In: the pre-activations of a map, or what was `kept` of them; out: the values, and what to keep.
static void activate(long activation, float *map, long units, bool kept, float *values) {
  if (activation == CUMAX) {
    if (!kept) softmax(map, units, values);
    return running_sum(map, units, values);
  }
  each_unit(activation, [=](auto phi) {
    for (long unit = 0; unit < units; unit += LANES) {
      vec z = load(map + unit, units - unit);
      if (kept) {
        store(values + unit, phi.recall(z).value);
      } else {
        vec value = phi.value(z);
        store(values + unit, value);
        store(map + unit, phi.kept(z, value), units - unit);
      }
    }
  });
}

// From what was kept and the gradients `d` of the values, which are spent: those of the map.
static void activate_backward(long activation, const float *kept, float *d, long units,
                              float *d_map) {
  if (activation == CUMAX) return cumax_backward(kept, d, units, d_map);
  each_unit(activation, [=](auto phi) {
    for (long unit = 0; unit < units; unit += LANES) {
      vec slope = phi.recall(load(kept + unit, units - unit)).slope;
      store(d_map + unit, load(d + unit) * slope, units - unit);
    }
  });
}
