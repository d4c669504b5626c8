"""One call over a sequence equals calls over its pieces, with episode starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import (
    FAMILY_OF,
    FORGETFUL,
    LIGHT,
    SETTINGS,
    build,
    every_core,
    every_family,
    every_setting,
    of_settings,
    small,
)
from support.equivalence import (
    assert_close,
    inputs_and_state,
    random_inputs,
    run_in_pieces,
    seeded,
    typical_episode_starts,
)

from rlgates import make_core
from rlgates.registry import CORES


@every_core
@every_setting
def test_one_call_equals_a_call_a_step(name: str, setting: dict[str, Any]) -> None:
    core = build(name, num_layers=2, **setting)
    x, state = inputs_and_state(core)
    for begin, episode_starts in ((state, typical_episode_starts()), (None, None)):
        expected = run_in_pieces(core, x, begin, episode_starts, cuts=[1, 2, 3, 4, 5, 6])
        for one, other in zip(core(x, begin, episode_starts), expected, strict=True):
            assert_close(one, other)


@every_core
@of_settings(SETTINGS[::2])
def test_one_call_equals_calls_over_any_pieces(name: str, setting: dict[str, Any]) -> None:
    cores = {layers: build(name, layers, **setting) for layers in (1, 3)}

    @settings(max_examples=6, deadline=None, database=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        core = cores[data.draw(st.sampled_from(sorted(cores)))]
        steps, batch = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
        cuts = sorted(data.draw(st.sets(st.integers(1, steps - 1)))) if steps > 1 else []
        share = data.draw(st.sampled_from([0.0, 0.2, 0.8]))
        episode_starts = torch.rand(steps, batch, generator=seeded(steps)) < share
        x, state = inputs_and_state(core, steps, batch, seed=data.draw(st.integers(0, 9)))
        expected = run_in_pieces(core, x, state, episode_starts, cuts)
        for one, other in zip(core(x, state, episode_starts), expected, strict=True):
            assert_close(one, other)

    check()


# The least inputs and units, where these are not 1 and 2: below, they are refused.
LEAST = {"linear_transformer": (2, 2), "shm": (2, 2), "rwkv7": (1, 4)}


@every_family
def test_one_call_equals_a_call_a_step_at_any_size(name: str) -> None:
    @settings(max_examples=10, deadline=None, database=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        draw = data.draw
        least_inputs, least_units = LEAST.get(name, (1, 2))
        input_size = draw(st.integers(least_inputs, 9))
        hidden_size = 2 * draw(st.integers(least_units // 2, 8))
        gates = [n for n in LIGHT if CORES[FAMILY_OF[n]] == CORES[name]]
        core = make_core(
            draw(st.sampled_from(gates)),
            input_size,
            hidden_size,
            draw(st.integers(1, 2)),
            dtype=torch.float64,
            generator=seeded(draw(st.integers(0, 99))),
            skip_connections=draw(st.booleans()),
            learned_state=draw(st.booleans()),
            **small(name),
        ).eval()
        steps, batch = draw(st.integers(1, 9)), draw(st.integers(1, 4))
        episode_starts = torch.rand(steps, batch, generator=seeded(steps)) < 0.3
        x, state = inputs_and_state(core, steps, batch)
        expected = run_in_pieces(core, x, state, episode_starts, list(range(1, steps)))
        for one, other in zip(core(x, state, episode_starts), expected, strict=True):
            assert_close(one, other)

    check()


@every_core
@every_setting
def test_an_episode_start_equals_a_new_sequence(name: str, setting: dict[str, Any]) -> None:
    core = build(name, num_layers=2, **setting)
    x, state = inputs_and_state(core)
    outputs, final = core(x, state, typical_episode_starts())
    untouched, untouched_final = core(x, state)
    for row, start in ((0, 6), (1, 4)):  # the last start of the row
        fresh, fresh_final = core(x[start:, row : row + 1], core.initial_state(1))
        assert_close(outputs[start:, row : row + 1], fresh)
        assert_close(final[row : row + 1], fresh_final)
    assert_close(outputs[:3, 1], untouched[:3, 1])
    assert_close(outputs[:, 2], untouched[:, 2])
    assert_close(final[2], untouched_final[2])
    if core.state_size:  # else the starts make no difference
        assert not torch.allclose(outputs[0, 0], untouched[0, 0], atol=1e-4)
        assert not torch.allclose(outputs[3:5, 1], untouched[3:5, 1], atol=1e-4)


@every_core
def test_a_start_in_the_first_step_resets_the_state(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = inputs_and_state(core)
    episode_starts = torch.zeros(7, 3, dtype=torch.bool)
    episode_starts[0] = True
    expected = core(x, core.initial_state(3))
    for ignored in (state, torch.full_like(state, torch.nan)):
        for one, other in zip(core(x, ignored, episode_starts), expected, strict=True):
            assert torch.equal(one, other)


@every_core
def test_state_and_episode_starts_are_optional(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = inputs_and_state(core)
    never = torch.zeros(7, 3, dtype=torch.bool)
    pairs = [(core(x), core(x, core.initial_state(3))), (core(x, state), core(x, state, never))]
    for results, expected in pairs:
        for one, other in zip(results, expected, strict=True):
            assert torch.equal(one, other)


@every_core
def test_sequences_of_a_batch_are_independent(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = inputs_and_state(core)
    episode_starts = typical_episode_starts()
    outputs, final = core(x, state, episode_starts)
    for row in range(3):
        only = slice(row, row + 1)
        alone, alone_final = core(x[:, only], state[only], episode_starts[:, only])
        assert_close(outputs[:, only], alone)
        assert_close(final[only], alone_final)


@every_core
def test_an_empty_batch_gives_empty_results(name: str) -> None:
    core = build(name, num_layers=2)
    x, episode_starts = torch.zeros(4, 0, core.input_size), torch.zeros(4, 0, dtype=torch.bool)
    assert core.initial_state(0).shape == (0, core.state_size)
    outputs, final = core(x, core.initial_state(0), episode_starts)
    assert outputs.shape == (4, 0, core.output_size)
    assert final.shape == (0, core.state_size)


@every_core
def test_arguments_are_not_modified(name: str) -> None:
    core = build(name, num_layers=2)
    arguments = (*inputs_and_state(core), typical_episode_starts())
    copies = [tensor.clone() for tensor in arguments]
    core(*arguments)
    core.trace_gates(*arguments)
    for tensor, copy in zip(arguments, copies, strict=True):
        assert torch.equal(tensor, copy)


def test_the_core_without_memory_reads_only_the_current_step() -> None:
    core = build("none", num_layers=2)
    x, state = inputs_and_state(core)
    assert core.state_size == 0
    assert state.shape == (3, 0)
    assert core.unpack(state) == {}
    changed = x.clone()
    changed[3] += 1
    before, after = core(x)[0], core(changed)[0]
    differs = ((before - after).abs() > 1e-6).any(dim=-1)
    assert differs[3].all()
    assert not differs[[0, 1, 2, 4, 5, 6]].any()
    assert_close(core(x[[5]])[0], before[[5]])


@every_core
def test_every_other_core_remembers(name: str) -> None:
    core = build(name, num_layers=2)
    x, _ = inputs_and_state(core)
    changed = x.clone()
    changed[0, :, 0] += 1  # not all of them, which a layer norm of the input would take out
    late = (core(x)[0][1:] - core(changed)[0][1:]).abs().amax()
    assert (late > 1e-4) == (name not in FORGETFUL)


@every_family
@pytest.mark.parametrize("sizes", [(1, 8), (5, 1), (5, 2), (1, 1)], ids=str)
def test_a_core_that_could_not_remember_is_refused(name: str, sizes: tuple[int, int]) -> None:
    """The smallest sizes: what the first step reads reaches the outputs after the third."""
    for options in ({}, small(name)):
        try:
            core = make_core(name, *sizes, generator=seeded(2), **options).double().eval()
        except ValueError:
            continue
        with torch.no_grad():
            for parameter in core.parameters():  # most of them positive, so that no ReLU is closed
                parameter += 0.5 * torch.rand(parameter.shape, generator=seeded(0))
            x = random_inputs(core, 6, batch_size=30)
            changed = x.clone()
            changed[0] = 1 - x[0]
            late = (core(x)[0][3:] - core(changed)[0][3:]).abs().amax()
        assert (late > 1e-9) == (name not in FORGETFUL)
