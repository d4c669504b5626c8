// Memory for one call, and its work shared between threads.

struct Memory {
  float *at = nullptr;
  explicit Memory(long floats) {
    void *to = nullptr;
    if (!posix_memalign(&to, 64, (floats + 16) * sizeof(float))) at = (float *)to;
  }
  Memory(const Memory &) = delete;
  ~Memory() { free(at); }
};

// Multiplications that are worth a second thread, which a busy machine makes wait for: some 0.1 ms.
static const double WORTH_THREADS = 2e6;

// How many threads to take, at least one.
static long workers(long threads, long items, double multiplications) {
  if (multiplications < WORTH_THREADS || threads < 1) return 1;
  return threads < items ? threads : items;
}

// Call `work(first, last, worker)` for all items; without OpenMP if there is one worker, because
// it must not meet a fork.
template <class Work> static void share(long items, long workers, const Work &work) {
  if (workers == 1) return work(0, items, 0);
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (long i = 0; i < workers; i++) work(items * i / workers, items * (i + 1) / workers, i);
}
