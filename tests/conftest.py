"""One thread a worker, and no windows: set before torch and matplotlib are imported."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
