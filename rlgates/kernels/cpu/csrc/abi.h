// The arguments of the kernels, as Python packs them: sizes, ids, and addresses of tensors. All
// fields are eight bytes wide. Tensors are float32 and contiguous unless a stride is given; one
// that is absent, or whose gradient is not needed, is a null pointer.

// In the order of the names in `rlgates.kernels.cpu.abi`.
enum Activation { SIGMOID, FAST, ITERATED_FAST, SOFTSIGN, CUMAX };
enum Auxiliary { UNTIED, TIED, REFINE, MASTER };
enum GatedCellId { LSTM, GRU_AFTER, GRU_BEFORE, JANET };

// A gated layer over T steps of a batch of B, with H units and I inputs. All its maps together have
// C columns. In the order of `rlgates.kernels.cpu.abi`; T is `steps`, B `batch_size`, I
// `input_size`, H `units`, C `columns`.
struct GatedArgs {
  int64_t cell, activation, auxiliary, chunk_size;
  double beta;
  int64_t threads, steps, batch_size, input_size, units, columns;
  int64_t joint_columns;  // columns whose product with h is one product: all but u of a GRU
  int64_t needs_state_grad;  // whether the state before the first step needs a gradient
  int64_t h_0_stride, c_0_stride, initial_h_stride, initial_c_stride;  // between rows of the batch
  const unsigned char *episode_starts;                     // (T, B)
  const float *x;                                          // (T, B, I)
  const float *weight_ih, *weight_hh, *bias_ih, *bias_hh;  // (C, I), (C, H), (C), (C)
  const float *h_0, *c_0;                                  // (B, H), before the first step
  const float *initial_h, *initial_c;                      // (B, H) at episode starts, null: zeros
  float *outputs, *h_n, *c_n;                              // (T, B, H), (B, H), (B, H)
  // Saved for the backward pass, null without one: activated maps (T, B, C), h before each step,
  // cell states, and what else the cell saves (T, B, H).
  float *gates, *h_prev, *cells, *extra;
  // Gradients; of the weights all or none. d_h and d_c hold those of the final state, and become
  // those of the state before the first step; those of the initial state are accumulated into.
  const float *d_outputs;
  float *d_x, *d_weight_ih, *d_weight_hh, *d_bias_ih, *d_bias_hh, *d_h, *d_c;
  float *d_initial_h, *d_initial_c;  // (B, H)
};

// A linear recurrence h_t = a_t h_{t-1} + b_t over T steps of a batch of B with `units` numbers:
// `width` floats, one a number, or two if they are complex. In the order of
// `rlgates.kernels.cpu.scan`.
struct ScanArgs {
  int64_t threads, steps, batch_size, units, width;
  int64_t a_step_stride, a_row_stride;  // 0 where a is the same
  int64_t h_0_stride, initial_stride;   // between rows of the batch
  const unsigned char *episode_starts;  // (T, B)
  const float *a;                       // (T, B, width), as strided
  const float *h_0, *initial;           // (B, width), before the first step and at episode starts
  const float *b;                       // (T, B, width)
  float *states;                        // (T, B, width), after each step
  const float *d_states;                // (T, B, width)
  float *d_carry;                       // (B, width), of the last state, becomes that of h_0
  float *d_a;                           // (T, B, width), or
  double *d_a_sums;                     // (B, width), summed over the steps
  float *d_b;                           // (T, B, width)
  float *d_initial;                     // (B, width), summed over the steps
};

// In the order of `rlgates.kernels.cpu.fused.CELLS`.
enum FusedCellId { GATO, RRU, MOGRIFIER, NRU };

// A layer with a fused cell over T steps of a batch of B. In the order of
// `rlgates.kernels.cpu.fused`; tensors are (T, B, width), states (B, width). The meaning of sizes,
// weights and saved tensors is declared by the cell. With a `projected_width` P the first two
// weights are (P, I) and (P), and the steps read that projection of x instead of x.
struct FusedArgs {
  enum { SIZES = 8, PARTS = 2, WEIGHTS = 10, SAVED = 6 };
  int64_t cell, threads, steps, batch_size;
  int64_t needs_state_grad, needs_weight_grad;  // of the first state, and of any weight
  double dropout, decay;
  int64_t sizes[SIZES];
  int64_t input_size, projected_width, output_size, noise_width;
  int64_t part_width[PARTS], saved_width[SAVED], weight_numel[WEIGHTS];
  const unsigned char *episode_starts;
  float *x, *noise;                        // noise is uniform in [0, 1)
  float *state_0[PARTS], *initial[PARTS];  // before the first step, and at episode starts
  float *weights[WEIGHTS];
  float *outputs, *state_n[PARTS];
  // Saved for the backward pass, null without one: the states before each step and after the last,
  // (T + 1, B, width), and what else the cell saves.
  float *states[PARTS], *saved[SAVED];
  // Gradients. d_state holds those of the final state, and becomes those of the state before the
  // first step; d_initial and d_weights are accumulated into and start as zeros.
  float *d_outputs, *d_x, *d_state[PARTS], *d_initial[PARTS], *d_weights[WEIGHTS];
};
