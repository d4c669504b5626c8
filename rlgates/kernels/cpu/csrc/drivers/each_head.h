// Run the heads of all rows of the batch, split among threads; no sum is over them.

// Each thread has a `Head` of its own, in its workspace, which `run` gets at one row and head after
// the other. Returns false if there is not enough memory.
template <class Head, class Args, class Run>
static bool each_head(const Args &s, bool back, double multiplications, const Run &run) {
  Workspace needed{};
  Head measure(s, back, needed);
  const long heads = s.batch_size * s.heads;
  const long workers = num_threads(s.threads, heads, multiplications);
  AlignedBuffer buffer(workers * needed.used);
  if (!buffer.data) return false;
  parallel_for(heads, workers, [&](long first, long last, long worker) {
    Workspace memory{buffer.data + worker * needed.used, 0};
    Head head(s, back, memory);
    for (long i = first; i < last; i++) {
      head.row = i / s.heads, head.head = i % s.heads;
      run(head);
    }
  });
  return true;
}
