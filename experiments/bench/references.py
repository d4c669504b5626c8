"""Public implementations of the cores: the authors' code, or that which most people use."""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlgates.experiments.bench.pairs import Run
from rlgates.experiments.bench.rivals import Shape, inputs, timed_run

MOST_UNITS = 2048
WINDOW = 32  # of the transformers
Forward = Callable[[Tensor], Tensor]
Make = Callable[[Any, int, int], tuple[nn.Module, Forward]]


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
    make: Make


def _first_output(layer: nn.Module) -> tuple[nn.Module, Forward]:
    """A layer, and what it computes: the first of several outputs."""

    def forward(x: Tensor) -> Tensor:
        outputs = layer(x)
        first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return first

    return layer, forward


def _behind_linear(input_size: int, units: int, layer: nn.Module) -> tuple[nn.Module, Forward]:
    """A layer whose inputs are as wide as its outputs, behind a linear map to them."""
    return _first_output(nn.Sequential(nn.Linear(input_size, units), layer))


def _recurrent(name: str) -> Make:
    """A layer with the arguments of those in torch.nn."""
    return lambda module, input_size, units: _first_output(
        getattr(module, name)(input_size, units, batch_first=True)
    )


def _indrnn(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    return _first_output(module.IndRNN(input_size, units))


def _lmu(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    return _first_output(module.LMU(input_size, units, units, theta=units))


def _dilated_gru(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    return _first_output(module.DRNN(input_size, units, 4, [1, 2, 4, 8], batch_first=True))


def _mogrifier(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    # The package has the rounds alone, which share their two matrices.
    mogrify = module.Mogrifier(input_size, dim_hidden=units)
    cell = nn.LSTMCell(input_size, units)

    def forward(x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), units)
        outputs = []
        for step in x.unbind(1):
            modulated, h = mogrify(step, h)
            h, c = cell(modulated, (h, c))
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    return nn.ModuleList([mogrify, cell]), forward


def _minimal(name: str) -> Make:
    """A layer whose units are given as a multiple of its inputs."""
    return lambda module, input_size, units: _first_output(
        getattr(module, name)(input_size, (units + 0.5) / input_size, proj_out=False)
    )


def _lru(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    return _first_output(module.LRU(input_size, units, units))


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
    return _behind_linear(input_size, units, kernel)


def _mamba(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    block = module.MambaBlock(module.MambaConfig(d_model=units, n_layers=1))
    return _behind_linear(input_size, units, block)


def _mamba2(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    sizes = {"hidden_size": units, "num_heads": 4, "head_dim": units // 2, "state_size": 64}
    # Its default of 256 would fill up the sequence of the bench to that length.
    config = module.Mamba2Config(num_hidden_layers=1, n_groups=1, chunk_size=64, **sizes)
    return _behind_linear(input_size, units, module.Mamba2Mixer(config, layer_idx=0))


def _s5(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    return _behind_linear(input_size, units, module.S5(units, units))


def _dnc(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    memory = {"nr_cells": 16, "cell_size": 16, "read_heads": 4}
    return _first_output(module.DNC(input_size, units, num_hidden_layers=1, **memory))


def _slstm(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    options = {"num_heads": 1, "conv1d_kernel_size": 0, "backend": "vanilla"}
    config = module.sLSTMLayerConfig(embedding_dim=units, **options)
    return _behind_linear(input_size, units, module.sLSTMLayer(config))


def _mlstm(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    # With a norm and an output map besides. The mode for any number of steps, gradients included.
    backend = module.mLSTMBackendConfig(mode="inference")
    sizes = {"num_heads": 1, "qk_dim_factor": 1.0}
    config = module.mLSTMLayerConfig(units, mlstm_backend=backend, **sizes)
    return _behind_linear(input_size, units, module.mLSTMLayer(config))


def _gated_deltanet(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    # A convolution of one step, since the core has none.
    sizes = {"linear_key_head_dim": units, "linear_value_head_dim": units}
    heads = {"linear_num_key_heads": 1, "linear_num_value_heads": 1}
    config = module.Qwen3NextConfig(
        hidden_size=units, num_hidden_layers=1, linear_conv_kernel_dim=1, **sizes, **heads
    )
    layer = module.Qwen3NextGatedDeltaNet(config, layer_idx=0)
    return _behind_linear(input_size, units, layer)


def _rwkv7(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    rank = round(2.5 * units**0.5)
    ranks = {"decay_low_rank_dim": rank, "a_low_rank_dim": rank, "gate_low_rank_dim": 2 * rank}
    config = module.RWKV7Config(hidden_size=units, num_heads=1, num_hidden_layers=1, **ranks)
    embed, mix = nn.Linear(input_size, units), module.RWKV7TimeMix(config, layer_idx=0)

    def forward(x: Tensor) -> Tensor:
        e = embed(x)
        memory, before = x.new_zeros(len(x), 1, units, units), x.new_zeros(len(x), units)
        is_step = torch.ones(x.shape[:2], dtype=torch.bool)
        outputs: Tensor = mix(e, memory, before, torch.zeros_like(e), is_step)[0]
        return outputs

    return nn.Sequential(embed, mix), forward


def _transformer(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    # Without positions.
    options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    embed = nn.Linear(input_size, units)
    layer = module.TransformerEncoderLayer(units, 1, 2 * units, **options)

    def forward(x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1])
        age = steps.unsqueeze(1) - steps
        outputs: Tensor = layer(embed(x), (age < 0) | (age >= WINDOW))
        return outputs

    return nn.Sequential(embed, layer), forward


def _gtrxl(module: Any, input_size: int, units: int) -> tuple[nn.Module, Forward]:
    # It attends to the whole sequence, and to a window before it.
    sizes = {"head_dim": units, "embedding_dim": units, "head_num": 1, "memory_len": WINDOW - 1}
    layer = module.GTrXL(input_size, layer_num=1, **sizes)

    def forward(x: Tensor) -> Tensor:
        layer.reset_memory(len(x))
        outputs: Tensor = layer(x, batch_first=True)["logit"]
        return outputs

    return layer, forward


REFERENCES: dict[str, Reference] = {
    "elman": Reference("torch", "torch.nn", _recurrent("RNN")),
    "indrnn": Reference("popgym", "popgym.baselines.models.indrnn", _indrnn),
    "cornn": Reference("torchrecurrent", "torchrecurrent", _recurrent("coRNN")),
    # y' reads the z of the step before, not z'.
    "lem": Reference("torchrecurrent", "torchrecurrent", _recurrent("LEM")),
    "janet": Reference("torchrecurrent", "torchrecurrent", _recurrent("JANET")),
    "lmu": Reference("popgym", "popgym.baselines.models.lmu", _lmu),
    "dilated_gru": Reference("esrnn", "ESRNN.utils.DRNN", _dilated_gru),
    "mogrifier": Reference("mogrifier", "mogrifier", _mogrifier),
    "mingru": Reference("minGRU-pytorch", "minGRU_pytorch.minGRU", _minimal("minGRU")),
    "minlstm": Reference("minGRU-pytorch", "minGRU_pytorch.minLSTM", _minimal("minLSTM")),
    "lru": Reference("LRU-pytorch", "LRU_pytorch", _lru),
    "linear_transformer": Reference(
        "popgym", "popgym.baselines.models.linear_attention", _linear_attention
    ),
    "fwp": Reference("popgym", "popgym.baselines.models.fwp", _fast_weights),
    "s4d": Reference("popgym", "popgym.baselines.models.s4d", _s4d),
    "mamba": Reference("mambapy", "mambapy.mamba", _mamba),
    "mamba2": Reference("transformers", "transformers.models.mamba2.modeling_mamba2", _mamba2),
    "s5": Reference("s5-pytorch", "s5", _s5),
    "dnc": Reference("dnc", "dnc", _dnc),
    "slstm": Reference("xlstm", "xlstm", _slstm),
    "mlstm": Reference("xlstm", "xlstm.xlstm_large.model", _mlstm),
    "deltanet": Reference(
        "transformers", "transformers.models.qwen3_next.modeling_qwen3_next", _gated_deltanet
    ),
    "rwkv7": Reference("rwkv7-hf", "rwkv7_hf", _rwkv7),
    "transformer": Reference("torch", "torch.nn", _transformer),
    "gtrxl": Reference("DI-engine", "ding.torch_utils.network.gtrxl", _gtrxl),
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


def number_of_weights(layer: nn.Module) -> int:
    """Real numbers in the parameters of a layer: two for each complex one."""
    return sum(weight.numel() * (1 + weight.is_complex()) for weight in layer.parameters())


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
        return number_of_weights(layer) - parameters

    # Even numbers, since some layers are made of halves.
    half = bisect_left(range(2, MOST_UNITS, 2), 0, key=distance)
    near = [max(2, 2 * half), 2 * half + 2]
    units = min(near, key=lambda units: abs(distance(units)))
    layer, forward = reference.make(module, shape.I, units)
    x, _ = inputs(shape, "cpu")
    steps = x.detach().transpose(0, 1).contiguous().requires_grad_(x.requires_grad)
    return timed_run(layer, lambda: forward(steps), steps)
