// Vectors of LANES floats as the compiler's vector extension: nothing here is for one processor.

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef unsigned bits __attribute__((vector_size(4 * LANES)));

// Only the last vector of a row may be partial, with n lanes in memory. Compilers turn these loops
// into one masked move where the processor has it.
NOINLINE vec load_part(const float *from, int n) {
  vec part;
  for (int lane = 0; lane < LANES; lane++) part[lane] = lane < n ? from[lane] : 0.0f;
  return part;
}

NOINLINE void store_part(float *to, vec value, int n) {
  for (int lane = 0; lane < LANES; lane++)
    if (lane < n) to[lane] = value[lane];
}

INLINE vec load(const float *from, long n = LANES) {
  return __builtin_expect(n >= LANES, 1) ? (vec) * (const unaligned_vec *)from : load_part(from, n);
}

INLINE void store(float *to, vec value, long n = LANES) {
  if (__builtin_expect(n >= LANES, 1)) *(unaligned_vec *)to = value;
  else store_part(to, value, n);
}

// A number rounded up to whole vectors.
INLINE long padded(long n) { return (n + LANES - 1) / LANES * LANES; }

// An arena that hands out memory in whole vectors; with `data` null it only counts.
struct Workspace {
  float *data;
  long used;

  float *take(long floats) {
    float *place = data ? data + used : nullptr;
    used += padded(floats);
    return place;
  }
};

INLINE float largest(vec x) {
  float most = x[0];
  for (int lane = 1; lane < LANES; lane++) most = x[lane] > most ? x[lane] : most;
  return most;
}

// ---- lanes selected from two vectors by compile-time indices -----------------------------------

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#endif

typedef std::make_integer_sequence<unsigned, LANES> Lanes;

// x shifted up by some lanes (down if `by` is negative), filled with zeros.
template <int by, unsigned... i>
INLINE vec shifted(vec x, std::integer_sequence<unsigned, i...>) {
  return SHUFFLE(x, vec{}, ((unsigned)((int)i - by) < LANES ? (unsigned)((int)i - by) : LANES)...);
}

// The sums of neighbouring lanes in a, then in b.
template <unsigned... i>
INLINE vec pair_sums(vec a, vec b, std::integer_sequence<unsigned, i...>) {
  return SHUFFLE(a, b, (2 * i)...) + SHUFFLE(a, b, (2 * i + 1)...);
}

// The lanes of a and b in turn, of their lower halves (from 0) or upper ones (from LANES / 2).
template <unsigned from, unsigned... i>
INLINE vec interleaved(vec a, vec b, std::integer_sequence<unsigned, i...>) {
  return SHUFFLE(a, b, (from + i / 2 + i % 2 * LANES)...);
}

// Lane j of vector i becomes lane i of vector j.
INLINE void transpose(vec *x) {
  vec y[LANES];
#pragma GCC unroll 4
  for (int left = LANES; left > 1; left /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      y[2 * i] = interleaved<0>(x[i], x[i + LANES / 2], Lanes());
      y[2 * i + 1] = interleaved<LANES / 2>(x[i], x[i + LANES / 2], Lanes());
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) x[i] = y[i];
  }
}

// Prefix sums within a vector: from the first lane up, or (direction -1) from the last one down.
template <int direction, int by = 1> INLINE vec prefix_sum(vec x) {
  x += shifted<direction * by>(x, Lanes());
  if constexpr (2 * by < LANES) return prefix_sum<direction, 2 * by>(x);
  else return x;
}

// The sum of all lanes, in pairs, pairs of pairs, ...
INLINE float total(vec x) { return prefix_sum<-1>(x)[0]; }
