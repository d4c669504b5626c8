// A recurrence that is linear in its state, h_t = a_t h_{t-1} + b_t, forward and backward.
//
// Units are independent, so each thread takes some vectors of units and runs through time without
// waiting for others; every number is read and written once. A complex number is two floats, the
// imaginary parts `units` after the real ones.

typedef double wide __attribute__((vector_size(8 * LANES)));
typedef double unaligned_wide __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

// The imaginary part of a real number is never read.
struct Number {
  vec re, im;
};

template <bool complex> INLINE Number get(const float *from, long units, long n) {
  return {load(from, n), complex ? load(from + units, n) : vec{}};
}

template <bool complex> INLINE void put(float *to, Number value, long units, long n) {
  store(to, value.re, n);
  if (complex) store(to + units, value.im, n);
}

// x conj(y)
template <bool complex> INLINE Number times_conj(Number x, Number y) {
  if (!complex) return {x.re * y.re, vec{}};
  return {x.re * y.re + x.im * y.im, x.im * y.re - x.re * y.im};
}

template <bool complex> INLINE Number plus(Number x, Number y) {
  return {x.re + y.re, complex ? x.im + y.im : vec{}};
}

// Sums over many steps are accumulated in double.
INLINE void add(double *to, vec value, long n) {
  if (n >= LANES) *(unaligned_wide *)to += __builtin_convertvector(value, wide);
  else
    for (long i = 0; i < n; i++) to[i] += value[i];
}

// The state before step t. At an episode start the old one is not read, rather than multiplied by
// zero: it may be NaN.
template <bool complex>
INLINE Number h_prev(const ScanArgs &s, long t, long row, long unit, long n, bool start) {
  const float *from = start ? s.initial + row * s.initial_stride
                      : t   ? s.states + ((t - 1) * s.batch_size + row) * s.width
                            : s.h_0 + row * s.h_0_stride;
  return get<complex>(from + unit, s.units, n);
}

template <bool complex>
INLINE Number coefficient(const ScanArgs &s, long t, long row, long unit, long n) {
  return get<complex>(s.a + t * s.a_step_stride + row * s.a_row_stride + unit, s.units, n);
}

// ---- one step, for one row and one vector of units ---------------------------------------------

template <bool complex> INLINE void step_forward(const ScanArgs &s, long t, long row, long unit) {
  const long place = t * s.batch_size + row, at = place * s.width + unit, n = s.units - unit;
  const bool start = s.episode_starts && s.episode_starts[place];
  Number h = h_prev<complex>(s, t, row, unit, n, start);
  Number a = coefficient<complex>(s, t, row, unit, n), b = get<complex>(s.b + at, s.units, n);
  if (complex) h = {b.re + a.re * h.re - a.im * h.im, b.im + a.re * h.im + a.im * h.re};
  else h.re = b.re + a.re * h.re;
  put<complex>(s.states + at, h, s.units, n);
}

template <bool complex> INLINE void step_backward(const ScanArgs &s, long t, long row, long unit) {
  const long place = t * s.batch_size + row, at = place * s.width + unit, n = s.units - unit;
  const long here = row * s.width + unit;
  const bool start = s.episode_starts && s.episode_starts[place];
  Number d = get<complex>(s.d_carry + here, s.units, n);
  if (s.d_states) d = plus<complex>(d, get<complex>(s.d_states + at, s.units, n));
  if (s.d_b) put<complex>(s.d_b + at, d, s.units, n);
  if (s.d_a || s.d_a_sums) {
    Number product = times_conj<complex>(d, h_prev<complex>(s, t, row, unit, n, start));
    if (s.d_a) put<complex>(s.d_a + at, product, s.units, n);
    else {
      add(s.d_a_sums + here, product.re, n);
      if (complex) add(s.d_a_sums + here + s.units, product.im, n);
    }
  }
  d = times_conj<complex>(d, coefficient<complex>(s, t, row, unit, n));
  if (start) {
    if (s.d_initial) {
      Number sum = plus<complex>(d, get<complex>(s.d_initial + here, s.units, n));
      put<complex>(s.d_initial + here, sum, s.units, n);
    }
    d = Number{};
  }
  put<complex>(s.d_carry + here, d, s.units, n);
}

// ---- all steps, for vectors first to last of the batch -----------------------------------------

// Vectors are processed in tiles whose states stay in the cache until the next step.
constexpr long TILE = 4096 / LANES;

template <bool complex, bool back>
static void scan_range(const ScanArgs &s, long first, long last) {
  const long vectors = (s.units + LANES - 1) / LANES;
  for (long tile = first, end; tile < last; tile = end) {
    end = last - tile < TILE ? last : tile + TILE;
    for (long i = 0; i < s.steps; i++) {
      long row = tile / vectors, unit = tile % vectors * LANES;
      for (long item = tile; item < end; item++) {
        if (back) step_backward<complex>(s, s.steps - 1 - i, row, unit);
        else step_forward<complex>(s, i, row, unit);
        if ((unit += LANES) >= s.units) unit = 0, row++;
      }
    }
  }
}

// A second thread pays from about 0.2 ms of work on, and where each thread has a few pages of every
// step to itself: otherwise one prefetches what the other writes.
constexpr double MIN_PARALLEL_NUMBERS = 5e5, MIN_THREAD_NUMBERS = 4096;

template <bool back> static bool scan(const ScanArgs &s) {
  const double numbers = (double)s.batch_size * s.width, most = numbers / MIN_THREAD_NUMBERS;
  long threads = s.threads < most ? s.threads : (long)most;
  if (threads < 1 || s.steps * numbers < MIN_PARALLEL_NUMBERS) threads = 1;
  const auto pass = s.width > s.units ? scan_range<true, back> : scan_range<false, back>;
  parallel_for(s.batch_size * (padded(s.units) / LANES), threads,
               [&](long first, long last, long) { pass(s, first, last); });
  return true;
}
