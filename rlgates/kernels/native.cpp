// rlgates.kernels._native: the gated LSTM on the CPU, in float32.
//
// Takes addresses and sizes and checks nothing: `rlgates.kernels.native` does. The kernel in
// `lstm.h` is compiled once an instruction set, and the best one the processor knows is chosen
// when the module is imported, so that one binary serves every machine.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

// In the order of the tuples in `rlgates.kernels.native`.
enum Activation { SIGMOID, FAST, ITERATED_FAST, SOFTSIGN, ACTIVATIONS };
enum Auxiliary { UNTIED, TIED, REFINE, AUXILIARIES };

// One call: T steps of B rows of H units, with G maps. Strides are between rows.
struct Sequence {
  long steps, rows, units;
  const unsigned char *starts;  // (T, B), or null
  const float *first_h, *first_c;  // (B, H), the state before the first step
  long first_h_stride, first_c_stride;
  const float *packed;  // the recurrent weights
  float *gates;  // (T, B, G H): pre-activations in; if `keep`, out what the way back needs
  float *cells;  // the cell states (T, B, H), or the last one (B, H) if the step is 0
  long cell_step;
  bool keep;
  const float *product;  // (B, G H), the product of a single step
  float *outputs;  // (T, B, H)
  const float *d_outputs;  // (T, B, H)
  float *d_h, *d_cells;  // (B, H): gradients of the final state in, of the first one out
  bool wants_first_h;
  float *d_gates;  // (T, B, G H)
  float *entering;  // (T, B, H): the output as it enters each step
};

// The cell state before step t. There is room for one alone where nothing is kept.
static inline const float *cells_before(const Sequence &s, long t, long row) {
  return t ? s.cells + (t - 1) * s.cell_step + row * s.units : s.first_c + row * s.first_c_stride;
}

typedef void (*Part)(const Sequence &, long first, long last);
typedef void (*Pack)(const float *weight, long maps, long units, float *to);
struct Kernels {
  long lanes;
  Pack pack_forward, pack_backward;
  Part forward[ACTIVATIONS][AUXILIARIES];
  Part step[ACTIVATIONS][AUXILIARIES];
  Part backward[ACTIVATIONS][AUXILIARIES];
};

// Clang has no such pragmas: it gives the vectors of the plain instruction set.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_X86_KERNELS
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
namespace avx512 {
#define LANES 16
#define SUMS 24
#include "lstm.h"
#undef LANES
#undef SUMS
}  // namespace avx512
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LANES 8
#define SUMS 12
#include "lstm.h"
#undef LANES
#undef SUMS
}  // namespace avx2
#pragma GCC pop_options
#endif

namespace plain {
#define LANES 4
#ifdef __aarch64__
#define SUMS 24
#else
#define SUMS 12
#endif
#include "lstm.h"
}  // namespace plain

static const struct {
  const char *name;
  const Kernels *kernels;
} INSTRUCTIONS[] = {
#ifdef HAS_X86_KERNELS
    {"avx512", &avx512::kernels},
    {"avx2", &avx2::kernels},
#endif
    {"plain", &plain::kernels},
};

