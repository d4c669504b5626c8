// Memory for one call, and its work shared between threads.

struct AlignedBuffer {
  float *data = nullptr;  // null if there is not enough memory
  explicit AlignedBuffer(long floats) {
    void *address = nullptr;
    if (!posix_memalign(&address, 64, (floats + 16) * sizeof(float))) data = (float *)address;
  }
  AlignedBuffer(const AlignedBuffer &) = delete;
  ~AlignedBuffer() { free(data); }
};

// While one lives, its thread takes numbers below 1.2e-38 for 0: many processors are several times
// slower with them, and vanishing gradients are full of them. So do threads that it starts, for
// ever, also in the caller's code: it must start none.
class FlushDenormals {
#if defined(__SSE__)
  const unsigned before = __builtin_ia32_stmxcsr();

 public:
  // Flush to zero (bit 15) what is computed, and take what is read (bit 6) for zero.
  FlushDenormals() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;

 public:
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" : : "r"(before | 1 << 24));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before)); }
#else

 public:
  FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals &) = delete;
};

// The number of multiplications from which on a second thread pays: about 0.1 ms of work, since on
// a busy machine threads wait for each other.
static const double MIN_PARALLEL_WORK = 2e6;

// How many threads to use for some items, at least one.
static inline long num_threads(long available, long items, double multiplications) {
  if (multiplications < MIN_PARALLEL_WORK || available < 1) return 1;
  return available < items ? available : items;
}

// Calls `work(first, last, worker)` so that all items are covered; without OpenMP for a single
// worker, because OpenMP does not survive a fork.
template <class Work> static void parallel_for(long items, long workers, const Work &work) {
  auto share = [&](long i) {
    FlushDenormals here;
    work(items * i / workers, items * (i + 1) / workers, i);
  };
  if (workers == 1) return share(0);
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (long i = 0; i < workers; i++) share(i);
}
