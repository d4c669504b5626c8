"""Cores beside public implementations, with the same weights and inputs, from a zero state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NamedTuple

import pytest
import torch
from support.public_parity import PARITY, Difference
from torch import Tensor, nn

from rlgates import make_core
from rlgates.core import Core
from rlgates.registry import CORES

STEPS, BATCH, INPUTS, UNITS = 7, 2, 3, 8
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-6}
SEED, LARGE = 0, 0.1

Pair = tuple[Tensor, Tensor]  # outputs (T, B, O) of the core and of the public implementation


class Check(NamedTuple):
    """A core and a public implementation of it.

    Attributes:
        package: that it is in, as pip installs it.
        module: to import it from.
        run: given the module, runs both with the same weights and inputs.
        dtype: in which both compute; float32 where the public code rounds to it.
        note: what had to be set, switched off or added for the two to be comparable.
    """

    package: str
    module: str
    run: Callable[[Any], Pair]
    dtype: torch.dtype = torch.float64
    note: str = ""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make layers, and the zeros that public code begins with, in this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def sampled(layer: nn.Module, size: float = 0.5) -> Any:
    """The layer with normal parameters of this size, biases included, in the default dtype."""
    dtype = torch.get_default_dtype()
    for parameter in layer.parameters():
        kind = dtype.to_complex() if parameter.is_complex() else dtype
        parameter.data = size * torch.randn(parameter.shape, dtype=kind)
    return layer


def inputs(width: int = INPUTS) -> Tensor:
    """Inputs (T, B, I)."""
    return torch.randn(STEPS, BATCH, width)


def by_batch(layer: Callable[..., Any], x: Tensor, *others: Any) -> Tensor:
    """What a layer for (B, T, I), perhaps with further results, makes of inputs (T, B, I)."""
    outputs = layer(x.transpose(0, 1), *others)
    first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return first.transpose(0, 1)


def fill(core: Core, weights: Mapping[str, Tensor], layer: int = 0) -> None:
    """Give a layer of a core these weights, by the names of `gate_weights`, and zero others."""
    views = core.gate_weights(layer)
    assert weights.keys() <= views.keys()
    for name, view in views.items():
        if name in weights:
            view.copy_(weights[name].reshape(view.shape))
        else:
            view.zero_()


def rows(names: Sequence[str], **stacked: Tensor) -> dict[str, Tensor]:
    """`<kind>_<name>` of the parts of equal size of each stacked parameter."""
    return {
        f"{kind}_{name}": part
        for kind, parameter in stacked.items()
        for name, part in zip(names, parameter.chunk(len(names)), strict=True)
    }


def of_torch(name: str, layer: str) -> Callable[[Any], Pair]:
    """A layer of torch.nn, whose state dict the core loads."""

    def run(module: Any) -> Pair:
        public, x = sampled(getattr(module, layer)(INPUTS, UNITS)), inputs()
        core = make_core(name, INPUTS, UNITS)
        core.load_state_dict(public.state_dict())
        return core(x)[0], public(x)[0]

    return run


def indrnn(module: Any) -> Pair:
    public, x = sampled(module.IndRNN(INPUTS, UNITS)), inputs()
    core = make_core("indrnn", INPUTS, UNITS, num_layers=2, max_recurrent=public.clamp_val)
    for layer, linear, bias, recurrent in (
        (0, public.input0, public.bias0, public.weight0),
        (1, public.input1, public.bias1, public.weight1),
    ):
        weights = {"weight": linear.weight, "bias": linear.bias + bias, "recurrent": recurrent}
        fill(core, weights, layer)
    return core(x)[0], by_batch(public, x)


def dilated_gru(module: Any) -> Pair:
    public, x = sampled(module.DRNN(INPUTS, UNITS, 3, [1, 2, 4])), inputs()
    core = make_core("dilated_gru", INPUTS, UNITS, levels=3)
    for ours, theirs in zip(core.cells[0].grus, public.cells, strict=True):
        ours.load_state_dict(theirs.state_dict())
    return core(x)[0], public(x)[0]


def janet(module: Any) -> Pair:
    public, x = sampled(module.JANET(INPUTS, UNITS)), inputs()
    (cell,) = public.cells
    core = make_core("janet", INPUTS, UNITS, beta=float(cell.beta))
    maps = {"W_x": cell.weight_ih, "W_h": cell.weight_hh, "b": cell.bias_ih, "b_h": cell.bias_hh}
    fill(core, rows(("f", "u"), **maps))
    return core(x)[0], public(x)[0]


def gilr(module: Any) -> Pair:
    public, x = sampled(module.LightRU(INPUTS, UNITS)), inputs()
    (cell,) = public.cells
    cell.weight_hh.zero_()
    core = make_core("gilr", INPUTS, UNITS)
    (w_u, w_z), (b_u, b_z) = cell.weight_ih.chunk(2), cell.bias_ih.chunk(2)
    # Its gate is that of the candidate, 1 - f.
    fill(core, {"W_u": w_u, "b_u": b_u, "W_f": -w_z, "b_f": -(b_z + cell.bias_hh)})
    return core(x)[0], public(x)[0]


def cornn(module: Any) -> Pair:
    public, x = sampled(module.coRNN(INPUTS, UNITS, dt=0.3)), inputs()
    (cell,) = public.cells
    options = {name: getattr(cell, name) for name in ("dt", "gamma", "epsilon")}
    core = make_core("cornn", INPUTS, UNITS, **options)
    weights = {"W_x": cell.weight_ih, "W_y": cell.weight_hh, "W_z": cell.weight_ch}
    fill(core, weights | {"b": cell.bias_ih + cell.bias_hh + cell.bias_ch})
    return core(x)[0], public(x)[0]


def lem(module: Any) -> Pair:
    cell, x = sampled(module.LEMCell(INPUTS, UNITS, dt=0.7)), inputs()
    core = make_core("lem", INPUTS, UNITS, dt=cell.dt)
    b_2, b_1, b_z, b_y = cell.bias_ih.chunk(4)
    of_2, of_1, of_z = cell.bias_hh.chunk(3)
    biases = {"b_2": b_2 + of_2, "b_1": b_1 + of_1, "b_z": b_z + of_z, "b_y": b_y + cell.bias_ch}
    maps = rows("21zy", V=cell.weight_ih) | rows("21z", W=cell.weight_hh)
    fill(core, maps | biases | {"W_y": cell.weight_ch})
    y = z = torch.zeros(BATCH, UNITS)
    outputs = []
    for step in x:
        z = cell(step, (y, z))[1]
        y = cell(step, (y, z))[0]
        outputs.append(y)
    return core(x)[0], torch.stack(outputs)


def lmu(module: Any) -> Pair:
    memory, theta = 6, 5.0
    public, x = sampled(module.LMU(INPUTS, UNITS, memory, theta)), inputs()
    cell = public.cell
    cell.A, cell.B = map(torch.from_numpy, cell.stateSpaceMatrices(memory, theta))
    core = make_core("lmu", INPUTS, UNITS, memory_size=memory, theta=theta)
    fill(core, dict(cell.named_parameters()))
    return core(x)[0], by_batch(public, x)


def mogrifier(module: Any) -> Pair:
    rounds = sampled(module.Mogrifier(INPUTS, iters=5, dim_hidden=UNITS))
    cell, x = sampled(nn.LSTMCell(INPUTS, UNITS)), inputs()
    core = make_core("mogrifier", INPUTS, UNITS, rounds=5, cap_input=False)
    maps = {"W_x": cell.weight_ih, "W_h": cell.weight_hh, "b": cell.bias_ih, "b_h": cell.bias_hh}
    weights = rows(("i", "f", "u", "o"), **maps)
    for n in range(1, 6):
        linear = (rounds.Q if n % 2 else rounds.R)[0]
        weights |= {f"Q_{n}": linear.weight, f"q_{n}": linear.bias}
    fill(core, weights)
    h = c = torch.zeros(BATCH, UNITS)
    outputs = []
    for step in x:
        modulated, h = rounds(step, h)
        h, c = cell(modulated, (h, c))
        outputs.append(h)
    return core(x)[0], torch.stack(outputs)


def mingru(module: Any) -> Pair:
    public = sampled(module.minGRU(INPUTS, (UNITS + 0.5) / INPUTS, proj_out=False))
    core, x = make_core("mingru", INPUTS, UNITS), inputs()
    w_u, w_z = public.to_hidden_and_gate.weight.chunk(2)
    fill(core, {"W_u": w_u, "W_f": -w_z})  # its gate is that of the candidate, 1 - f
    return core(x)[0], by_batch(public, x)


def minlstm(module: Any) -> Pair:
    public = sampled(module.minLSTM(INPUTS, (UNITS + 0.5) / INPUTS, proj_out=False))
    core, x = make_core("minlstm", INPUTS, UNITS), inputs()
    fill(core, rows(("u", "f", "i"), W=public.to_hidden_and_f_i_gate.weight))
    return core(x)[0], by_batch(public, x)


def lru(module: Any) -> Pair:
    public, x = sampled(module.LRU(INPUTS, UNITS, UNITS)), inputs()
    core = make_core("lru", INPUTS, UNITS)
    weights = {name: getattr(public, name) for name in ("nu_log", "theta_log", "gamma_log", "D")}
    weights |= {"B_re": public.B.real, "B_im": public.B.imag}
    fill(core, weights | {"C_re": public.C.real, "C_im": public.C.imag})
    return core(x)[0], by_batch(public, x)


def rtu(module: Any) -> Pair:
    public, x = sampled(module.LRU(INPUTS, 2 * UNITS, UNITS)), inputs()
    eye = torch.eye(UNITS)
    public.C.copy_(torch.cat([torch.complex(eye, 0 * eye), torch.complex(0 * eye, -eye)]))
    public.D.zero_()
    public.gamma_log.copy_(0.5 * torch.log(1 - torch.exp(-2 * torch.exp(public.nu_log))))
    core = make_core("rtu", INPUTS, UNITS)
    weights = {"nu_log": public.nu_log, "theta_log": public.theta_log}
    fill(core, weights | {"W_1": public.B.real, "W_2": public.B.imag})
    return core(x)[0], torch.relu(by_batch(public, x))


def linear_transformer(module: Any) -> Pair:
    public, x = sampled(module.LinearAttentionBlock(INPUTS, UNITS)), inputs()
    core = make_core("linear_transformer", INPUTS, UNITS)
    weights = {"W_q": public.query.weight, "W_k": public.key.weight, "W_v": public.value.weight}
    weights |= {"g_n": public.norm.weight, "o_n": public.norm.bias}
    for name, linear in (("s", public.shortcut), ("1", public.ff[0]), ("2", public.ff[2])):
        weights |= {f"W_{name}": linear.weight, f"b_{name}": linear.bias}
    fill(core, weights)
    state = [torch.zeros(BATCH, 1, UNITS, UNITS), torch.zeros(BATCH, 1, UNITS)]
    return core(x)[0], by_batch(public, x, state)


def s4d(module: Any) -> Pair:
    options = {"mode": "diag", "measure": "diag-lin", "disc": "zoh", "real_type": "exp"}
    public = sampled(module.S4(UNITS, d_state=6, transposed=False, **options))
    core, x = make_core("s4d", UNITS, UNITS, ssm_size=6), inputs(UNITS)
    kernel, linear = public.kernel.kernel, public.output_linear[0]
    c = torch.view_as_complex(kernel.B) * torch.view_as_complex(kernel.C)[0]
    weights = {"W_u": torch.eye(UNITS), "log_step": kernel.log_dt, "D": public.D}
    weights |= {"a_re": kernel.inv_A_real, "a_im": kernel.A_imag, "C_re": c.real, "C_im": c.imag}
    fill(core, weights | rows("12", W=linear.weight, b=linear.bias))
    return core(x)[0], by_batch(public, x)


def s5(module: Any) -> Pair:
    public, x = sampled(module.S5(UNITS, 5)), inputs(UNITS)
    system = public.seq
    system.Lambda.copy_(torch.complex(-system.Lambda.real.abs() - 0.1, system.Lambda.imag))
    system.B.copy_(system.B.float())  # it rounds them
    core = make_core("s5", UNITS, UNITS, ssm_size=10, activation="linear")
    b_re, b_im = system.B.unbind(-1)
    weights = {"lambda_re": system.Lambda.real, "lambda_im": system.Lambda.imag}
    weights |= {"log_step": system.log_step, "B_re": b_re, "B_im": b_im}
    weights |= {"C_re": system.C.real / 2, "C_im": system.C.imag / 2}
    fill(core, weights | {"D": torch.diag(system.D)})
    return core(x)[0], by_batch(public, x)


def mamba(module: Any) -> Pair:
    config = module.MambaConfig(d_model=UNITS, n_layers=1, d_state=4, dt_rank=2)
    public, x = sampled(module.MambaBlock(config), 0.3), inputs(UNITS)
    core = make_core("mamba", UNITS, UNITS, ssm_size=4, dt_rank=2)
    weights = rows("uz", W=public.in_proj.weight)
    read = public.x_proj.weight.split([2, 4, 4])
    weights |= dict(zip(("W_r", "W_B", "W_C"), read, strict=True))
    weights |= {"W_t": public.dt_proj.weight, "b_t": public.dt_proj.bias}
    weights |= {"K": public.conv1d.weight, "b_K": public.conv1d.bias}
    fill(core, weights | {"a_log": public.A_log, "D": public.D, "W_o": public.out_proj.weight})
    return core(x)[0], by_batch(public, x)


def mamba2(module: Any) -> Pair:
    sizes = {"hidden_size": UNITS, "num_heads": 2, "head_dim": UNITS, "state_size": 4}
    config = module.Mamba2Config(num_hidden_layers=1, n_groups=1, chunk_size=4, **sizes)
    public, x = sampled(module.Mamba2Mixer(config, layer_idx=0)), inputs(UNITS)
    core = make_core("mamba2", UNITS, UNITS, ssm_size=4, head_size=UNITS)
    parts = public.in_proj.weight.split([2 * UNITS, 2 * UNITS, 4, 4, 2])
    weights = dict(zip(("W_z", "W_u", "W_B", "W_C", "W_t"), parts, strict=True))
    weights |= {"K": public.conv1d.weight, "b_K": public.conv1d.bias, "b_t": public.dt_bias}
    weights |= {"a_log": public.A_log, "D": public.D, "g": public.norm.weight}
    fill(core, weights | {"W_o": public.out_proj.weight})
    return core(x)[0], by_batch(public, x)


class WithoutTanh(nn.Module):
    """Undoes, in advance, the tanh of keys and written words.

    Args:
        undone: which numbers of the interface these are.
    """

    def __init__(self, undone: Tensor) -> None:
        super().__init__()
        self.undone = undone

    def forward(self, interface: Tensor) -> Tensor:
        return torch.where(self.undone, torch.atanh(interface), interface)


def dnc(module: Any) -> Pair:
    slots, word, reads = 5, 8, 2
    shape = {"nr_cells": slots, "cell_size": word, "read_heads": reads}
    public = sampled(module.DNC(INPUTS, UNITS, num_hidden_layers=1, **shape))
    linear, controller = public.memories[0].interface_weights, public.rnns[0]
    size = linear.weight.abs().sum(1) + linear.bias.abs()
    linear.weight.div_(1.1 * size.unsqueeze(1))  # keeps the interface within [-1, 1]
    linear.bias.div_(1.1 * size)
    widths = {"read_keys": reads * word, "read_strengths": reads, "write_keys": word}
    widths |= {"write_strengths": 1, "erase_vectors": word, "write_vectors": word}
    widths |= {"free_gate": reads, "allocation_gate": 1, "write_gate": 1, "read_mode": 3 * reads}
    undone = [
        torch.full((width,), name.endswith("_keys") or name == "write_vectors")
        for name, width in widths.items()
    ]
    public.memories[0].interface_weights = nn.Sequential(linear, WithoutTanh(torch.cat(undone)))

    sizes = {"num_slots": slots, "word_size": word, "num_reads": reads}
    core = make_core("dnc", INPUTS, UNITS, output_size=INPUTS, **sizes)
    maps = {"W_x": controller.weight_ih_l0, "W_h": controller.weight_hh_l0}
    maps |= {"b": controller.bias_ih_l0, "b_h": controller.bias_hh_l0}
    weights = rows(("i", "f", "u", "o"), **maps)
    for kind, parameter in (("W", linear.weight), ("b", linear.bias)):
        parts = parameter.split([*widths.values()])
        weights |= {f"{kind}_{name}": part for name, part in zip(widths, parts, strict=True)}
    fill(core, weights | {"W_out": public.output.weight, "b_out": public.output.bias})

    x, usage, memory = inputs(), torch.rand(BATCH, slots), 2 * torch.randn(BATCH, slots, word)
    before = core.unpack(core.initial_state(BATCH))
    before |= {"usage": usage.unsqueeze(0), "memory": memory.unsqueeze(0)}
    hidden = public.memories[0].reset(BATCH) | {"usage_vector": usage, "memory": memory}
    zeros = torch.zeros(1, BATCH, UNITS)
    state = [(zeros, zeros)], hidden, torch.zeros(BATCH, reads * word)
    outputs = []
    for step in x:  # in a sequence it would not hand on what it read
        y, state = public(step.unsqueeze(1), state)
        outputs.append(y.squeeze(1))
    return core(x, core.pack(before))[0], torch.stack(outputs)


def slstm(module: Any) -> Pair:
    options = {"num_heads": 2, "conv1d_kernel_size": 0, "backend": "vanilla", "dtype": "float32"}
    public = sampled(module.sLSTMLayer(module.sLSTMLayerConfig(embedding_dim=UNITS, **options)))
    public.group_norm = nn.Identity()
    core, x = make_core("slstm", UNITS, UNITS, num_heads=2), inputs(UNITS)
    # What it calls fgate is the first of the maps, which its cell takes as the input gate.
    layers = {"i": public.fgate, "f": public.igate, "u": public.zgate, "o": public.ogate}
    weights = {f"W_x_{name}": torch.block_diag(*layer.weight) for name, layer in layers.items()}
    of_heads = public.slstm_cell._recurrent_kernel.chunk(4, dim=1)
    weights |= {f"W_h_{name}": part for name, part in zip(layers, of_heads, strict=True)}
    fill(core, weights | rows(tuple(layers), b=public.slstm_cell._bias))
    return core(x)[0], by_batch(public, x)


def mlstm(module: Any) -> Pair:
    backend = {"mode": "inference", "inference_state_dtype": "float64", "eps": 0.0}
    config = module.mLSTMLayerConfig(
        embedding_dim=UNITS,
        num_heads=2,
        use_bias=True,
        gate_soft_cap=None,
        mlstm_backend=module.mLSTMBackendConfig(**backend),
    )
    public, x = sampled(module.mLSTMLayer(config)), inputs(UNITS)
    public.multihead_norm = public.out_proj = nn.Identity()
    core = make_core("mlstm", UNITS, UNITS, num_heads=2, key_size=2)
    layers = {"q": public.q, "k": public.k, "v": public.v, "o": public.ogate_preact}
    layers |= {"i": public.igate_preact, "f": public.fgate_preact}
    weights = {f"W_{name}": layer.weight for name, layer in layers.items()}
    fill(core, weights | {f"b_{name}": layer.bias for name, layer in layers.items()})
    return core(x)[0], by_batch(public, x)


def fwp(module: Any) -> Pair:
    core, x = make_core("fwp", INPUTS, UNITS, num_heads=2, projections=2), inputs()
    cell = sampled(core).cells[0]
    q, k, v, beta, _ = cell.prepare(cell.project(x))
    q, k, v, beta = (part.transpose(0, 1) for part in (q * q.shape[-1] ** 0.5, k, v, beta))
    y, _ = module.torch_recurrent_gated_delta_rule(q, k, v, torch.zeros_like(beta), beta)
    return core(x)[0], y.transpose(0, 1).flatten(-2)


def deltanet(module: Any) -> Pair:
    heads, key, value = 2, 6, UNITS // 2
    sizes = {"linear_key_head_dim": key, "linear_value_head_dim": value}
    sizes |= {"linear_num_key_heads": heads, "linear_num_value_heads": heads}
    config = module.Qwen3NextConfig(
        hidden_size=UNITS,
        num_hidden_layers=1,
        linear_conv_kernel_dim=1,
        rms_norm_eps=1e-5 / key,
        **sizes,
    )
    public, x = sampled(module.Qwen3NextGatedDeltaNet(config, layer_idx=0)), 3 * inputs(UNITS)
    public.conv1d.weight.fill_(1)
    public.out_proj.weight.div_(4)
    core = make_core("deltanet", UNITS, UNITS, num_heads=heads, key_size=key)
    by_head = public.in_proj_qkvz.weight.unflatten(0, (heads, -1))
    parts = by_head.split([key, key, value, value], dim=1)
    weights = dict(zip(("W_q", "W_k", "W_v", "W_g"), parts, strict=True))
    beta, a = public.in_proj_ba.weight.unflatten(0, (heads, 2)).unbind(1)
    weights |= {"W_beta": beta, "W_a": a, "A": public.A_log, "b_a": public.dt_bias}
    fill(core, weights | {"gain": public.norm.weight, "W_o": public.out_proj.weight})
    return core(x)[0], by_batch(public, x)


def rwkv7(module: Any) -> Pair:
    heads, rank = 2, 3
    ranks = {"decay_low_rank_dim": rank, "a_low_rank_dim": rank, "gate_low_rank_dim": 2 * rank}
    config = module.RWKV7Config(
        hidden_size=UNITS,
        num_heads=heads,
        head_dim=UNITS // heads,
        num_hidden_layers=1,
        norm_eps=64e-5 / (UNITS // heads),
        **ranks,
    )
    public, x = sampled(module.RWKV7TimeMix(config, layer_idx=0), 0.3), inputs(UNITS)
    core = make_core("rwkv7", UNITS, UNITS, num_heads=heads, rank=rank)
    mu = torch.stack([getattr(public, f"x_{name}").flatten() for name in "rwkvag"])
    weights = {"mu": mu, "k_k": public.k_k, "k_a": public.k_a, "r_k": public.r_k}
    weights |= {f"W_{name}": getattr(public, f"{name}_proj").weight for name in "rkvo"}
    for name in "wag":
        first, _, second = getattr(public, f"{name}_lora").lora
        weights |= {f"W_{name}1": first.weight, f"W_{name}2": second.weight}
        if name != "g":
            weights[f"{name}_0"] = second.bias
    fill(core, weights | {"gain": public.g_norm.weight, "bias": public.g_norm.bias})
    memory = torch.zeros(BATCH, heads, UNITS // heads, UNITS // heads)
    is_step = torch.ones(BATCH, STEPS, dtype=torch.bool)
    first_value = torch.zeros(BATCH, STEPS, UNITS)
    others = memory, torch.zeros(BATCH, UNITS), first_value, is_step
    return core(x)[0], by_batch(public, x, *others)


def transformer(module: Any) -> Pair:
    window = 4
    public = sampled(module.TransformerEncoderLayer(UNITS, 2, 12, dropout=0.0, norm_first=True))
    attention, x = public.self_attn, inputs(UNITS)
    attention.in_proj_bias.zero_()
    options = {"window": window, "num_heads": 2, "mlp_size": 12}
    core = make_core("transformer", UNITS, UNITS, **options)
    weights = {"embed.weight": torch.eye(UNITS), "query_key_value.weight": attention.in_proj_weight}
    layers = {"norm_1": public.norm1, "norm_2": public.norm2, "out": attention.out_proj}
    layers |= {"inner": public.linear1, "outer": public.linear2}
    fill(core, weights | of_layers(layers))
    steps = torch.arange(STEPS)
    age = steps.unsqueeze(1) - steps
    return core(x)[0], public(x, (age < 0) | (age >= window))


def of_layers(layers: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights and biases of these layers, with the names of the layers in front."""
    return {
        f"{name}.{kind}": parameter
        for name, layer in layers.items()
        for kind, parameter in layer.named_parameters()
    }


