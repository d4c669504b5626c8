"""The papers' protocols: their names, and that each can be run, if only in the small."""

from __future__ import annotations

import dataclasses

import pytest

from rlgates import make_core
from rlgates.cores import check_options
from rlgates.tasks import TASKS, make_task
from rlgates.tasks.protocols import PROTOCOLS, protocols_for

# Every row of the tables of the papers' tasks; some have data to be read.
ROWS = {
    *("copy", "copy_aba", "adding", "forgetting", "lte_addition", "lte_control", "lte_program"),
    *("smnist", "pmnist", "scifar", "ptb_words", "ptb_chars", "wikitext103", "enwik8", "text8"),
    *("jsb", "nottingham", "musedata", "piano", "imdb", "speech_commands", "icu"),
}


def test_every_task_has_a_protocol() -> None:
    assert {protocol.task for protocol in PROTOCOLS.values()} == ROWS
    for name, protocol in PROTOCOLS.items():
        assert name.startswith(f"{protocol.task}-")
        assert protocol in protocols_for(protocol.task).values()
    with pytest.raises(ValueError, match="Did you mean 'copy'"):
        protocols_for("coppy")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_can_be_run(name: str) -> None:
    protocol, smoke = PROTOCOLS[name], PROTOCOLS[name].smoke()
    assert set(protocol.core_options) <= set(protocol.cores)
    for table in (
        protocol.core_learning_rates,
        protocol.core_dropout,
        protocol.core_parameters,
    ):
        assert set(table) <= set(protocol.cores)
    for core in protocol.cores:
        check_options(core, protocol.options(core))
        made = make_core(core, 3, smoke.hidden_size or 0, **smoke.options(core))
        assert sum(parameter.numel() for parameter in made.parameters()) < 20_000
        assert all(0 < rate < 0.1 for rate in protocol.rates(core))
        assert all(0 <= rate < 1 for rate in protocol.dropouts(core))
    assert protocol.optimizer in ("adam", "radam", "rmsprop")
    assert smoke.learning_rates
    assert smoke.updates == smoke.batch_size == 2
    if protocol.task in TASKS:
        make_task(protocol.task, **protocol.settings)
        make_task(protocol.task, **smoke.settings)


def test_protocols_are_plain_and_fixed() -> None:
    protocol = PROTOCOLS["forgetting-gu"]
    assert protocol.options("r_lstm") == {"forget_bias": 6.0}
    assert protocol.smoke().options("r_lstm") == {"forget_bias": 6.0}
    assert protocol.rates("lstm") == (1e-4,)
    assert PROTOCOLS["pmnist-gu"].rates("ur_gru") == (2e-4, 5e-4)
    assert PROTOCOLS["pmnist-gu"].rates("ur_lstm") == (2e-4, 5e-4, 1e-3, 2e-3)
    assert PROTOCOLS["jsb-rru"].dropouts("gru") == (0.67605,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        protocol.hidden_size = 3  # type: ignore[misc]
