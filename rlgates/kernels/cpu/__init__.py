"""Kernels for the CPU, in C++: `csrc` and what calls it."""