static bool runs_here(const char *name) {
#ifdef HAS_X86_KERNELS
  __builtin_cpu_init();
  if (!strcmp(name, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (!strcmp(name, "avx2"))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return !strcmp(name, "plain");
}

static const Kernels *chosen;

static const char *choose(const char *wanted) {
  for (const auto &set : INSTRUCTIONS)
    if ((!*wanted || !strcmp(set.name, wanted)) && runs_here(set.name)) {
      chosen = set.kernels;
      return set.name;
    }
  return nullptr;
}

// Multiplications that are worth a second thread: some 0.05 ms.
static const double WORTH_THREADS = 2e6;

static void over_rows(Part part, const Sequence &s, long threads, double work) {
  if (threads > s.rows) threads = s.rows;
  if (threads <= 1 || work < WORTH_THREADS) {  // without OpenMP: it must not meet a fork
    if (s.rows) part(s, 0, s.rows);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long i = 0; i < threads; i++) part(s, s.rows * i / threads, s.rows * (i + 1) / threads);
}

static float *packed(Pack pack, const float *weight, long maps, long units) {
  const long padded = (units + chosen->lanes - 1) / chosen->lanes * chosen->lanes;
  void *to = nullptr;
  if (posix_memalign(&to, 64, maps * units * padded * sizeof(float))) return nullptr;
  pack(weight, maps, units, (float *)to);
  return (float *)to;
}

template <class T> static T *pointer(unsigned long long address) { return (T *)(uintptr_t)address; }

static PyObject *forward(PyObject *, PyObject *args) {
  int threads, activation, auxiliary, keep;
  Py_ssize_t steps, rows, units, h_stride, c_stride;
  unsigned long long starts, h, c, weight, gates, cells, product, outputs;
  if (!PyArg_ParseTuple(args, "iiinnnKKnKnKKKiKK", &threads, &activation, &auxiliary, &steps, &rows,
                        &units, &starts, &h, &h_stride, &c, &c_stride, &weight, &gates, &cells,
                        &keep, &product, &outputs))
    return nullptr;
  const long maps = auxiliary == TIED ? 3 : 4;
  Sequence s = {};
  s.steps = steps, s.rows = rows, s.units = units;
  s.starts = pointer<unsigned char>(starts);
  s.first_h = pointer<float>(h), s.first_h_stride = h_stride;
  s.first_c = pointer<float>(c), s.first_c_stride = c_stride;
  s.gates = pointer<float>(gates), s.cells = pointer<float>(cells);
  s.cell_step = keep ? rows * units : 0, s.keep = keep;
  s.product = pointer<float>(product), s.outputs = pointer<float>(outputs);
  float *room = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  if (s.product) {
    over_rows(chosen->step[activation][auxiliary], s, threads, 50.0 * rows * units);
  } else if ((s.packed = room =
                  packed(chosen->pack_forward, pointer<float>(weight), maps, units))) {
    over_rows(chosen->forward[activation][auxiliary], s, threads,
              (double)steps * rows * maps * units * units);
    free(room);
  }
  Py_END_ALLOW_THREADS;
  if (!s.product && !room) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

static PyObject *backward(PyObject *, PyObject *args) {
  int threads, activation, auxiliary, wants_first_h;
  Py_ssize_t steps, rows, units, c_stride;
  unsigned long long starts, c, weight, gates, cells, d_outputs, d_h, d_cells, d_gates, entering;
  if (!PyArg_ParseTuple(args, "iiinnnKKnKKKKKKiKK", &threads, &activation, &auxiliary, &steps,
                        &rows, &units, &starts, &c, &c_stride, &weight, &gates, &cells, &d_outputs,
                        &d_h, &d_cells, &wants_first_h, &d_gates, &entering))
    return nullptr;
  const long maps = auxiliary == TIED ? 3 : 4;
  Sequence s = {};
  s.steps = steps, s.rows = rows, s.units = units;
  s.starts = pointer<unsigned char>(starts);
  s.first_c = pointer<float>(c), s.first_c_stride = c_stride;
  s.gates = pointer<float>(gates), s.cells = pointer<float>(cells), s.cell_step = rows * units;
  s.d_outputs = pointer<float>(d_outputs), s.d_h = pointer<float>(d_h);
  s.d_cells = pointer<float>(d_cells), s.wants_first_h = wants_first_h;
  s.d_gates = pointer<float>(d_gates), s.entering = pointer<float>(entering);
  float *room;
  Py_BEGIN_ALLOW_THREADS;
  s.packed = room = packed(chosen->pack_backward, pointer<float>(weight), maps, units);
  if (room)
    over_rows(chosen->backward[activation][auxiliary], s, threads,
              (double)steps * rows * maps * units * units);
  free(room);
  Py_END_ALLOW_THREADS;
  if (!room) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

static PyObject *use(PyObject *, PyObject *args) {
  const char *wanted;
  if (!PyArg_ParseTuple(args, "s", &wanted)) return nullptr;
  const char *name = choose(wanted);
  if (!name) return PyErr_Format(PyExc_ValueError, "no kernel %R here", PyTuple_GetItem(args, 0));
  return PyUnicode_FromString(name);
}

static PyMethodDef METHODS[] = {
    {"forward", forward, METH_VARARGS, "The sequence, or one step from its product."},
    {"backward", backward, METH_VARARGS, "Back through time, to everything but the weights."},
    {"use", use, METH_VARARGS, "Take the kernel for an instruction set; the best one for ''."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, METHODS,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native(void) {
  choose("");
  return PyModule_Create(&MODULE);
}
