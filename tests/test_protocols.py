"""The papers' protocols: their names, and that each can be run, if only in the small."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlgates.experiments.supervised_check import build, check
from rlgates.experiments.supervised_tiers import task_config
from rlgates.tasks import make_task
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
    """Each of its cores, at full size (without memory for it), and so small that it runs."""
    protocol = PROTOCOLS[name]
    assert set(protocol.core_options) <= set(protocol.cores)
    for table in (
        protocol.core_learning_rates,
        protocol.core_dropout,
        protocol.core_parameters,
    ):
        assert set(table) <= set(protocol.cores)
    for core in protocol.cores:
        assert all(0 < rate < 0.1 for rate in protocol.rates(core))
        assert all(0 <= rate < 1 for rate in protocol.dropouts(core))
        full = task_config(protocol.task, "full", core, name)
        with torch.device("meta"):
            reader = build(full, make_task(full.task, **full.task_settings))
        expected = protocol.core_parameters.get(core, protocol.parameters)
        if expected is not None:
            count = sum(parameter.numel() for parameter in reader.parameters())
            assert 0.8 * expected < count <= expected
        elif protocol.hidden_size is not None:
            assert full.hidden_size == protocol.hidden_size
        smoke = task_config(protocol.task, "smoke", core, name)
        check(smoke)
        assert (smoke.hidden_size, smoke.updates, smoke.epochs) == (8, 4, None)
        assert smoke.optimizer == full.optimizer


def test_protocols_are_plain_and_fixed() -> None:
    protocol = PROTOCOLS["forgetting-gu"]
    assert protocol.options("r_lstm") == {"forget_bias": 6.0}
    assert task_config("forgetting", "smoke", "r_lstm").core_options == {"forget_bias": 6.0}
    assert protocol.rates("lstm") == (1e-4,)
    assert PROTOCOLS["pmnist-gu"].rates("ur_gru") == (2e-4, 5e-4)
    assert PROTOCOLS["pmnist-gu"].rates("ur_lstm") == (2e-4, 5e-4, 1e-3, 2e-3)
    assert PROTOCOLS["jsb-rru"].dropouts("gru") == (0.67605,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        protocol.hidden_size = 3  # type: ignore[misc]


def test_dropout_goes_where_the_paper_has_it() -> None:
    for core, option in (("rru", "dropout"), ("lstm", "recurrent_dropout")):
        config = task_config("nottingham", "full", core)
        (rate,) = PROTOCOLS["nottingham-rru"].dropouts(core)
        assert config.core_options[option] == rate
        assert config.input_dropout == config.output_dropout == 0.0
    without = task_config("nottingham", "full", "none", "nottingham-rru-heat-1M")
    assert without.output_dropout == 0.5, "a core without dropout of its own"
    wikitext = task_config("wikitext103", "full", "ur_lstm")
    assert (wikitext.input_dropout, wikitext.output_dropout, wikitext.tied) == (0.3, 0.0, True)
    zoneout = task_config("smnist", "full", "ur_lstm", "smnist-gu-large-zoneout")
    assert (zoneout.output_dropout, zoneout.core_options["zoneout_cell"]) == (0.5, 0.5)
