"""Options of every core: skip connections, learned initial states, debug checks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from support.cases import HIDDEN, INPUTS, build, every_core, every_family, small
from support.equivalence import (
    assert_close,
    inputs_and_state,
    run_in_pieces,
    seeded,
    typical_episode_starts,
)
from torch import nn

from rlgates import Core, make_core


@every_family
def test_skip_connections_read_the_input_and_give_all_outputs(name: str) -> None:
    core = build(name, 3, skip_connections=True, dtype=torch.float64)
    x, state = inputs_and_state(core)
    outputs, final = core(x, state, typical_episode_starts())
    widths = [cell.output_size for cell in core.cells]
    assert core.output_size == sum(widths) == outputs.shape[-1]
    below = x
    for cell, part, before, after in zip(
        core.cells,
        outputs.split(widths, dim=-1),
        state.chunk(3, dim=-1),
        final.chunk(3, dim=-1),
        strict=True,
    ):
        alone = Core([cell])
        expected, last = alone(below, before.contiguous(), typical_episode_starts())
        assert_close(part, expected)
        assert_close(after, last)
        below = torch.cat([x, part], dim=-1)


@every_core
def test_a_learned_state_is_initialised_to_the_initial_state(name: str) -> None:
    learned = make_core(
        name, INPUTS, HIDDEN, 2, generator=seeded(0), learned_state=True, **small(name)
    )
    plain = make_core(name, INPUTS, HIDDEN, 2, generator=seeded(0), **small(name))
    assert torch.equal(learned.initial_state(3), plain.initial_state(3))
    assert set(dict(plain.named_parameters())) <= set(dict(learned.named_parameters()))
    learned.eval()
    plain.eval()
    x, state = inputs_and_state(plain)
    arguments = (x, state, typical_episode_starts())
    for one, other in zip(learned(*arguments), plain(*arguments), strict=True):
        assert_close(one, other)
    loaded = make_core(name, INPUTS, HIDDEN, 2, learned_state=True, **small(name))
    loaded.load_state_dict(learned.state_dict())
    assert torch.equal(loaded.initial_state(1), learned.initial_state(1))


@every_family
def test_a_learned_state_learns_from_episode_starts(name: str) -> None:
    core = build(name, 2, learned_state=True)  # moved away from the core's own start
    if name == "none" or core.cells[0].learnable == ():
        assert core.learned is None
        return
    x, state = inputs_and_state(core)
    expected = run_in_pieces(core, x, state, typical_episode_starts(), [2, 3])
    results = core(x, state, typical_episode_starts())
    for one, other in zip(results, expected, strict=True):
        assert_close(one, other)
    results[0].sum().backward()
    h = next(iter(core.learned.parameters()))
    assert h.grad is not None
    assert h.grad.any()
    core.zero_grad()
    core(x, state)[0].sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in core.learned.parameters())


@every_family
def test_a_learned_state_of_nothing_warns(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        core = build(name, learned_state=True)
    says_so = [warning for warning in caught if "learned_state does nothing" in str(warning)]
    assert bool(says_so) == (core.learned is None)


def test_parts_that_mean_something_are_not_learned() -> None:
    assert set(make_core("rma", 3, 4, learned_state=True, **small("rma")).learned) == {
        f"{part}_0" for part in ("h1", "c1", "h2", "c2")
    }


def test_a_state_that_is_not_learned_is_not_shown() -> None:
    assert "learned" not in repr(make_core("lstm", 3, 4))
    assert "h_0" in repr(make_core("lstm", 3, 4, learned_state=True))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_debug_finds_what_is_not_finite(name: str) -> None:
    core = make_core(name, 3, 4, debug=True)
    x = torch.randn(5, 2, 3)
    outputs, state = core(x)
    assert outputs.isfinite().all()
    wrong = x.clone()
    wrong[3, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="x must be finite, got 1 numbers that are not"):
        core(wrong)
    with pytest.raises(ValueError, match="state must be finite"):
        core(x, state.index_fill(1, torch.tensor([0]), torch.inf))
    fresh = torch.zeros(5, 2, dtype=torch.bool)
    fresh[0] = True
    core(x, torch.full_like(state, torch.nan), fresh)  # not read
    with torch.no_grad():
        next(core.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="outputs must be finite"):
        core(x)
    core.debug = False
    core(x)


@pytest.mark.parametrize("option", ["skip_connections", "learned_state", "debug"])
def test_flags_are_flags(option: str) -> None:
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 1"):
        make_core("lstm", 3, 4, **{option: 1})


def test_aliases_name_the_same_cores() -> None:
    assert make_core("on_lstm", 3, 4).name == "om_lstm"
    assert make_core("c_janet", 3, 4).name == "janet"
    assert isinstance(make_core("on_lstm", 3, 4), nn.Module)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("transformer", {"window": 200}),
        ("frame_conv", {"window": 200}),
        ("frame_stack", {"window": 200}),
        ("dilated_gru", {"levels": 3, "dilation": 20}),
        ("mamba2", {"head_size": 2}),
    ],
)
def test_sizes_may_be_small_integers_of_numpy(name: str, sizes: dict[str, int]) -> None:
    """Whose products would overflow."""
    of_numpy = {key: np.uint8(size) for key, size in sizes.items()}
    core = make_core(name, 3, 64, **of_numpy, generator=seeded())
    other = make_core(name, 3, 64, **sizes, generator=seeded())
    assert core.state_size == other.state_size
    assert repr(core) == repr(other)
    x = torch.ones(2, 1, 3)
    assert torch.equal(core(x)[0], other(x)[0])
