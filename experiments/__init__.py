"""Scripts that people run: training, figures, benchmarks."""
