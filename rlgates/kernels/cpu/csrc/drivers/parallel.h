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

// The number of multiplications from which on a second thread pays: about 0.1 ms of work, since on
// a busy machine threads wait for each other.
static const double MIN_PARALLEL_WORK = 2e6;

// How many threads to use for some items, at least one.
static long num_threads(long available, long items, double multiplications) {
  if (multiplications < MIN_PARALLEL_WORK || available < 1) return 1;
  return available < items ? available : items;
}

// Calls `work(first, last, worker)` so that all items are covered; without OpenMP for a single
// worker, because OpenMP does not survive a fork.
template <class Work> static void parallel_for(long items, long workers, const Work &work) {
  if (workers == 1) return work(0, items, 0);
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (long i = 0; i < workers; i++) work(items * i / workers, items * (i + 1) / workers, i);
}
