// The heads of an actor and a critic, and PPO's loss with its gradients: `rlgates.kernels.cpu.heads`.
//
// A head is some layers with an activation, then a linear one. Rows are independent: a block of them
// runs forward, through the loss and back while its activations are in the cache. None is saved.

constexpr long ACTOR = 0, CRITIC = 1;

// One head, with its weights as they are multiplied; `back` only for gradients.
struct Head {
  static constexpr long MOST = HeadsArgs::LAYERS + 1;
  const HeadsArgs &h;
  const long which, layers;  // with the linear one
  long width[MOST + 1];      // of the input and of what each layer makes
  PackedMatrix forth[MOST], back[MOST];

  Head(const HeadsArgs &h, long which, bool gradients, Workspace &workspace)
      : h(h), which(which), layers(h.hidden_layers[which] + 1) {
    width[0] = h.input_size[which];
    for (long i = 1; i < layers; i++) width[i] = h.width[which * HeadsArgs::LAYERS + i - 1];
    width[layers] = which == ACTOR ? h.actions : 1;
    const bool packs = gradients || h.rows >= MIN_PACKED_ROWS;
    for (long i = 0; i < layers; i++)
      for (long backward = 0; backward <= gradients; backward++) {
        PackedMatrix &matrix = (backward ? back : forth)[i];
        matrix = weight_matrix(weight(i), width[i + 1], width[i], backward);
        if (packs) matrix.panels = workspace.take(matrix.size());
        if (packs && workspace.data) pack(matrix);
      }
  }

  long at(long layer) const { return which * MOST + layer; }
  const float *weight(long layer) const { return h.weights[at(layer)]; }
  const float *x() const { return h.x[which] ? h.x[which] : h.x[ACTOR]; }
  long widest() const {
    long most = width[0];
    for (long i = 1; i <= layers; i++) most = width[i] > most ? width[i] : most;
    return most;
  }
};

// What one thread computes of a head, a block of rows at a time.
struct HeadPass {
  const Head &head;
  float *values[Head::MOST + 1];  // what each layer makes of the block, from 1 on
  float *d[2], *outer_workspace;
  WeightGradient d_weights[Head::MOST];

  HeadPass(const Head &head, bool gradients, long worker, Workspace &workspace) : head(head) {
    const HeadsArgs &h = head.h;
    for (long i = 1; i <= head.layers; i++) values[i] = workspace.take(DEPTH * head.width[i]);
    if (!gradients) return;
    for (float *&place : d) place = workspace.take(DEPTH * head.widest());
    outer_workspace = workspace.take(DEPTH * (padded(head.widest()) + MAX_VECTORS * LANES));
    for (long i = 0; i < head.layers; i++) {
      d_weights[i] = {h.d_weights[head.at(i)], h.d_biases[head.at(i)]};
      if (worker) d_weights[i].matrix = workspace.take(head.width[i] * head.width[i + 1]);
      if (worker) d_weights[i].bias = workspace.take(head.width[i + 1]);
    }
  }

  Rows<const float> input(long layer, long first) const {
    const long width = head.width[layer];
    return {layer ? values[layer] : head.x() + first * width, width, 0};
  }

  float *forward(long first, long rows) const {
    for (long i = 0; i < head.layers; i++) {
      const long width = head.width[i + 1];
      float *to = values[i + 1];
      multiply(head.forth[i], input(i, first), {to, width, 0}, 1, 0, rows, SET,
               head.h.biases[head.at(i)]);
      if (i + 1 == head.layers) return to;
      const bool rectifies = head.h.rectifies;
      for (long k = 0, n = rows * width; n > 0; k += LANES, n -= LANES) {
        const vec value = load(to + k, n);
        store(to + k, rectifies ? relu(value) : hyperbolic_tangent(value), n);
      }
    }
    return nullptr;
  }

  // The gradients of the weights and of the input, which is set or added to, from `d_output`.
  void backward(const float *d_output, long first, long rows, WriteMode sum, WriteMode write_x) {
    for (long i = head.layers - 1; i >= 0; i--) {
      const long width = head.width[i];
      outer(d_output, head.width[i + 1], head.width[i + 1], input(i, first), width, 1, 0, rows, sum,
            d_weights[i], outer_workspace);
      const Rows<const float> from = {d_output, head.width[i + 1], 0};
      if (i == 0) {
        float *d_x = head.h.d_x[head.h.x[head.which] ? head.which : ACTOR];
        if (d_x)
          multiply(head.back[0], from, {d_x + first * width, width, 0}, 1, 0, rows, write_x);
        return;
      }
      float *to = d[i % 2];
      multiply(head.back[i], from, {to, width, 0}, 1, 0, rows, SET);
      const bool rectifies = head.h.rectifies;
      for (long k = 0, n = rows * width; n > 0; k += LANES, n -= LANES) {
        const vec value = load(values[i] + k, n), upper = load(to + k, n);
        store(to + k,
              rectifies ? relu_gradient(value, upper) : upper * (1.0f - value * value), n);
      }
      d_output = to;
    }
  }

