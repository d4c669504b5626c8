"""Kernels: faster implementations of the loop over time in `rlgates.core.Core`.

The plain loop is the reference. Every kernel equals it in outputs, final state and all gradients;
where no kernel can run, the loop does. `rlgates.kernels.dispatch` chooses.
"""

from rlgates.deprecation import renamed
from rlgates.kernels.cpu.adam import ClipAndStep
from rlgates.kernels.cpu.heads import Heads, LossSettings, Taken
from rlgates.kernels.dispatch import (
    BACKENDS,
    Explanation,
    LayerRequest,
    Result,
    attend,
    convolve,
    explain,
    grid_features,
    head_outputs,
    may_read,
    ppo_losses,
    ppo_losses_of_cores,
    run,
    run_together,
    supports_heads,
)
from rlgates.kernels.spec import (
    AllSteps,
    CellSpec,
    Channels,
    LayerSpec,
    LinearScan,
    LinearStep,
    Memories,
    MemorySteps,
    NoKernel,
    RunMemories,
)

__all__ = [
    "BACKENDS",
    "AllSteps",
    "CellSpec",
    "Channels",
    "ClipAndStep",
    "Explanation",
    "Heads",
    "LayerRequest",
    "LayerSpec",
    "LinearScan",
    "LinearStep",
    "LossSettings",
    "Memories",
    "MemorySteps",
    "NoKernel",
    "Result",
    "RunMemories",
    "Taken",
    "attend",
    "convolve",
    "explain",
    "grid_features",
    "head_outputs",
    "may_read",
    "ppo_losses",
    "ppo_losses_of_cores",
    "run",
    "run_together",
    "supports_heads",
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
