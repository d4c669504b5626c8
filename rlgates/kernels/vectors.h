// Vectors of LANES floats, the compiler's own: there is nothing here for one processor alone.

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef unsigned bits __attribute__((vector_size(4 * LANES)));

// Only the last vector of a row may be partial: n lanes of it exist in memory.
// Compilers make of these loops one move under a mask, where the processor has one.
APART vec load_part(const float *from, int n) {
  vec part;
  for (int lane = 0; lane < LANES; lane++) part[lane] = lane < n ? from[lane] : 0.0f;
  return part;
}

APART void store_part(float *to, vec value, int n) {
  for (int lane = 0; lane < LANES; lane++)
    if (lane < n) to[lane] = value[lane];
}

INLINE vec load(const float *from, long n = LANES) {
  return __builtin_expect(n >= LANES, 1) ? (vec) * (const loose_vec *)from : load_part(from, n);
}

INLINE void store(float *to, vec value, long n = LANES) {
  if (__builtin_expect(n >= LANES, 1)) *(loose_vec *)to = value;
  else store_part(to, value, n);
}

// A number rounded up to whole vectors.
INLINE long padded(long n) { return (n + LANES - 1) / LANES * LANES; }

// Memory handed out in whole vectors; with `at` null it only counts.
struct Room {
  float *at;
  long used;

  float *take(long floats) {
    float *place = at ? at + used : nullptr;
    used += padded(floats);
    return place;
  }
};

INLINE float total(vec x) {
  float sum = 0.0f;
  for (int lane = 0; lane < LANES; lane++) sum += x[lane];
  return sum;
}

INLINE float largest(vec x) {
  float most = x[0];
  for (int lane = 1; lane < LANES; lane++) most = x[lane] > most ? x[lane] : most;
  return most;
}

// ---- lanes picked from two vectors, by numbers known to the compiler ---------------------------

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#endif

typedef std::make_integer_sequence<unsigned, LANES> Lanes;

// x moved up by some lanes (down, if the number is negative), zeros behind it
template <int by, unsigned... i>
INLINE vec moved(vec x, std::integer_sequence<unsigned, i...>) {
  return PICK(x, vec{}, ((unsigned)((int)i - by) < LANES ? (unsigned)((int)i - by) : LANES)...);
}

// the sums of neighbours in a, then in b
template <unsigned... i>
INLINE vec neighbours(vec a, vec b, std::integer_sequence<unsigned, i...>) {
  return PICK(a, b, (2 * i)...) + PICK(a, b, (2 * i + 1)...);
}

// their lanes in turn, of the lower halves and of the upper ones
template <unsigned from, unsigned... i>
INLINE vec in_turn(vec a, vec b, std::integer_sequence<unsigned, i...>) {
  return PICK(a, b, (from + i / 2 + i % 2 * LANES)...);
}

// Rows become columns: lane j of vector i is lane i of vector j.
INLINE void transpose(vec *x) {
  vec y[LANES];
#pragma GCC unroll 4
  for (int left = LANES; left > 1; left /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      y[2 * i] = in_turn<0>(x[i], x[i + LANES / 2], Lanes());
      y[2 * i + 1] = in_turn<LANES / 2>(x[i], x[i + LANES / 2], Lanes());
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) x[i] = y[i];
  }
}

// Running sums within a vector: from the first lane up, or (direction -1) from the last one down.
template <int direction, int by = 1> INLINE vec running(vec x) {
  x += moved<direction * by>(x, Lanes());
  if constexpr (2 * by < LANES) return running<direction, 2 * by>(x);
  else return x;
}