  void add_gradients(const HeadPass &other) const {
    for (long i = 0; i < head.layers; i++) {
      add(d_weights[i].matrix, other.d_weights[i].matrix, head.width[i] * head.width[i + 1]);
      add(d_weights[i].bias, other.d_weights[i].bias, head.width[i + 1]);
    }
  }
};

// The distributions of LANES rows at a time, one row in each lane: action k is vector k.
struct Actions {
  const long count;
  float *log_probs, *probs;  // (count, LANES)

  Actions(long count, Workspace &workspace)
      : count(count), log_probs(workspace.take(count * LANES)),
        probs(workspace.take(count * LANES)) {}

  // Read some rows of logits, repeating the last one, and compute both.
  void read(const float *rows, long n) const {
    for (long k = 0; k < count; k++)
      for (long lane = 0; lane < LANES; lane++)
        log_probs[k * LANES + lane] = rows[(lane < n ? lane : n - 1) * count + k];
    vec most = load(log_probs), sum = {};
    for (long k = 1; k < count; k++) {
      const vec x = load(log_probs + k * LANES);
      most = x > most ? x : most;
    }
    for (long k = 0; k < count; k++) {
      const vec x = load(log_probs + k * LANES) - most, power = exponential(clamp(x, 87.0f));
      const vec prob = x < -87.0f ? vec{} : power;
      store(log_probs + k * LANES, x);
      store(probs + k * LANES, prob);
      sum += prob;
    }
    vec shift = {};
    for (long lane = 0; lane < LANES; lane++) shift[lane] = __builtin_logf(sum[lane]);
    for (long k = 0; k < count; k++) {
      store(log_probs + k * LANES, load(log_probs + k * LANES) - shift);
      store(probs + k * LANES, load(probs + k * LANES) / sum);
    }
  }

  // Write them, or what has taken their place, to some rows.
  void write(float *rows, long n) const {
    for (long lane = 0; lane < n; lane++)
      for (long k = 0; k < count; k++) rows[lane * count + k] = log_probs[k * LANES + lane];
  }
};

// The sums over rows of the terms of PPO's loss, and of what is logged.
struct LossSums {
  double policy = 0, value = 0, entropy = 0, divergence = 0, clipped = 0;
};

INLINE vec between(vec x, float low, float high) {
  x = x < low ? vec{} + low : x;
  return x > high ? vec{} + high : x;
}

INLINE double sum_of(vec x, long n) {
  double sum = 0;
  for (long lane = 0; lane < n; lane++) sum += x[lane];
  return sum;
}

// The loss of n rows from `row` on: log-probabilities and values become the gradients of logits and
// values. As in `rlgates.agents.sequences.losses`, infinities and NaN included.
static void ppo_loss(const HeadsArgs &h, long row, long n, const Actions &actions, float *values,
                     LossSums &sums) {
  const float count = (float)h.rows, range = (float)h.clip_range;
  const vec advantage = load(h.advantages + row, n);
  vec taken = {}, ratio = {};
  for (long lane = 0; lane < n; lane++)
    taken[lane] = actions.log_probs[h.taken[row + lane] * LANES + lane];
  const vec log_ratio = taken - load(h.old_log_probs + row, n);
  for (long lane = 0; lane < n; lane++) ratio[lane] = __builtin_expf(log_ratio[lane]);
  const vec objective = advantage * ratio;
  const vec clipped =
      advantage * between(ratio, (float)(1.0 - h.clip_range), (float)(1.0 + h.clip_range));
  // Where the clipped objective is smaller, it is constant in the policy.
  const vec d_taken = objective > clipped ? vec{} : objective / -count;
  const vec change = ratio - 1.0f, size = change < 0.0f ? -change : change;
  sums.policy -= sum_of(objective > clipped ? clipped : objective, n);
  sums.divergence += sum_of(change - log_ratio, n);
  sums.clipped += sum_of(size > range ? vec{} + 1.0f : vec{}, n);

  vec entropy = {};
  // An action of probability 0 contributes nothing, but its log-probability may be -inf.
  auto finite = [&](long k) {
    const vec x = load(actions.log_probs + k * LANES);
    return x < -__FLT_MAX__ ? vec{} : x;
  };
  for (long k = 0; k < h.actions; k++) entropy -= load(actions.probs + k * LANES) * finite(k);
  sums.entropy += sum_of(entropy, n);
  const float d_entropy = (float)(-h.ent_coef / h.rows);
  for (long k = 0; k < h.actions; k++) {
    const vec prob = load(actions.probs + k * LANES);
    store(actions.log_probs + k * LANES,
          -prob * (d_taken + d_entropy * (finite(k) + entropy)));
  }
  for (long lane = 0; lane < n; lane++)
    actions.log_probs[h.taken[row + lane] * LANES + lane] += d_taken[lane];

  const vec old = load(h.old_values + row, n), given = load(values, n);
  const float limit = (float)h.clip_range_vf, scale = (float)(2.0 * h.vf_coef / h.rows);
  vec value = given, d = vec{} + scale;
  if (h.clip_range_vf >= 0.0) {
    const vec moved = given - old;
    value = old + between(moved, -limit, limit);
    d = (moved < 0.0f ? -moved : moved) <= limit ? d : vec{};
  }
  const vec error = value - load(h.returns + row, n);
  sums.value += sum_of(error * error, n);
  store(values, error * d, n);
}

