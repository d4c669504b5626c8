// Each number convolved with itself at the last steps of its episode, forward and backward:
//
//     y[t] = silu(bias + sum over lags of weight[lag] u[t - lag])
//
// Steps before the first one are in a window, the oldest first. Rows are split into groups that sum
// the gradients of the weights, so that these do not depend on the number of threads.

struct ConvRow {
  const ConvArgs &s;
  const long row;
  long lags = 0;  // how many steps before this one count

  ConvRow(const ConvArgs &s, long row) : s(s), row(row), lags(s.taps - 1) {}

  bool is_start(long t) const {
    return s.episode_starts && s.episode_starts[t * s.batch_size + row];
  }
  void move_to(long t) {
    if (is_start(t)) lags = 0;
    else if (t && lags < s.taps - 1) lags++;
  }
  // The numbers at a step from -taps + 1 on.
  const float *numbers(long t) const {
    return t < 0 ? s.window + row * s.window_stride + (t + s.taps - 1) * s.width
                 : s.u + (t * s.batch_size + row) * s.u_stride;
  }
  float *gradients(long t) const {
    return t < 0 ? s.d_window + (row * (s.taps - 1) + t + s.taps - 1) * s.width
                 : s.d_u + (t * s.batch_size + row) * s.width;
  }
};

static void conv_forward_row(const ConvArgs &s, long row) {
  ConvRow at(s, row);
  for (long t = 0; t < s.steps; t++) {
    at.move_to(t);
    const float *now = at.numbers(t);
    float *to = s.outputs + (t * s.batch_size + row) * s.width;
    for (long i = 0, n = s.width; n > 0; i += LANES, n -= LANES) {
      vec sum = load(s.bias + i, n) + load(s.weight + i, n) * load(now + i, n);
      for (long lag = 1; lag <= at.lags; lag++)
        sum += load(s.weight + lag * s.width + i, n) * load(at.numbers(t - lag) + i, n);
      store(to + i, silu(sum), n);
    }
  }
  // At most the steps of the episode are left for later ones.
  for (long lag = 0; lag < s.taps - 1; lag++) {
    float *to = s.last + (row * (s.taps - 1) + s.taps - 2 - lag) * s.width;
    if (lag <= at.lags) memcpy(to, at.numbers(s.steps - 1 - lag), s.width * sizeof(float));
    else memset(to, 0, s.width * sizeof(float));
  }
}

// d_u and d_window begin as zeros, d_last holds the gradients of the last window.
static void conv_backward_row(const ConvArgs &s, long row, float *d_weight, float *d_bias) {
  ConvRow at(s, row);
  for (long t = 0; t < s.steps; t++) {
    at.move_to(t);
    const float *d_outputs = s.d_outputs + (t * s.batch_size + row) * s.width;
    for (long i = 0, n = s.width; n > 0; i += LANES, n -= LANES) {
      vec sum = load(s.bias + i, n);
      for (long lag = 0; lag <= at.lags; lag++)
        sum += load(s.weight + lag * s.width + i, n) * load(at.numbers(t - lag) + i, n);
      const vec open = sigmoid(sum);
      const vec d = load(d_outputs + i, n) * open * (1.0f + sum * (1.0f - open));
      store(d_bias + i, load(d_bias + i, n) + d, n);
      for (long lag = 0; lag <= at.lags; lag++) {
        float *of_weight = d_weight + lag * s.width + i, *of_u = at.gradients(t - lag) + i;
        store(of_weight, load(of_weight, n) + d * load(at.numbers(t - lag) + i, n), n);
        store(of_u, load(of_u, n) + d * load(s.weight + lag * s.width + i, n), n);
      }
    }
  }
  for (long lag = 0; lag < s.taps - 1 && lag <= at.lags; lag++)
    add_scaled(at.gradients(s.steps - 1 - lag), 1.0f,
               s.d_last + (row * (s.taps - 1) + s.taps - 2 - lag) * s.width, s.width);
}

template <bool back> static bool run_conv(const ConvArgs &s) {
  const double work = (double)s.steps * s.batch_size * s.width * (s.taps + 10);
  const long workers = num_threads(s.threads, s.groups, (back ? 3 : 1) * work);
  const long sums = (s.taps + 1) * s.width;  // of a row: of the weights, then of the bias
  AlignedBuffer buffer(workers * sums);
  if (!buffer.data) return false;
  parallel_for(s.groups, workers, [&](long first_group, long last_group, long worker) {
    float *of_row = buffer.data + worker * sums;
    for (long group = first_group; group < last_group; group++) {
      const long end = s.batch_size * (group + 1) / s.groups;
      for (long row = s.batch_size * group / s.groups; row < end; row++) {
        if (!back) {
          conv_forward_row(s, row);
          continue;
        }
        memset(of_row, 0, sums * sizeof(float));
        conv_backward_row(s, row, of_row, of_row + s.taps * s.width);
        for (long i = 0, n = sums; n > 0; i += LANES, n -= LANES)
          add(s.d_sums + group * sums + i, load(of_row + i, n), n);
      }
    }
  });
  return true;
}
