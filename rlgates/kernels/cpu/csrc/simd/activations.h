// Axis A of a gate: the raw gate from its pre-activation, for a row of units at a time.

struct Slope {
  vec value, slope;
};

// `value`: the raw gate; `to_save`: what the backward pass needs of it (the value, or the
// pre-activation where the slope does not follow from the value); `recall`: value and slope from
// that; `passing`: the gradient, or 0 where a clamp stops it.
struct Smooth {
  INLINE vec passing(vec, vec d) { return d; }
};

struct Sigmoid : Smooth {
  INLINE vec value(vec z) { return sigmoid(z); }
  INLINE vec to_save(vec, vec value) { return value; }
  INLINE Slope recall(vec saved) { return {saved, saved * (1.0f - saved)}; }
};

// sinh and cosh, clamped as in `rlgates.gates`
struct Hyperbolic {
  vec sine, cosine;
};
INLINE Hyperbolic hyperbolic(vec z) {
  vec up = exponential(clamp(z, 8.0f)), down = 1.0f / up;
  return {0.5f * (up - down), 0.5f * (up + down)};
}
// The gradient through that clamp: 0 beyond it and for NaN, whatever d is.
INLINE vec clamped_gradient(vec z, vec d) {
  return (z < 0.0f ? -z : z) <= 8.0f ? d : vec{};
}

struct Fast {
  INLINE vec value(vec z) { return sigmoid(hyperbolic(z).sine); }
  INLINE vec to_save(vec z, vec) { return z; }
  INLINE Slope recall(vec saved) {
    Hyperbolic h = hyperbolic(saved);
    vec f = sigmoid(h.sine);
    return {f, f * (1.0f - f) * h.cosine};
  }
  INLINE vec passing(vec saved, vec d) { return clamped_gradient(saved, d); }
};

struct IteratedFast {
  INLINE vec value(vec z) { return Fast::value(hyperbolic(z).sine); }
  INLINE vec to_save(vec z, vec) { return z; }
  INLINE Slope recall(vec saved) {
    Hyperbolic inner = hyperbolic(saved);
    Slope outer = Fast::recall(inner.sine);
    return {outer.value, outer.slope * inner.cosine};
  }
  INLINE vec passing(vec saved, vec d) {
    return clamped_gradient(saved, Fast::passing(hyperbolic(saved).sine, d));
  }
};

struct Softsign : Smooth {
  INLINE vec value(vec z) {
    vec y = 0.5f * z;
    return 0.5f * (y / (1.0f + size(y))) + 0.5f;
  }
  INLINE vec to_save(vec, vec value) { return value; }
  INLINE Slope recall(vec saved) {
    vec rest = 1.0f - size(2.0f * saved - 1.0f);
    return {saved, 0.25f * rest * rest};
  }
  INLINE vec size(vec x) { return (vec)((bits)x & 0x7fffffffu); }
};

// ---- cumax, which couples the units of a row: the cumulative sum of softmax --------------------

// exp(z - peak) of a softmax, clamped at -60: 1e-26 is 0 for a share, but no product with it is
// denormal.
INLINE vec softmax_term(vec z, float peak) {
  z -= peak;
  return z < -104.0f ? vec{} : exponential(clamp(z, 60.0f));
}

// The softmax of no more numbers than a vector holds, in place.
INLINE void short_softmax(float *row, long count) {
  vec place;
  for (int lane = 0; lane < LANES; lane++) place[lane] = (float)lane;
  const vec z = place < (float)count ? load(row, count) : vec{} - __builtin_inff();
  const vec terms = softmax_term(z, largest(z));
  store(row, terms * (1.0f / total(terms)), count);
}

// In place: the softmax of the pre-activations, which is what the backward pass needs.
NOINLINE void softmax(float *map, long units, float *workspace) {
  vec most = vec{} - __builtin_inff(), sum = {};
  memcpy(workspace, map, units * sizeof(float));
  for (long unit = units; unit < padded(units); unit++) workspace[unit] = -__builtin_inff();
  for (long unit = 0; unit < units; unit += LANES) {
    vec z = load(workspace + unit);
    most = z > most ? z : most;
  }
  const float peak = largest(most);
  for (long unit = 0; unit < units; unit += LANES) {
    store(workspace + unit, softmax_term(load(workspace + unit), peak));
    sum += load(workspace + unit, units - unit);  // without the padding
  }
  const float share = 1.0f / total(sum);
  for (long unit = 0; unit < units; unit += LANES)
    store(map + unit, load(workspace + unit) * share, units - unit);
}

NOINLINE void cumulative_sum(const float *terms, long units, float *sums) {
  float before = 0.0f;
  for (long unit = 0; unit < units; unit += LANES) {
    vec sum = prefix_sum<1>(load(terms + unit, units - unit)) + before;
    before = sum[LANES - 1];
    store(sums + unit, sum > 1.0f ? vec{} + 1.0f : sum);  // rounding may exceed 1
  }
}

// With p the softmax and d the gradient of the cumulative sum: p_k (s_k - mean of s under p), where
// s_k is the sum of d from k on. Overwrites d.
NOINLINE void cumax_backward(const float *p, float *d, long units, float *d_map) {
  float after = 0.0f;
  vec mean = {};
  for (long unit = padded(units) - LANES; unit >= 0; unit -= LANES) {
    vec sum = prefix_sum<-1>(load(d + unit, units - unit)) + after;
    after = sum[0];
    mean += sum * load(p + unit, units - unit);
    store(d + unit, sum);
  }
  const float less = total(mean);
  for (long unit = 0; unit < units; unit += LANES)
    store(d_map + unit, load(p + unit, units - unit) * (load(d + unit) - less), units - unit);
}

// ---- any activation ----------------------------------------------------------------------------

// Call `visit` with an elementwise activation as a type. The compiler refuses a missing one.
template <class Visitor> INLINE void with_activation(long activation, Visitor visit) {
  switch ((Activation)activation) {
    case SIGMOID: return visit(Sigmoid());
    case FAST: return visit(Fast());
    case ITERATED_FAST: return visit(IteratedFast());
    case SOFTSIGN: return visit(Softsign());
    case CUMAX: return;  // of a whole row, above
  }
}

// Compute the values of a map from its pre-activations, which become what the backward pass needs;
// or, with `saved`, from that.
static void activate(long activation, float *map, long units, bool saved, float *values) {
  if (activation == CUMAX) {
    if (!saved) softmax(map, units, values);
    return cumulative_sum(map, units, values);
  }
  with_activation(activation, [=](auto phi) {
    for (long unit = 0; unit < units; unit += LANES) {
      vec z = load(map + unit, units - unit);
      if (saved) {
        store(values + unit, phi.recall(z).value);
      } else {
        vec value = phi.value(z);
        store(values + unit, value);
        store(map + unit, phi.to_save(z, value), units - unit);
      }
    }
  });
}

// The gradients of a map from what was saved and those of its values, d, which is overwritten.
static void activate_backward(long activation, const float *saved, float *d, long units,
                              float *d_map) {
  if (activation == CUMAX) return cumax_backward(saved, d, units, d_map);
  with_activation(activation, [=](auto phi) {
    for (long unit = 0; unit < units; unit += LANES) {
      const vec from = load(saved + unit, units - unit), slope = phi.recall(from).slope;
      store(d_map + unit, phi.passing(from, load(d + unit) * slope), units - unit);
    }
  });
}
