"""device= and dtype= of cores, cells and modules, as torch.nn has them."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from support.cases import HIDDEN, INPUTS, small
from torch import Tensor
from torch.nn.utils import skip_init

from rlgates import Gate, list_cores, make_core
from rlgates.nn import LSTM, Recurrent
from rlgates.registry import CORES, core_names


def arguments(core: str) -> dict[str, Any]:
    """Those of the constructor of its cell."""
    row = CORES[core]
    tied = None if core == "slstm" else True  # which refuses it
    gate = {"gate": Gate(row.plain, HIDDEN, tied=tied)} if row.gates else {}
    return {**gate, **small(core)}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def parameters(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in module.parameters()]


@pytest.mark.parametrize("name", list_cores())
def test_initial_values_are_sampled_in_float64(name: str) -> None:
    core_name, _ = core_names()[name]
    options = small(core_name)
    core = make_core(name, INPUTS, HIDDEN, 2, dtype=torch.float64, generator=generator(), **options)
    again = make_core(name, INPUTS, HIDDEN, 2, generator=generator(), **options).double()
    again.reset_parameters(generator())
    for parameter, other in zip(parameters(core), parameters(again), strict=True):
        assert parameter.dtype == torch.float64
        assert torch.equal(parameter, other)
        halves = 2 * parameter
        constant = (halves == halves.round()).all()  # zeros, halves and ones
        assert constant or (parameter != parameter.float().double()).any()


@pytest.mark.parametrize("name", list_cores())
def test_a_core_on_the_meta_device_has_shapes_alone(name: str) -> None:
    options = small(core_names()[name][0])
    before = torch.random.get_rng_state()
    empty = make_core(name, INPUTS, HIDDEN, 2, device="meta", learned_state=True, **options)
    assert torch.equal(torch.random.get_rng_state(), before)
    core = make_core(name, INPUTS, HIDDEN, 2, learned_state=True, **options)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert [p.shape for p in empty.parameters()] == [p.shape for p in core.parameters()]
    filled = empty.to_empty(device="cpu")
    for buffer in filled.buffers():
        buffer.fill_(torch.nan)
    filled.reset_parameters(generator())
    core.reset_parameters(generator())
    for parameter, other in zip(parameters(filled), parameters(core), strict=True):
        assert torch.equal(parameter, other)
    for buffer, other in zip(filled.buffers(), core.buffers(), strict=True):
        assert torch.equal(buffer, other)


@pytest.mark.parametrize("name", CORES)
def test_buffers_have_the_dtype_of_the_parameters(name: str) -> None:
    """Not all devices have float64."""
    core = make_core(name, INPUTS, HIDDEN, **small(name))
    assert {buffer.dtype for buffer in core.buffers()} <= {torch.float32}


def test_what_an_lmu_computes_is_exact_after_a_conversion() -> None:
    expected = make_core("lmu", INPUTS, HIDDEN, dtype=torch.float64)
    core = make_core("lmu", INPUTS, HIDDEN)
    assert core.state_dict().keys() == dict(core.named_parameters()).keys()
    for converted in (core.double(), core.float().double(), core.to("meta").to_empty(device="cpu")):
        for buffer, other in zip(converted.buffers(), expected.buffers(), strict=True):
            assert torch.equal(buffer, other)


@pytest.mark.parametrize("core", CORES)
def test_another_default_device_changes_only_where_a_core_is_made(core: str) -> None:
    """Here that of tensors without values, which cannot come from there to the CPU."""
    make = partial(make_core, core, INPUTS, HIDDEN, generator=generator(), **small(core))
    expected = make()
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in make().parameters())
        made = make(device="cpu", generator=generator(), learned_state=True)
        made.reset_parameters(generator())
    for name, parameter in expected.named_parameters():
        assert torch.equal(made.get_parameter(name), parameter)


@pytest.mark.parametrize("core", CORES)
def test_cells_have_the_factory_arguments_of_torch(core: str) -> None:
    cell = CORES[core].cell
    given = arguments(core)
    assert list(inspect.signature(cell).parameters)[-2:] == ["device", "dtype"]
    made = cell(INPUTS, HIDDEN, **given, dtype=torch.float64)
    assert {parameter.dtype for parameter in parameters(made)} == {torch.float64}
    assert "dtype" not in cell.options
    assert "dtype" not in repr(made)
    empty = cell(INPUTS, HIDDEN, **given, device="meta")
    assert all(parameter.is_meta for parameter in empty.parameters())
    unset = skip_init(cell, INPUTS, HIDDEN, **given)
    assert not any(parameter.is_meta for parameter in unset.parameters())
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(ValueError, match=r"dtype must be torch\.float32 or torch\.float64"):
            cell(INPUTS, HIDDEN, **given, dtype=dtype)
        with pytest.raises(ValueError, match=r"dtype must be torch\.float32 or torch\.float64"):
            make_core(core, INPUTS, HIDDEN, dtype=dtype)


def test_modules_have_them_too() -> None:
    for module in (
        LSTM(3, 4, 2, gate="ur", dtype=torch.float64, bidirectional=True),
        Recurrent("lru", 3, 4, dtype=torch.float64),
    ):
        values = torch.cat([parameter.flatten() for parameter in parameters(module)])
        assert values.dtype == torch.float64
        assert (values != values.float().double()).any()
    assert all(parameter.is_meta for parameter in LSTM(3, 4, device="meta").parameters())


@pytest.mark.parametrize(
    ("core", "sizes", "options", "message"),
    [
        ("lstm", (3, 4, 2**40), {}, "num_layers must be at most 1,000, got 1099511627776"),
        ("lstm", (3, 2**40), {}, "hidden_size must be at most 16,777,216"),
        ("lstm", (2**70, 4), {}, "input_size must be at most 16,777,216"),
        ("mogrifier", (3, 4), {"rounds": 10**7}, "rounds must be at most 1,000, got 10000000"),
        ("rmc", (3, 4), {"num_blocks": 10**7}, "num_blocks must be at most 1,000"),
        ("rmc", (3, 4), {"mlp_layers": 10**7}, "mlp_layers must be at most 1,000"),
        ("rru", (3, 4), {"relu_layers": 10**7}, "relu_layers must be at most 1,000"),
        ("gato", (3, 4), {"depth": 10**7}, "depth must be at most 1,000"),
    ],
)
def test_sizes_that_no_memory_holds_are_refused_at_once(
    core: str, sizes: tuple[int, ...], options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_core(core, *sizes, **options)