def gtrxl(module: Any) -> Pair:
    heads, x = 2, inputs(UNITS)
    sizes = {"head_dim": UNITS // heads, "head_num": heads, "layer_num": 1, "memory_len": 0}
    public = module.GTrXL(UNITS, embedding_dim=UNITS, use_embedding_layer=False, **sizes)
    layer = sampled(public).layers[0]
    attention = layer.attention
    (query,), (both,), (out,) = attention.attention_q, attention.attention_kv, attention.project
    (position,) = attention.project_pos
    for linear in (query, both, position):
        linear.bias.zero_()
    attention.attention_q = nn.Sequential(layer.layernorm1, query)
    core = make_core("gtrxl", UNITS, UNITS, window=STEPS, num_heads=heads, mlp_size=UNITS)
    inner, outer = (part[0] for part in layer.mlp if isinstance(part, nn.Sequential))
    layers = {"norm_1": layer.layernorm1, "norm_2": layer.layernorm2, "out": out}
    weights = of_layers(layers | {"inner": inner, "outer": outer})
    weights |= {"embed.weight": torch.eye(UNITS), "u": public.u, "w": public.v}
    weights["query_key_value.weight"] = torch.cat([query.weight, both.weight])
    # Its sines stand before its cosines, those of the core in turn.
    of_sines, of_cosines = position.weight.chunk(2, dim=1)
    weights["position.weight"] = torch.stack([of_sines, of_cosines], dim=-1)
    for number, gate in ((1, layer.gate1), (2, layer.gate2)):
        for name, kind in (("gate", "W"), ("carry", "U")):
            maps = [getattr(gate, f"{kind}{letter}").weight for letter in "rzg"]
            weights[f"{name}_{number}.weight"] = torch.cat(maps)
        weights[f"shift_{number}"] = gate.bg
    fill(core, weights)
    public.reset_memory(BATCH)
    return core(x)[0], public(x)["logit"]


def frame_conv(module: Any) -> Pair:
    window = 4
    public, x = sampled(module.Conv1d(INPUTS, UNITS, window)), inputs()
    core = make_core("frame_conv", INPUTS, UNITS, window=window)
    fill(core, {"weight": public.weight.flip(-1).permute(2, 0, 1), "bias": public.bias})
    padded = nn.functional.pad(x.permute(1, 2, 0), (window - 1, 0))
    return core(x)[0], public(padded).permute(2, 0, 1)


def positional(module: Any) -> Pair:
    core, x = sampled(make_core("positional", INPUTS, UNITS)), inputs()
    cell = core.cells[0]
    position = module.positional_encoding(10_000, UNITS)[:STEPS].unsqueeze(1)
    theirs = nn.functional.linear(x, cell.weight, cell.bias)
    return core(x)[0], torch.tanh(theirs + nn.functional.linear(position, cell.weight_p))


SINGLE = torch.float32
POPGYM, RECURRENT = "popgym.baselines.models", "torchrecurrent"
QWEN = "transformers.models.qwen3_next.modeling_qwen3_next"
CHECKS: dict[str, Check] = {
    "lstm": Check("torch", "torch.nn", of_torch("lstm", "LSTM")),
    "gru": Check("torch", "torch.nn", of_torch("gru", "GRU")),
    "elman": Check("torch", "torch.nn", of_torch("elman", "RNN")),
    "indrnn": Check("popgym", f"{POPGYM}.indrnn", indrnn, note="two layers"),
    "dilated_gru": Check("esrnn", "ESRNN.utils.DRNN", dilated_gru),
    "janet": Check(RECURRENT, RECURRENT, janet),
    "gilr": Check(RECURRENT, RECURRENT, gilr, note="LightRU, its recurrent weights zero"),
    "cornn": Check(RECURRENT, RECURRENT, cornn),
    "lem": Check(
        *(RECURRENT, RECURRENT, lem),
        note="y' from a second call, with z': its own reads the z of the step before",
    ),
    "lmu": Check("popgym", f"{POPGYM}.lmu", lmu, note="its A and B not rounded to float32"),
    "mogrifier": Check(
        *("mogrifier", "mogrifier", mogrifier),
        note="its rounds, which share their matrices, before torch.nn.LSTMCell; cap_input=False",
    ),
    "mingru": Check("minGRU-pytorch", "minGRU_pytorch.minGRU", mingru, note="without biases"),
    "minlstm": Check("minGRU-pytorch", "minGRU_pytorch.minLSTM", minlstm, note="without biases"),
    "lru": Check("LRU-pytorch", "LRU_pytorch", lru),
    "rtu": Check(
        *("LRU-pytorch", "LRU_pytorch", rtu),
        note="an LRU with C = (1, -i), D = 0 and the gamma of the RTU, behind it a ReLU",
    ),
    "linear_transformer": Check("popgym", f"{POPGYM}.linear_attention", linear_transformer),
    "s4d": Check(
        "popgym", f"{POPGYM}.s4d", s4d, note="C times its B; the input map of the core is 1"
    ),
    "s5": Check(
        *("s5-pytorch", "s5", s5),
        note="the system alone, D diagonal; C halved, since it adds no conjugates",
    ),
    "mamba": Check("mambapy", "mambapy.mamba", mamba, SINGLE),
    "mamba2": Check("transformers", "transformers.models.mamba2.modeling_mamba2", mamba2, SINGLE),
    "dnc": Check(
        *("dnc", "dnc", dnc, SINGLE),
        note="step by step, since in a sequence it does not hand on what it read; the tanh of its "
        "keys and written words undone; from a full memory and a usage without ties; its norms "
        "have no 1e-6",
    ),
    "slstm": Check(
        "xlstm", "xlstm", slstm, SINGLE, "without its group norm; input maps within heads"
    ),
    "mlstm": Check(
        *("xlstm", "xlstm.xlstm_large.model", mlstm),
        note="without its norm, output map and soft cap of the gates, its eps 0",
    ),
    "fwp": Check(
        *("transformers", QWEN, fwp, SINGLE),
        note="the delta rule alone, on the features of the core",
    ),
    "deltanet": Check(
        *("transformers", QWEN, deltanet, SINGLE),
        note="its convolution 1, its eps divided as its queries are; its keys have an eps of 1e-6",
    ),
    "rwkv7": Check("rwkv7-hf", "rwkv7_hf", rwkv7, SINGLE, "eps of its norm 64e-5"),
    "transformer": Check(
        "torch", "torch.nn", transformer, note="positions of the core zero; no biases of q, k, v"
    ),
    "gtrxl": Check(
        *("DI-engine", "ding.torch_utils.network.gtrxl", gtrxl),
        note="no embedding, no biases of q, k, v; its query too behind the layer norm; no memory "
        "from before the start, which it would attend to",
    ),
    "frame_conv": Check("torch", "torch.nn", frame_conv),
    "positional": Check(
        *("popgym", f"{POPGYM}.embeddings", positional, SINGLE),
        note="its encoding of 10,000 positions alone, before a linear map and tanh",
    ),
}
"""By the name of the core."""


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.parametrize("core", CHECKS)
def test_a_core_equals_a_public_implementation(core: str) -> None:
    assert core in CORES
    check = CHECKS[core]
    module = pytest.importorskip(check.module, exc_type=ImportError)
    with default_dtype(check.dtype), torch.no_grad():
        torch.manual_seed(SEED)
        ours, theirs = check.run(module)
    assert ours.dtype == check.dtype
    assert ours.shape == theirs.shape
    assert len(ours) == STEPS
    assert theirs[-1].abs().max() > LARGE, "which would say little"
    largest = float((ours - theirs).abs().max())
    version, dtype = metadata.version(check.package), str(check.dtype).removeprefix("torch.")
    PARITY[core] = Difference(core, check.package, version, dtype, largest, check.note)
    assert largest < BOUNDS[check.dtype]
