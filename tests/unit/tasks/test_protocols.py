"""The papers' protocols: their names, and that each can be run, at least at a small size."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from rlgates.experiments.configs.protocols import as_published, describe_protocol
from rlgates.experiments.configs.published import PROTOCOLS, protocols_for
from rlgates.experiments.configs.published.zakovskis2023 import ablation_result
from rlgates.experiments.configs.task import TaskConfig, build_model
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.runs.network.runner import published_figures
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.tasks import make_task

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
        protocol.count_core_parameters,
    ):
        assert set(table) <= set(protocol.cores)
    for core in protocol.cores:
        assert all(0 < rate < 0.1 for rate in protocol.learning_rates_for(core))
        assert all(0 <= rate < 1 for rate in protocol.dropouts_for(core))
        full = task_config(protocol.task, "full", core, name)
        with torch.device("meta"):
            model = build_model(full, make_task(full.task, **full.task_settings))
        expected = protocol.num_parameters(core)
        if expected is not None:
            count = sum(parameter.numel() for parameter in model.parameters())
            assert 0.8 * expected < count <= expected
        elif protocol.hidden_size is not None:
            assert full.hidden_size == protocol.hidden_size
        assert (full.batch_size, full.updates, full.epochs) == tuple(
            protocol.unstated.get(setting, getattr(protocol, setting))
            for setting in ("batch_size", "updates", "epochs")
        ), "no laptop setting replaces one that is not stated"
        smoke = task_config(protocol.task, "smoke", core, name)
        smoke.check()
        assert (smoke.hidden_size, smoke.updates, smoke.epochs) == (8, 4, None)
        assert smoke.optimizer == full.optimizer


def test_the_complete_cell_of_an_ablation_has_its_dropout() -> None:
    arms = STUDIES["rru_ablation"].arms("full")
    for title in {arm.config.title for arm in arms}:
        here = [arm.of("rru") for arm in arms if arm.config.title == title]
        assert len(here) == 6
        assert len({config.core_options["dropout"] for config in here}) == 1, title


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if "-gato" in name])
def test_gato_is_compared_with_the_biases_of_torch(name: str) -> None:
    protocol = PROTOCOLS[name]
    for core in {"lstm", "gru"} & {*protocol.cores}:
        config = as_published(TaskConfig(task=protocol.task, core=core), protocol)
        assert config.core_options["forget_bias"] == 0
    if protocol.task in ("adding", "copy_aba"):
        assert as_published(TaskConfig(task=protocol.task), protocol).eval_sequences == 1000


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("copy_aba", {"delay": 20}),
        ("speech_commands", {"subset": True}),
        ("speech_commands", {"official": True}),
        ("text8", {"prefix": True}),
        ("imdb", {"length": 50}),
        ("nottingham", {"whole": True}),
    ],
)
def test_published_figures_are_of_the_published_settings(
    task: str, settings: dict[str, Any]
) -> None:
    assert make_task(task).published
    assert make_task(task, **settings).published == ()


def test_other_cores_get_the_settings_of_the_papers_lstm() -> None:
    lstm, other = (task_config("jsb", "full", core) for core in ("lstm", "r_lstm"))
    assert other.core_options == lstm.core_options
    assert (other.learning_rate, other.epochs) == (0.01, 1000)
    assert describe_protocol("jsb", None, "lstm") == [
        "protocol jsb-rru (Zakovskis et al. 2023, table 1, appendix D.2)",
        "  not stated in the paper, and assumed: epochs=1000 max_grad_norm=1.0",
    ]
    assert describe_protocol("jsb", None, "r_lstm")[-1].endswith(
        "no r_lstm: its settings are those of lstm"
    )
    assert "solve it" in describe_protocol("copy", "copy-gu", "lstm")[1]


def test_forgetting_starts_with_saturated_forget_gates() -> None:
    for tier in ("smoke", "laptop", "full"):
        assert task_config("forgetting", tier).core == "r_lstm"
        for core in ("lstm", "f_lstm", "gru"):
            assert task_config("forgetting", tier, core).core_options["forget_bias"] >= 4
    with pytest.raises(ValueError, match="an option that 'ur_lstm' does not have; lstm, r_lstm"):
        task_config("forgetting", core="ur_lstm")


def test_rows_are_permuted_where_the_paper_did() -> None:
    assert PROTOCOLS["pmnist-rru"].task_settings == {"permutation": "rows"}
    rows, bits = (make_task("pmnist", permutation=p) for p in ("rows", "bit_reversal"))
    assert {row.value for row in rows.published} == {0.9767, 0.9868, 0.9739, 0.9781}
    assert not {row.source for row in rows.published} & {row.source for row in bits.published}


def test_protocols_are_plain_and_fixed() -> None:
    protocol = PROTOCOLS["forgetting-gu"]
    assert protocol.options("r_lstm") == {"forget_bias": 6.0}
    assert task_config("forgetting", "smoke", "r_lstm").core_options == {"forget_bias": 6.0}
    assert protocol.learning_rates_for("lstm") == (1e-4,)
    assert PROTOCOLS["scifar-gu"].learning_rates_for("ur_gru") == (2e-4, 5e-4)
    assert PROTOCOLS["scifar-gu"].learning_rates_for("ur_lstm") == (2e-4, 5e-4, 1e-3, 2e-3)
    assert PROTOCOLS["jsb-rru"].dropouts_for("gru") == (0.67605,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        protocol.hidden_size = 3  # type: ignore[misc]


def test_dropout_goes_where_the_paper_has_it() -> None:
    for core, option in (("rru", "dropout"), ("lstm", "recurrent_dropout")):
        config = task_config("nottingham", "full", core)
        (rate,) = PROTOCOLS["nottingham-rru"].dropouts_for(core)
        assert config.core_options[option] == rate
        assert config.input_dropout == config.output_dropout == 0.0
    without = task_config("nottingham", "full", "none", "nottingham-rru-heat-1M")
    assert without.output_dropout == 0.5, "a core without dropout of its own"
    wikitext = task_config("wikitext103", "full", "ur_lstm")
    assert (wikitext.input_dropout, wikitext.output_dropout, wikitext.tied) == (0.3, 0.0, True)
    zoneout = task_config("smnist", "full", "ur_lstm", "smnist-gu-large-zoneout")
    assert (zoneout.output_dropout, zoneout.core_options["zoneout_cell"]) == (0.5, 0.5)


def test_an_ablation_has_its_own_published_figure() -> None:
    whole, changed = {"dropout": 0.3}, {"scalar_z": True, "dropout": 0.3}
    assert ablation_result("nottingham", whole) is None
    assert ablation_result("nottingham", changed) == (2.97,)
    assert ablation_result("imdb", {"fixed_decay": True}) == (0.8678,)
    assert ablation_result("jsb", changed) == ()
    task = dataclasses.replace(task_config("nottingham"), core="rru")
    assert published_figures(task) == "2.92"
    fixed = dataclasses.replace(task, core_options={"fixed_decay": True})
    assert published_figures(fixed) == "3.56"
