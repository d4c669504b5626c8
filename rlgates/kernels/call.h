// What one call is told: sizes, the cell and its gate, and where the numbers are.

// In the order of the names in `rlgates.kernels.calls`.
enum Activation { SIGMOID, FAST, ITERATED_FAST, SOFTSIGN, CUMAX };
enum Auxiliary { UNTIED, TIED, REFINE, MASTER };
enum CellKind { LSTM, GRU_AFTER, GRU_BEFORE, JANET };

// T steps of B rows of H units, whose maps are C columns; the input is I wide. Fields of eight
// bytes each, in the order of `rlgates.kernels.calls`. Tensors are (T, B, ...), but for the states
// (B, H), and without gaps, but for the first states; they are null where there is none.
struct Call {
  int64_t cell, activation, auxiliary, chunk_size;
  double beta;
  int64_t threads, steps, rows, inputs, units, columns;
  int64_t joint;  // columns whose products with h are made in one piece: all but u of a GRU
  int64_t first_h_stride, first_c_stride;  // between rows
  int64_t wants_first;  // whether the gradient of the state before the first step is wanted
  const unsigned char *starts;
  const float *x;
  const float *weight_ih, *weight_hh, *bias_ih, *bias_hh;  // (C, I), (C, H), (C), (C)
  const float *first_h, *first_c;  // before the first step
  float *outputs, *last_h, *last_c;
  // What the way back needs: of the maps (C); h as it enters each step, the cell states, and what
  // else the cell keeps (H). Null if there is no way back.
  float *gates, *entering, *cells, *extra;
  // Gradients; of the weights all or none. Those of the state are given for the last one, and
  // become those of the first one.
  const float *d_outputs;
  float *d_x, *d_weight_ih, *d_weight_hh, *d_bias_ih, *d_bias_hh, *d_h, *d_c;
};

// A linear recurrence over T steps of B rows of `units` numbers, which are `width` floats: one
// each, or two if they are complex. Fields of eight bytes, in the order of
// `rlgates.kernels.native_scan`; null is for what is not there or nobody wants.
struct Scan {
  int64_t threads, steps, rows, units, width;
  int64_t factor_step, factor_row;  // strides, 0 where the factors are the same
  int64_t first_row, initial_row;
  const unsigned char *starts;         // (T, B)
  const float *factor;                 // (T, B, width)
  const float *first, *initial;        // (B, width), before the first step and where one starts
  const float *into;                   // (T, B, width)
  float *states;                       // (T, B, width)
  const float *d_states;               // (T, B, width)
  float *d_carry;                      // (B, width): of the last state, becomes that of the first
  float *d_factor;                     // (T, B, width), or
  double *d_factor_sums;               // (B, width), sums over the steps
  float *d_into;                       // (T, B, width)
  float *d_initial;                    // (B, width), sums over the steps
};

// In the order of `rlgates.kernels.shapes.CELLS`.
enum LoopKind { GATO, RRU, MOGRIFIER, NRU };

// A layer whose cell has weights of its own, over T steps of B rows. Fields of eight bytes, in the
// order of `rlgates.kernels.loop`; tensors are (T, B, width) without gaps, states (B, width), and
// null where there is none. What its sizes, weights and kept numbers are, the cell says; where
// there is a `project_width` P, the first two weights are (P, I) and (P), and the steps read their
// product with x, else x itself.
struct Loop {
  enum { SIZES = 8, PARTS = 2, WEIGHTS = 10, KEPT = 6 };
  int64_t cell, threads, steps, rows;
  int64_t wants_first, wants_weights;  // gradients of the first state, and of any weight
  double rate;
  int64_t sizes[SIZES];
  int64_t input_width, project_width, output_width, noise_width;
  int64_t part_width[PARTS], kept_width[KEPT], lengths[WEIGHTS];
  const unsigned char *starts;
  float *x, *noise;                    // the noise is uniform in [0, 1)
  float *first[PARTS], *fresh[PARTS];  // states before the first step, and where one starts
  float *weights[WEIGHTS];
  float *outputs, *last[PARTS];
  // What the way back needs, null if there is none: the states that enter the steps, (T + 1, B,
  // width), and what else the cell keeps.
  float *entering[PARTS], *kept[KEPT];
  // Gradients. Those of the state are given for the last one, and become those of the first one;
  // those of the fresh states and of the weights are zero at first.
  float *d_outputs, *d_x, *d_state[PARTS], *d_fresh[PARTS], *d_weights[WEIGHTS];
};
