// rlgates.kernels.cpu._native: recurrent layers on the CPU, in float32.
//
// It takes addresses and sizes and checks nothing: the modules of `rlgates.kernels` do. The kernels
// are compiled once for each instruction set, so that one binary runs anywhere. At import the best
// set that the processor supports is chosen; `use` changes that.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "instructions.h"

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
static const char *chosen_name;

// Choose the kernels by name, the best ones for ""; false if they do not run here.
static bool choose(const char *name) {
  for (const auto &set : INSTRUCTIONS)
    if ((!*name || !strcmp(set.name, name)) && runs_here(set.name)) {
      chosen = set.kernels;
      chosen_name = set.name;
      return true;
    }
  return false;
}

// Run a kernel with the arguments that Python packed, or with two of them, by so many threads.
template <class KernelArgs>
static PyObject *run(PyObject *args, bool (*kernel)(const KernelArgs &)) {
  const char *packed;
  Py_ssize_t size;
  long workers = 1;
  if (!PyArg_ParseTuple(args, "y#|l", &packed, &size, &workers)) return nullptr;
  KernelArgs calls[2];
  const long count = size / sizeof(KernelArgs);
  if (size % sizeof(KernelArgs) || count < 1 || count > 2)
    return PyErr_Format(PyExc_ValueError, "expected %zd bytes, got %zd", sizeof(KernelArgs), size);
  memcpy(calls, packed, size);
  bool done[2] = {true, true};
  Py_BEGIN_ALLOW_THREADS;
  const auto call = [&](long first, long last, long) {
    for (long i = first; i < last; i++) done[i] = kernel(calls[i]);
  };
  if (count > 1 && workers >= count) parallel_for(count, count, call);
  else call(0, count, 0);  // each starts threads itself
  Py_END_ALLOW_THREADS;
  if (!done[0] || !done[1]) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

static PyObject *layer_forward(PyObject *, PyObject *args) {
  return run(args, chosen->layer_forward);
}
static PyObject *layer_backward(PyObject *, PyObject *args) {
  return run(args, chosen->layer_backward);
}
static PyObject *scan_forward(PyObject *, PyObject *args) {
  return run(args, chosen->scan_forward);
}
static PyObject *scan_backward(PyObject *, PyObject *args) {
  return run(args, chosen->scan_backward);
}
static PyObject *channels_forward(PyObject *, PyObject *args) {
  return run(args, chosen->channels_forward);
}
static PyObject *channels_backward(PyObject *, PyObject *args) {
  return run(args, chosen->channels_backward);
}
static PyObject *memories_forward(PyObject *, PyObject *args) {
  return run(args, chosen->memories_forward);
}
static PyObject *memories_backward(PyObject *, PyObject *args) {
  return run(args, chosen->memories_backward);
}
static PyObject *conv_forward(PyObject *, PyObject *args) {
  return run(args, chosen->conv_forward);
}
static PyObject *conv_backward(PyObject *, PyObject *args) {
  return run(args, chosen->conv_backward);
}
static PyObject *attention_forward(PyObject *, PyObject *args) {
  return run(args, chosen->attention_forward);
}
static PyObject *attention_backward(PyObject *, PyObject *args) {
  return run(args, chosen->attention_backward);
}
static PyObject *grid_forward(PyObject *, PyObject *args) {
  return run(args, chosen->grid_forward);
}
static PyObject *grid_backward(PyObject *, PyObject *args) {
  return run(args, chosen->grid_backward);
}
static PyObject *heads_forward(PyObject *, PyObject *args) {
  return run(args, chosen->heads_forward);
}
static PyObject *heads_loss(PyObject *, PyObject *args) { return run(args, chosen->heads_loss); }
static PyObject *adam_step(PyObject *, PyObject *args) { return run(args, chosen->adam_step); }

static PyObject *use(PyObject *, PyObject *args) {
  const char *name = nullptr;
  if (!PyArg_ParseTuple(args, "|s", &name)) return nullptr;
  if (name && !choose(name))
    return PyErr_Format(PyExc_ValueError, "no kernels for %R here", PyTuple_GetItem(args, 0));
  return PyUnicode_FromString(chosen_name);
}

static PyMethodDef METHODS[] = {
    {"layer_forward", layer_forward, METH_VARARGS, "Run a layer over a sequence."},
    {"layer_backward", layer_backward, METH_VARARGS, "Compute its gradients."},
    {"scan_forward", scan_forward, METH_VARARGS, "Run a linear recurrence over a sequence."},
    {"scan_backward", scan_backward, METH_VARARGS, "Compute its gradients."},
    {"channels_forward", channels_forward, METH_VARARGS, "Run channels over a sequence."},
    {"channels_backward", channels_backward, METH_VARARGS, "Compute their gradients."},
    {"memories_forward", memories_forward, METH_VARARGS, "Run memories over a sequence."},
    {"memories_backward", memories_backward, METH_VARARGS, "Compute their gradients."},
    {"conv_forward", conv_forward, METH_VARARGS, "Convolve numbers over the last steps."},
    {"conv_backward", conv_backward, METH_VARARGS, "Compute their gradients."},
    {"attention_forward", attention_forward, METH_VARARGS, "Attend to the last steps."},
    {"attention_backward", attention_backward, METH_VARARGS, "Compute the gradients."},
    {"grid_forward", grid_forward, METH_VARARGS, "Compute features of images of few colours."},
    {"grid_backward", grid_backward, METH_VARARGS, "Compute gradients of the weights."},
    {"heads_forward", heads_forward, METH_VARARGS, "Compute log-probabilities and values."},
    {"heads_loss", heads_loss, METH_VARARGS, "Compute PPO's loss and its gradients."},
    {"adam_step", adam_step, METH_VARARGS, "Clip gradients and take a step of Adam."},
    {"use", use, METH_VARARGS, "Choose an instruction set, the best for ''; name the chosen one."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, METHODS,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native(void) {
  choose("");
  PyObject *module = PyModule_Create(&MODULE);
  if (module && PyModule_AddIntConstant(module, "LAYOUT_DIGEST", LAYOUT_DIGEST)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
