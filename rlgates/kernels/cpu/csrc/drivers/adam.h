// Clipping the gradient of many tensors by its norm, and a step of Adam: `rlgates.kernels.cpu.adam`.

constexpr long PIECE = 4096;  // the most numbers of a tensor that are one piece of work

// The sum of squares, in an order that does not depend on threads.
static double square_sum(const float *x, long n) {
  vec sums[4] = {};
  long i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    for (long k = 0; k < 4; k++) {
      const vec part = load(x + i + k * LANES);
      sums[k] += part * part;
    }
  for (; i < n; i += LANES) {
    const vec part = load(x + i, n - i);
    sums[0] += part * part;
  }
  return total((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

INLINE vec square_root(vec x) {
  for (int lane = 0; lane < LANES; lane++) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
}

static bool adam_step(const AdamArgs &a) {
  long pieces = 0, numel = 0;
  for (long i = 0; i < a.count; i++) {
    numel += a.table[i].numel;
    pieces += (a.table[i].numel + PIECE - 1) / PIECE;
  }
  struct Piece {
    long tensor, first, last;
  };
  AlignedBuffer buffer(pieces * (sizeof(Piece) + sizeof(double)) / sizeof(float));
  if (!buffer.data) return false;
  Piece *piece = (Piece *)buffer.data;
  double *sums = (double *)(piece + pieces);
  for (long i = 0, k = 0; i < a.count; i++)
    for (long first = 0; first < a.table[i].numel; first += PIECE) {
      const long last = first + PIECE;
      piece[k++] = {i, first, last < a.table[i].numel ? last : a.table[i].numel};
    }
  // About as long as ten multiplications of a product, which are in registers.
  const long threads = num_threads(a.threads, pieces, 10.0 * numel);
  parallel_for(pieces, threads, [&](long first, long last, long) {
    for (long k = first; k < last; k++)
      sums[k] = square_sum(a.table[piece[k].tensor].gradient + piece[k].first,
                           piece[k].last - piece[k].first);
  });
  double sum = 0;
  for (long k = 0; k < pieces; k++) sum += sums[k];
  const float norm = (float)__builtin_sqrt(sum), most = (float)a.max_norm / (norm + 1e-6f);
  *a.norm = norm;
  const float scale = most < 1.0f || most != most ? most : 1.0f;
  for (long i = 0; i < a.count; i++) *a.table[i].step += 1.0f;
  const float keep_mean = (float)a.beta1, keep_square = (float)a.beta2;
  const float new_mean = (float)(1.0 - a.beta1), new_square = (float)(1.0 - a.beta2);
  const float epsilon = (float)a.epsilon;
  parallel_for(pieces, threads, [&](long first, long last, long) {
    for (long k = first; k < last; k++) {
      const AdamTensor &tensor = a.table[piece[k].tensor];
      const double step = *tensor.step;
      const float rate = (float)(a.learning_rate / (1.0 - __builtin_pow(a.beta1, step)));
      const float unbias = (float)(1.0 / __builtin_sqrt(1.0 - __builtin_pow(a.beta2, step)));
      for (long i = piece[k].first; i < piece[k].last; i += LANES) {
        const long n = piece[k].last - i;
        const vec gradient = load(tensor.gradient + i, n) * scale;
        const vec mean = load(tensor.mean + i, n) * keep_mean + gradient * new_mean;
        const vec square =
            load(tensor.square + i, n) * keep_square + gradient * gradient * new_square;
        store(tensor.gradient + i, gradient, n);
        store(tensor.mean + i, mean, n);
        store(tensor.square + i, square, n);
        const vec change = mean / (square_root(square) * unbias + epsilon);
        store(tensor.weight + i, load(tensor.weight + i, n) - rate * change, n);
      }
    }
  });
  return true;
}
