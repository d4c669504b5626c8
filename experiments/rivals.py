"""What the cores are timed against: the layers of torch.nn, and other libraries if they are there.

No other library is required. Nothing here is installed by rlgates.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlgates import Core
from rlgates.experiments.pairs import Run

START_RATE = 0.02  # of the steps at which an episode starts


class Shape(NamedTuple):
    """Steps, rows, inputs and units of a case; one step is without gradients, as in a rollout."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int

    def __str__(self) -> str:
        return "x".join(map(str, self))


def inputs(shape: Shape, device: str) -> tuple[Tensor, Tensor]:
    """x (T, B, I), whose gradient is wanted, and starts (T, B); the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape[:3], generator=generator)
    starts = torch.rand(shape[:2], generator=generator) < START_RATE
    return x.to(device).requires_grad_(shape.T > 1), starts.to(device)


def repeated(module: nn.Module, forward: Callable[[], Tensor], x: Tensor) -> Run:
    """One run: forward and backward, with the gradients of x and of all weights; or one step."""
    with torch.no_grad():
        gradient = torch.randn(forward().shape, device=x.device)

    def train() -> None:
        module.zero_grad()
        x.grad = None
        forward().backward(gradient)
        _wait(x)

    def step() -> None:
        with torch.no_grad():
            forward()
        _wait(x)

    return train if x.requires_grad else step


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def core_run(core: Core, shape: Shape, device: str) -> Run:
    """A core with episode starts inside; a step also takes the state."""
    x, starts = inputs(shape, device)
    state = core.initial_state(shape.B).detach() if shape.T == 1 else None
    return repeated(core, lambda: core(x, state, starts)[0], x)


def layer_run(kind: str, shape: Shape, device: str, units: int | None = None) -> Run:
    """`torch.nn.LSTM` or `torch.nn.GRU`, which know of no starts."""
    units = units or shape.H
    layer = getattr(nn, kind)(shape.I, units).to(device)
    x, _ = inputs(shape, device)
    state: Any = None
    if shape.T == 1:
        zeros = torch.zeros(1, shape.B, units, device=device)
        state = (zeros, zeros) if kind == "LSTM" else zeros
    return repeated(layer, lambda: layer(x, state)[0], x)


def equal_units(parameters: int, input_size: int) -> int:
    """Units of the nn.LSTM whose number of parameters, 4 H (I + H + 2), is nearest."""

    def away(units: int) -> int:
        return abs(4 * units * (input_size + units + 2) - parameters)

    middle = (input_size + 2) / 2
    root = math.floor(math.sqrt(middle**2 + parameters / 4) - middle)
    return min((max(1, root), root + 1), key=away)


def _torchrl(shape: Shape, device: str, **options: Any) -> Run:
    """torchrl's `LSTMModule`, which takes starts as `is_init`."""
    modules: Any = importlib.import_module("torchrl.modules")
    tensordict: Any = importlib.import_module("tensordict").TensorDict
    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}
    module = modules.LSTMModule(shape.I, shape.H, device=device, **keys, **options)
    x, starts = inputs(shape, device)
    sizes = [shape.B, shape.T] if shape.T > 1 else [shape.B]
    state = torch.zeros(*sizes, 1, shape.H, device=device)
    begins = starts.T.reshape(*sizes, 1)

    def forward() -> Tensor:
        taken = x.transpose(0, 1).reshape(*sizes, shape.I)
        given = {"x": taken, "h": state, "c": state, "is_init": begins}
        with modules.set_recurrent_mode(shape.T > 1):
            outputs: Tensor = module(tensordict(given, batch_size=sizes))["y"]
        return outputs

    return repeated(module, forward, x)


def _flashrnn(shape: Shape, device: str, **options: Any) -> Run:
    """FlashRNN's LSTM behind a linear map of the inputs; it knows of no starts."""
    flashrnn: Any = importlib.import_module("flashrnn").flashrnn
    project = nn.Linear(shape.I, 4 * shape.H)
    project.R = nn.Parameter(torch.randn(4, 1, shape.H, shape.H) / math.sqrt(shape.H))
    project.b = nn.Parameter(torch.zeros(4, 1, shape.H))
    project.to(device)
    x, _ = inputs(shape, device)
    state = torch.zeros(2, shape.B, 1, 1, shape.H, device=device)

    def forward() -> Tensor:
        Wx = project(x.transpose(0, 1)).unflatten(-1, (4, 1, shape.H))
        states, _ = flashrnn(
            Wx, project.R, project.b, states=state, function="lstm", dtype="float32", **options
        )
        outputs: Tensor = states[0]
        return outputs

    return repeated(project, forward, x)


class Other(NamedTuple):
    """Another library's layer.

    Attributes:
        package: that has to be installed.
        make: gives what makes one run.
        gpu: whether it needs one.
    """

    package: str
    make: Callable[[Shape, str], Run]
    gpu: bool = False


OTHERS: dict[str, Other] = {
    "torchrl-pad": Other("torchrl", partial(_torchrl, recurrent_backend="pad")),
    "torchrl-python": Other("torchrl", partial(_torchrl, python_based=True)),
    "torchrl-scan": Other("torchrl", partial(_torchrl, recurrent_backend="scan")),
    "torchrl-triton": Other("torchrl", partial(_torchrl, recurrent_backend="triton"), True),
    "flashrnn-fused": Other("flashrnn", partial(_flashrnn, backend="cuda_fused"), True),
    "flashrnn-cuda": Other("flashrnn", partial(_flashrnn, backend="cuda"), True),
}


def absent(name: str, device: str) -> str | None:
    """Why another library's layer cannot be timed; None if it can."""
    other = OTHERS[name]
    if importlib.util.find_spec(other.package) is None:
        return "not installed"
    if other.gpu and device == "cpu":
        return "needs a GPU"
    return None


def version(name: str) -> str:
    """Of the package of another library's layer."""
    return importlib.metadata.version(OTHERS[name].package)
