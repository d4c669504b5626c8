"""Kernels: faster implementations of the loop over time in `rlgates.core.Core`.

The plain loop is the reference. Every kernel equals it in outputs, final state and all gradients;
where no kernel can run, the loop does. `rlgates.kernels.dispatch` chooses.
"""

from rlgates.deprecation import renamed
from rlgates.kernels.dispatch import (
    BACKENDS,
    Explanation,
    Result,
    explain,
    run,
    run_together,
    side_by_side_is_faster,
)
from rlgates.kernels.spec import (
    FusedCell,
    GatedLayer,
    LayerSpec,
    LinearScan,
    LinearStep,
    LoopOnly,
)

__all__ = [
    "BACKENDS",
    "Explanation",
    "FusedCell",
    "GatedLayer",
    "LayerSpec",
    "LinearScan",
    "LinearStep",
    "LoopOnly",
    "Result",
    "explain",
    "run",
    "run_together",
    "side_by_side_is_faster",
]

__getattr__ = renamed(
    __name__,
    {
        "Linear": "LinearStep",
        "Loop": "FusedCell",
        "Recurrence": "GatedLayer",
        "Scan": "LinearScan",
        "have_few_rows": "side_by_side_is_faster",
    },
)
