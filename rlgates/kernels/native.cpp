// rlgates.kernels._native: gated recurrent layers and linear recurrences on the CPU, in float32.
//
// Takes addresses and sizes and checks nothing: `rlgates.kernels.native` and `.scan` do. The kernels are
// compiled once an instruction set, and the best ones the processor knows are chosen when the
// module is imported, so that one binary serves every machine.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "call.h"
#include "threads.h"

// Each is false if there is not enough memory.
struct Kernels {
  bool (*forward)(const Call &);
  bool (*backward)(const Call &);
  bool (*scan_forward)(const Scan &);
  bool (*scan_backward)(const Scan &);
  bool (*loop_forward)(const Loop &);
  bool (*loop_backward)(const Loop &);
};

// Functions between these two are compiled for other instructions than the rest of the file.
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#ifdef __clang__
#define INSTRUCTIONS_ON(names) \
  PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define INSTRUCTIONS_OFF PRAGMA(clang attribute pop)
#else
#define INSTRUCTIONS_ON(names) PRAGMA(GCC push_options) PRAGMA(GCC target(names))
#define INSTRUCTIONS_OFF PRAGMA(GCC pop_options)
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_X86_KERNELS
INSTRUCTIONS_ON("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
namespace avx512 {
#define LANES 16
#define SUMS 24
#include "kernels.h"
#undef LANES
#undef SUMS
}  // namespace avx512
INSTRUCTIONS_OFF
INSTRUCTIONS_ON("avx2,fma")
namespace avx2 {
#define LANES 8
#define SUMS 12
#include "kernels.h"
#undef LANES
#undef SUMS
}  // namespace avx2
INSTRUCTIONS_OFF
#endif

namespace plain {
#define LANES 4
#ifdef __aarch64__
#define SUMS 24
#else
#define SUMS 12
#endif
#include "kernels.h"
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

// Read calls, which Python has packed as the struct is laid out, and run them: side by side, if
// there are several.
template <class Call> static PyObject *run(PyObject *args, bool (*kernel)(const Call &)) {
  const char *given;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "y#", &given, &size)) return nullptr;
  Call calls[2];
  const long count = size / sizeof(Call);
  if (size % sizeof(Call) || count < 1 || count > 2)
    return PyErr_Format(PyExc_ValueError, "%zd bytes expected, got %zd", sizeof(Call), size);
  memcpy(calls, given, size);
  bool done[2] = {true, true};
  Py_BEGIN_ALLOW_THREADS;
  share(count, count, [&](long first, long, long) { done[first] = kernel(calls[first]); });
  Py_END_ALLOW_THREADS;
  if (!done[0] || !done[1]) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

static PyObject *forward(PyObject *, PyObject *args) { return run(args, chosen->forward); }
static PyObject *backward(PyObject *, PyObject *args) { return run(args, chosen->backward); }
static PyObject *scan_forward(PyObject *, PyObject *args) {
  return run(args, chosen->scan_forward);
}
static PyObject *scan_backward(PyObject *, PyObject *args) {
  return run(args, chosen->scan_backward);
}
static PyObject *loop_forward(PyObject *, PyObject *args) {
  return run(args, chosen->loop_forward);
}
static PyObject *loop_backward(PyObject *, PyObject *args) {
  return run(args, chosen->loop_backward);
}

static PyObject *use(PyObject *, PyObject *args) {
  const char *wanted;
  if (!PyArg_ParseTuple(args, "s", &wanted)) return nullptr;
  const char *name = choose(wanted);
  if (!name) return PyErr_Format(PyExc_ValueError, "no kernel %R here", PyTuple_GetItem(args, 0));
  return PyUnicode_FromString(name);
}

static PyMethodDef METHODS[] = {
    {"forward", forward, METH_VARARGS, "A layer over a sequence."},
    {"backward", backward, METH_VARARGS, "And back through time, to all gradients."},
    {"scan_forward", scan_forward, METH_VARARGS, "A linear recurrence over a sequence."},
    {"scan_backward", scan_backward, METH_VARARGS, "And back through time, to all gradients."},
    {"loop_forward", loop_forward, METH_VARARGS, "A layer with weights of its own."},
    {"loop_backward", loop_backward, METH_VARARGS, "And back through time, to all gradients."},
    {"use", use, METH_VARARGS, "Take the kernel for an instruction set; the best one for ''."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, METHODS,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native(void) {
  choose("");
  return PyModule_Create(&MODULE);
}
