// The kernels of all instruction sets, each of which has a file of its own, so that they are compiled
// beside each other: `avx512.cpp`, `avx2.cpp` and `plain.cpp`.

#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "layout.h"
#include "drivers/pages.h"
#include "drivers/parallel.h"

// Each returns false if there is not enough memory.
struct Kernels {
  bool (*layer_forward)(const LayerArgs &);
  bool (*layer_backward)(const LayerArgs &);
  bool (*scan_forward)(const ScanArgs &);
  bool (*scan_backward)(const ScanArgs &);
  bool (*channels_forward)(const ChannelArgs &);
  bool (*channels_backward)(const ChannelArgs &);
  bool (*memories_forward)(const MemoryArgs &);
  bool (*memories_backward)(const MemoryArgs &);
  bool (*conv_forward)(const ConvArgs &);
  bool (*conv_backward)(const ConvArgs &);
  bool (*attention_forward)(const AttentionArgs &);
  bool (*attention_backward)(const AttentionArgs &);
  bool (*grid_forward)(const GridArgs &);
  bool (*grid_backward)(const GridArgs &);
  bool (*heads_forward)(const HeadsArgs &);
  bool (*heads_loss)(const HeadsArgs &);
  bool (*adam_step)(const AdamArgs &);
};

// Functions between these two are compiled for another instruction set than the rest of a file.
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
namespace avx512 { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
#endif
namespace plain { extern const Kernels kernels; }
