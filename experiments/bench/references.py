"""Public implementations of the cores: the authors' code, or that which most people use."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

from torch import Tensor, nn

from rlgates.experiments.bench.pairs import Run
from rlgates.experiments.bench.rivals import Shape, inputs, timed_run

MOST_UNITS = 2048
Forward = Callable[[Tensor], Tensor]


class Reference(NamedTuple):
    """A public implementation of a core.

    Attributes:
        package: that it is in, as pip installs it.
        module: to import it from.
        make: given the module, input size and units, builds the layer and what it computes from
            inputs (B, T, I).
    """

    package: str
    module: str
    make: Callable[[Any, int, int], tuple[nn.Module, Forward]]


def _rnn(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    layer = module.RNN(input_size, units, batch_first=True)
    return layer, lambda x: layer(x)[0]


def _indrnn(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    layer = module.IndRNN(input_size, units)
    return layer, lambda x: layer(x)[0]


def _lmu(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    layer = module.LMU(input_size, units, units, theta=units)
    return layer, lambda x: layer(x)[0]


def _linear_attention(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    layer = module.LinearAttentionBlock(input_size, units, feed_forward=False, residual=False)

    def forward(x: Tensor) -> Tensor:
        zeros = x.new_zeros
        outputs: Tensor = layer(x, [zeros(len(x), 1, units, units), zeros(len(x), 1, units)])[0]
        return outputs

    return layer, forward


def _fast_weights(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    layer = module.FWPBlock(input_size, units, feed_forward=False, residual=False)
    return layer, lambda x: layer(x, x.new_zeros(len(x), 1, units, units))[0]


def _s4d(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    options = {"mode": "diag", "measure": "diag-lin", "disc": "zoh", "real_type": "exp"}
    kernel = module.S4(units, d_state=round(units**0.5 / 2) * 2, transposed=False, **options)
    layer = nn.Sequential(nn.Linear(input_size, units), kernel)
    return layer, lambda x: layer(x)[0]


def _mamba(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    block = module.MambaBlock(module.MambaConfig(d_model=units, n_layers=1))
    layer = nn.Sequential(nn.Linear(input_size, units), block)
    return layer, layer


def _s5(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    layer = nn.Sequential(nn.Linear(input_size, units), module.S5(units, units))
    return layer, layer


def _slstm(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    options = {"num_heads": 1, "conv1d_kernel_size": 0, "backend": "vanilla"}
    config = module.sLSTMLayerConfig(embedding_dim=units, **options)
    layer = nn.Sequential(nn.Linear(input_size, units), module.sLSTMLayer(config))
    return layer, layer


REFERENCES: dict[str, Reference] = {
    "elman": Reference("torch", "torch.nn", _rnn),
    "indrnn": Reference("popgym", "popgym.baselines.models.indrnn", _indrnn),
    "lmu": Reference("popgym", "popgym.baselines.models.lmu", _lmu),
    "linear_transformer": Reference(
        "popgym", "popgym.baselines.models.linear_attention", _linear_attention
    ),
    "fwp": Reference("popgym", "popgym.baselines.models.fwp", _fast_weights),
    "s4d": Reference("popgym", "popgym.baselines.models.s4d", _s4d),
    "mamba": Reference("mambapy", "mambapy.mamba", _mamba),
    "s5": Reference("s5-pytorch", "s5", _s5),
    "slstm": Reference("xlstm", "xlstm", _slstm),
}
"""By the name of the core."""


def reference_version(core: str) -> str | None:
    """Package and version of a core's public implementation; None if none can be imported."""
    if core not in REFERENCES:
        return None
    reference = REFERENCES[core]
    try:
        importlib.import_module(reference.module)
    except ImportError:  # it, or something that it needs
        return None
    return f"{reference.package} {metadata.version(reference.package)}"


def reference_run(core: str, parameters: int, shape: Shape) -> Run:
    """The public implementation of a core over sequences, without episode starts, on the CPU.

    For single steps several of them have code of its own, which is not timed.

    Args:
        core: of `REFERENCES`, whose package is installed.
        parameters: it gets as many units as bring it nearest to so many.
        shape: steps, batch size and inputs.
    """
    reference = REFERENCES[core]
    module = importlib.import_module(reference.module)

    def distance(units: int) -> int:
        layer, _ = reference.make(module, shape.I, units)
        return sum(weight.numel() for weight in layer.parameters()) - parameters

    # Even numbers, since some layers are made of halves.
    half = bisect_left(range(2, MOST_UNITS, 2), 0, key=distance)
    near = [max(2, 2 * half), 2 * half + 2]
    units = min(near, key=lambda units: abs(distance(units)))
    layer, forward = reference.make(module, shape.I, units)
    x, _ = inputs(shape, "cpu")
    steps = x.detach().transpose(0, 1).contiguous().requires_grad_(x.requires_grad)
    return timed_run(layer, lambda: forward(steps), steps)
