"""The rivals of the cores: layers of torch.nn, and of other libraries if they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlgates import Core
from rlgates.experiments.bench.pairs import Run

START_RATE = 0.02  # share of steps at which an episode starts


class Shape(NamedTuple):
    """Steps, batch size, inputs and units of a case; T = 1 is a rollout step without gradients."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int

    def __str__(self) -> str:
        return "x".join(map(str, self))


def inputs(shape: Shape, device: str) -> tuple[Tensor, Tensor]:
    """x (T, B, I), which requires its gradient if T > 1, and episode starts (T, B), both fixed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape[:3], generator=generator)
    episode_starts = torch.rand(shape[:2], generator=generator) < START_RATE
    return x.to(device).requires_grad_(shape.T > 1), episode_starts.to(device)


def timed_run(module: nn.Module, forward: Callable[[], Tensor], x: Tensor) -> Run:
    """A forward and backward pass with the gradients of x and of all weights; or one step."""
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
    """A core with episode starts; a single step also takes the state."""
    x, episode_starts = inputs(shape, device)
    state = core.initial_state(shape.B).detach() if shape.T == 1 else None
    return timed_run(core, lambda: core(x, state, episode_starts)[0], x)


def layer_run(kind: str, shape: Shape, device: str, units: int | None = None) -> Run:
    """`torch.nn.LSTM` or `torch.nn.GRU`, without episode starts."""
    units = units or shape.H
    layer = getattr(nn, kind)(shape.I, units).to(device)
    x, _ = inputs(shape, device)
    state: Any = None
    if shape.T == 1:
        zeros = torch.zeros(1, shape.B, units, device=device)
        state = (zeros, zeros) if kind == "LSTM" else zeros
    return timed_run(layer, lambda: layer(x, state)[0], x)


def equal_units(parameters: int, input_size: int) -> int:
    """Units of the nn.LSTM whose number of parameters, 4 H (I + H + 2), is nearest."""

    def difference(units: int) -> int:
        return abs(4 * units * (input_size + units + 2) - parameters)

    middle = (input_size + 2) / 2
    root = math.floor(math.sqrt(middle**2 + parameters / 4) - middle)
    return min((max(1, root), root + 1), key=difference)


def _torchrl(shape: Shape, device: str, **options: Any) -> Run:
    """torchrl's `LSTMModule`, which takes episode starts as `is_init`."""
    modules: Any = importlib.import_module("torchrl.modules")
    tensordict: Any = importlib.import_module("tensordict").TensorDict
    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}
    module = modules.LSTMModule(shape.I, shape.H, device=device, **keys, **options)
    x, episode_starts = inputs(shape, device)
    sizes = [shape.B, shape.T] if shape.T > 1 else [shape.B]
    state = torch.zeros(*sizes, 1, shape.H, device=device)
    is_init = episode_starts.T.reshape(*sizes, 1)

    def forward() -> Tensor:
        steps = x.transpose(0, 1).reshape(*sizes, shape.I)
        arguments = {"x": steps, "h": state, "c": state, "is_init": is_init}
        with modules.set_recurrent_mode(shape.T > 1):
            outputs: Tensor = module(tensordict(arguments, batch_size=sizes))["y"]
        return outputs

    return timed_run(module, forward, x)


def _flashrnn(shape: Shape, device: str, **options: Any) -> Run:
    """FlashRNN's LSTM after a linear map of the inputs, without episode starts."""
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

    return timed_run(project, forward, x)


class Library(NamedTuple):
    """Another library's layer.

    Attributes:
        package: the package it is in.
        make: builds the run to time.
        gpu: whether it needs a GPU.
    """

    package: str
    make: Callable[[Shape, str], Run]
    gpu: bool = False


LIBRARIES: dict[str, Library] = {
    "torchrl-pad": Library("torchrl", partial(_torchrl, recurrent_backend="pad")),
    "torchrl-python": Library("torchrl", partial(_torchrl, python_based=True)),
    "torchrl-scan": Library("torchrl", partial(_torchrl, recurrent_backend="scan")),
    "torchrl-triton": Library("torchrl", partial(_torchrl, recurrent_backend="triton"), True),
    "flashrnn-fused": Library("flashrnn", partial(_flashrnn, backend="cuda_fused"), True),
    "flashrnn-cuda": Library("flashrnn", partial(_flashrnn, backend="cuda"), True),
}


def unavailable_reason(name: str, device: str) -> str | None:
    """Why another library's layer cannot be timed; None if it can."""
    library = LIBRARIES[name]
    if importlib.util.find_spec(library.package) is None:
        return "not installed"
    if library.gpu and device == "cpu":
        return "needs a GPU"
    return None
