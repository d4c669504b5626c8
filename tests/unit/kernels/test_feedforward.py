"""The core without memory in native code: it has no state, which the tests of layers look at."""

from __future__ import annotations

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    check_threads,
    random_sequence,
    run_with_gradients,
    seeded_core,
)
from support.native import needs_native

pytestmark = needs_native


@pytest.mark.usefixtures("instructions")
def test_equals_the_loop() -> None:
    for units, layers, rows, steps in [(1, 1, 1, 1), (17, 2, 3, 7), (64, 1, 33, 70), (5, 1, 0, 2)]:
        core = seeded_core("none", units, layers)
        x, state, starts = random_sequence(core, rows, steps)
        check_against_loop(core, x, state, starts)
        check_against_loop(core, x, state, None)


@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads() -> None:
    core = seeded_core("none", 64)
    x, state, _ = random_sequence(core, 33, 70)
    check_threads(core, x, state, None)


def test_nan_stays_in_its_step() -> None:
    core = seeded_core("none", 17)
    x, state, _ = random_sequence(core, 3, 7)
    clean = core(x, state)[0]
    x[4, 1] = torch.nan
    outputs, _ = core(x, state)
    assert outputs[4, 1].isnan().all()
    others = torch.ones(7, 3, dtype=torch.bool)
    others[4, 1] = False
    assert torch.equal(outputs[others], clean[others])


def test_a_compiled_core_keeps_the_kernel() -> None:
    torch.compiler.reset()
    core = seeded_core("none", 6, 2)
    sequence = random_sequence(core, 3, 40)
    expected = run_with_gradients(core, *sequence)
    core.backend_used = None
    core.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run_with_gradients(core, *sequence), expected)
    assert core.backend_used == "native"