static long heads_threads(const HeadsArgs &h, const Head *heads, bool gradients) {
  double weights = 0;
  for (long which = 0; which < 2; which++)
    for (long i = 0; i < heads[which].layers; i++)
      weights += heads[which].width[i] * heads[which].width[i + 1];
  return num_threads(h.threads, h.rows, h.rows * weights * (gradients ? 3 : 1));
}

// What one thread computes of both.
struct Passes {
  HeadPass actor, critic;
  Actions actions;
};

// Log-probabilities and values; or, with `gradients`, the loss, its terms and its gradients.
template <bool gradients> static bool heads(const HeadsArgs &h) {
  Workspace shared = {}, per_thread = {};
  const Head measured[2] = {{h, ACTOR, gradients, shared}, {h, CRITIC, gradients, shared}};
  const long threads = heads_threads(h, measured, gradients);
  for (const Head &head : measured) HeadPass(head, gradients, threads - 1, per_thread);
  const Actions also(h.actions, per_thread);
  const long sums_size = sizeof(LossSums) / sizeof(float);
  AlignedBuffer buffer(shared.used + threads * (per_thread.used + padded(sums_size)));
  if (!buffer.data) return false;
  shared = {buffer.data, 0};
  const Head both[2] = {{h, ACTOR, gradients, shared}, {h, CRITIC, gradients, shared}};
  LossSums *sums = (LossSums *)shared.take(threads * sums_size);
  float *workspaces = buffer.data + shared.used;
  auto passes_of = [&](long worker) {
    Workspace workspace = {workspaces + worker * per_thread.used, 0};
    const HeadPass actor(both[ACTOR], gradients, worker, workspace);
    const HeadPass critic(both[CRITIC], gradients, worker, workspace);
    return Passes{actor, critic, Actions(h.actions, workspace)};
  };
  parallel_for(h.rows, threads, [&](long first, long last, long worker) {
    auto [actor, critic, actions] = passes_of(worker);
    LossSums part;
    WriteMode sum = SET;
    long from = first;
    do {
      const long rows = last - from < DEPTH ? last - from : DEPTH;
      float *log_probs = actor.forward(from, rows), *values = critic.forward(from, rows);
      for (long row = 0, n = rows; n > 0; row += LANES, n -= LANES) {
        const long lanes = n < LANES ? n : LANES;
        actions.read(log_probs + row * h.actions, lanes);
        if (gradients) ppo_loss(h, from + row, lanes, actions, values + row, part);
        actions.write(log_probs + row * h.actions, lanes);
      }
      if (gradients) {
        actor.backward(log_probs, from, rows, sum, SET);
        critic.backward(values, from, rows, sum, h.x[CRITIC] ? SET : ADD);
      } else {
        memcpy(h.log_probs + from * h.actions, log_probs, rows * h.actions * sizeof(float));
        memcpy(h.values + from, values, rows * sizeof(float));
      }
      sum = ADD;
      from += DEPTH;
    } while (from < last);
    sums[worker] = part;
  });
  if (!gradients) return true;
  FlushDenormals here;
  const Passes total = passes_of(0);
  for (long worker = 1; worker < threads; worker++) {
    const Passes part = passes_of(worker);
    total.actor.add_gradients(part.actor);
    total.critic.add_gradients(part.critic);
    sums->policy += sums[worker].policy, sums->value += sums[worker].value;
    sums->entropy += sums[worker].entropy, sums->divergence += sums[worker].divergence;
    sums->clipped += sums[worker].clipped;
  }
  const double terms[] = {sums->policy, sums->value, -sums->entropy, sums->divergence,
                          sums->clipped};
  h.losses[0] = (terms[0] + h.vf_coef * terms[1] + h.ent_coef * terms[2]) / h.rows;
  for (long i = 0; i < 5; i++) h.losses[i + 1] = terms[i] / h.rows;
  return true;
}
