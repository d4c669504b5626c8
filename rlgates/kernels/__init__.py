"""Kernels: faster implementations of the loop over time in `rlgates.core.Core`.

The plain loop is the reference. Every kernel equals it in outputs, final state and all gradients;
where no kernel can run, the loop does. `rlgates.kernels.dispatch` chooses.
"""

from rlgates.deprecation import renamed
from rlgates.kernels.dispatch import (
    BACKENDS,
    Explanation,
    LayerRequest,
    Result,
    explain,
    grid_features,
    run,
    run_together,
)
from rlgates.kernels.spec import CellSpec, LayerSpec, LinearScan, LinearStep

__all__ = [
    "BACKENDS",
    "CellSpec",
    "Explanation",
    "LayerRequest",
    "LayerSpec",
    "LinearScan",
    "LinearStep",
    "Result",
    "explain",
    "grid_features",
    "run",
    "run_together",
]

__getattr__ = renamed(
    __name__,
    {
        "Linear": "LinearStep",
        "FusedCell": "CellSpec",
        "GatedLayer": "CellSpec",
        "Loop": "CellSpec",
        "Recurrence": "CellSpec",
        "Scan": "LinearScan",
    },
)
