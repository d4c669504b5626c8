// A recurrence that is linear in its state, h_t = a_t h_{t-1} + b_t, forward and backward.
//
// Units never meet, so a thread takes vectors of units and runs through time without waiting; all
// there is to do is to read and write every number once. A complex number is two floats, the
// imaginary ones `units` after the real.

typedef double wide __attribute__((vector_size(8 * LANES)));
typedef double loose_wide __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

// The imaginary part of a real number is never looked at.
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
template <bool complex> INLINE Number turned_back(Number x, Number y) {
  if (!complex) return {x.re * y.re, vec{}};
  return {x.re * y.re + x.im * y.im, x.im * y.re - x.re * y.im};
}

template <bool complex> INLINE Number plus(Number x, Number y) {
  return {x.re + y.re, complex ? x.im + y.im : vec{}};
}

// Sums over many steps are made in double.
INLINE void add(double *to, vec value, long n) {
  if (n >= LANES) *(loose_wide *)to += __builtin_convertvector(value, wide);
  else
    for (long i = 0; i < n; i++) to[i] += value[i];
}

// The state that enters step t. Where an episode starts the old one is left out and not
// multiplied by zero: it may be NaN.
template <bool complex>
INLINE Number entering(const Scan &s, long t, long row, long unit, long n, bool start) {
  const float *from = start ? s.initial + row * s.initial_row
                      : t   ? s.states + ((t - 1) * s.rows + row) * s.width
                            : s.first + row * s.first_row;
  return get<complex>(from + unit, s.units, n);
}

template <bool complex> INLINE Number factor(const Scan &s, long t, long row, long unit, long n) {
  return get<complex>(s.factor + t * s.factor_step + row * s.factor_row + unit, s.units, n);
}

// ---- one step, for one row and one vector of units ---------------------------------------------

template <bool complex> INLINE void step_forward(const Scan &s, long t, long row, long unit) {
  const long place = t * s.rows + row, at = place * s.width + unit, n = s.units - unit;
  const bool start = s.starts && s.starts[place];
  Number h = entering<complex>(s, t, row, unit, n, start);
  Number a = factor<complex>(s, t, row, unit, n), b = get<complex>(s.into + at, s.units, n);
  if (complex) h = {b.re + a.re * h.re - a.im * h.im, b.im + a.re * h.im + a.im * h.re};
  else h.re = b.re + a.re * h.re;
  put<complex>(s.states + at, h, s.units, n);
}

template <bool complex> INLINE void step_backward(const Scan &s, long t, long row, long unit) {
  const long place = t * s.rows + row, at = place * s.width + unit, n = s.units - unit;
  const long here = row * s.width + unit;
  const bool start = s.starts && s.starts[place];
  Number d = get<complex>(s.d_carry + here, s.units, n);
  if (s.d_states) d = plus<complex>(d, get<complex>(s.d_states + at, s.units, n));
  if (s.d_into) put<complex>(s.d_into + at, d, s.units, n);
  if (s.d_factor || s.d_factor_sums) {
    Number product = turned_back<complex>(d, entering<complex>(s, t, row, unit, n, start));
    if (s.d_factor) put<complex>(s.d_factor + at, product, s.units, n);
    else {
      add(s.d_factor_sums + here, product.re, n);
      if (complex) add(s.d_factor_sums + here + s.units, product.im, n);
    }
  }
  d = turned_back<complex>(d, factor<complex>(s, t, row, unit, n));
  if (start) {
    if (s.d_initial) {
      Number sum = plus<complex>(d, get<complex>(s.d_initial + here, s.units, n));
      put<complex>(s.d_initial + here, sum, s.units, n);
    }
    d = Number{};
  }
  put<complex>(s.d_carry + here, d, s.units, n);
}

// ---- the sequence, for vectors first to last of all rows ---------------------------------------

// In tiles, whose states stay in the cache until the next step.
constexpr long TILE = 4096 / LANES;

template <bool complex, bool back> static void through_time(const Scan &s, long first, long last) {
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

// A second thread is worth its waking from some 0.2 ms on, and where it has a few pages of each
// step for itself: else what one fetches ahead is what the other one writes.
constexpr double WORTH_SHARING = 5e5, OWN_NUMBERS = 4096;

template <bool back> static bool scan(const Scan &s) {
  const double numbers = (double)s.rows * s.width, most = numbers / OWN_NUMBERS;
  long threads = s.threads < most ? s.threads : (long)most;
  if (threads < 1 || s.steps * numbers < WORTH_SHARING) threads = 1;
  const auto pass = s.width > s.units ? through_time<true, back> : through_time<false, back>;
  share(s.rows * (padded(s.units) / LANES), threads,
        [&](long first, long last, long) { pass(s, first, last); });
  return true;
}
