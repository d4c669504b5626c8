"""Training on tasks in epochs: resume within one, carried state, masks, rates, early ends."""

from __future__ import annotations

import errno
import gc
import itertools
import json
import math
import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import stop_after
from support.toy_tasks import Parity, Text
from torch import Tensor

from rlgates.atomic import write_atomically
from rlgates.experiments.configs.identity import comparison, digest, identity
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.files import read_table
from rlgates.experiments.runs.folder import read_checkpoint
from rlgates.experiments.runs.jobs import Job, runner_for
from rlgates.experiments.runs.network.feed import Feed
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.runs.progress import Progress
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.tasks import TASKS, Batch, make_task

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "text", Text)
    monkeypatch.setitem(TASKS, "parity", Parity)


def config(folder: Path, task: str = "text", **changes: Any) -> TaskConfig:
    values: dict[str, Any] = {
        "task_settings": {},
        "core": "gru",
        "hidden_size": 4,
        "batch_size": 3,
        "updates": None,
        "epochs": 3,
        "eval_every": "epoch",
        "folder": str(folder),
    }
    return TaskConfig(task=task, **{**values, **changes})


def weights(run: TaskRun) -> list[Tensor]:
    return [parameter.detach() for parameter in run.network.parameters()]


def test_committed_rows_are_recognized() -> None:
    rows = read_table(ROOT / "experiments" / "results" / "all_cores.csv")
    digests = {row["title"].partition(",")[0]: row["config"] for row in rows}
    copy, adding = (arm.config for arm in STUDIES["all_cores"].laptop)
    assert digests == {"copy": digest(comparison(copy)), "adding": digest(comparison(adding))}
    assert digest(comparison(replace(copy, weight_decay=1e-6))) != digests["copy"]


@pytest.mark.parametrize(
    ("changes", "losses"),
    [
        ({}, (2.0678937, 2.0684304, 2.0678661, 2.0670581)),
        (
            {"core": "lstm", "core_options": {"zoneout_hidden": 0.2}},
            (2.0982244, 2.0995908, 2.0976596, 2.0945525),
        ),
        (
            {"task": "adding", "task_settings": {"steps": 5}, "core": "gru"},
            (2.4467657, 2.3280671, 2.2116573, 2.0971649),
        ),
    ],
)
def test_losses_are_those_that_there_have_always_been(
    changes: Any, losses: tuple[float, ...], tmp_path: Path
) -> None:
    tiny = TaskConfig(task_settings={"delay": 2}, hidden_size=8, folder=str(tmp_path))
    tiny = replace(tiny, updates=6, batch_size=4, eval_every=2, eval_sequences=16, **changes)
    learned = TaskRun(tiny, 3).train()
    assert [loss for _, loss in learned.losses] == pytest.approx(losses, abs=2e-6)


@pytest.mark.parametrize("stops", [1, 5, 9])
def test_a_run_stopped_within_an_epoch_goes_on_as_if_it_had_not_been(
    stops: int, tmp_path: Path
) -> None:
    options = {
        "core_options": {"zoneout_hidden": 0.3},
        "embedding_size": 3,
        "input_dropout": 0.2,
        "decay_at": (1,),
        "halve_block": 6,
    }
    whole = TaskRun(config(tmp_path / "whole", **options), 1)
    expected = whole.train()
    parts = config(tmp_path / "parts", **options)
    first = TaskRun(parts, 1)
    with pytest.raises(InterruptedRun):
        first.train(stop=stop_after(stops))
    assert first.update == stops
    assert first.feed.position > 0
    last = TaskRun(parts, 1)
    learned = last.train()
    assert learned.losses == expected.losses
    assert learned.test == expected.test
    assert all(map(torch.equal, weights(last), weights(whole)))
    tables = [(run.folder.path / "progress.csv").read_text() for run in (whole, last)]
    assert tables[0] == tables[1]
    assert "eval/perplexity" in tables[0]
    assert "eval/bits_per_character" in tables[0]
    assert "train/loss" in tables[0]


def test_a_feed_goes_on_from_any_place() -> None:
    for name, size in (("text", 2), ("parity", 4), ("copy", 2)):
        task = make_task(name)
        feed = Feed(task, size, torch.Generator().manual_seed(0))
        states, batches = [], []
        for _ in range(9):
            states.append(feed.get_state())
            batches.append(feed.draw())
        if name == "parity":
            assert [batch.inputs.shape[1] for batch in batches[:4]] == [4, 4, 2, 4]
            assert (feed.epoch, feed.position) == (3, 0)
            assert not torch.equal(batches[0].inputs, batches[3].inputs), "not shuffled"
        for at in (0, 2, 7):
            other = Feed(task, size, torch.Generator())
            other.set_state(states[at])
            for batch in batches[at:]:
                assert torch.equal(other.draw().inputs, batch.inputs)


def test_an_epoch_without_batches_is_an_error() -> None:
    class Empty(Text):
        def text(self, split: str, rows: int) -> Tensor:
            return torch.zeros(0, rows, dtype=torch.int64)

    with pytest.raises(ValueError, match="Empty has no training batch of 2 sequences"):
        Feed(Empty(), 2, torch.Generator()).draw()


class Watched(TaskRun):
    """Notes from which state each batch was read."""

    def learn(self) -> None:
        self.entered = [*getattr(self, "entered", []), self.state]
        super().learn()


def test_the_state_is_carried_and_each_epoch_starts_anew(tmp_path: Path) -> None:
    run = Watched(config(tmp_path, epochs=2, learning_rate=1e-12), 0)
    run.train()
    feed = Feed(run.task, 3, torch.Generator().manual_seed(0))
    state: Tensor | None = None
    for entered in run.entered:
        if feed.position == 0:
            state = None
        assert (entered is None) == (state is None)
        if entered is not None and state is not None:
            assert not entered.requires_grad
            torch.testing.assert_close(entered, state)
        batch = feed.draw()
        state = run.network.unroll(batch.inputs, state, batch.episode_starts)[1].detach()
    assert sum(entered is None for entered in run.entered) == 2


def test_evaluation_reads_a_text_as_one_and_weighs_by_targets(tmp_path: Path) -> None:
    run = TaskRun(config(tmp_path, epochs=1, learning_rate=1e-12), 0)
    learned = run.train()
    text = run.task.text("valid", 3)
    starts = torch.arange(20).remainder(7).eq(0)[:, None].expand(-1, 3)
    with torch.no_grad():
        predictions, _ = run.network.unroll(text[:-1], None, starts)
    expected = run.task.loss(predictions, Batch(text[:-1], text[1:])).item()
    assert learned.losses[0][1] == pytest.approx(expected, rel=1e-5)
    assert learned.metrics["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)

    masked = TaskRun(config(tmp_path, "parity", batch_size=4, epochs=1, learning_rate=1e-12), 0)
    learned = masked.train()
    (batch,) = masked.task.batches("valid", 10, torch.Generator())
    with torch.no_grad():
        expected = masked.task.loss(masked.network(batch.inputs), batch).item()
    assert batch.count() == 15
    assert learned.losses[0][1] == pytest.approx(expected, rel=1e-5)


def test_a_batch_in_which_nothing_counts_teaches_nothing(tmp_path: Path) -> None:
    class Blind(Parity):
        def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Any:
            for batch in super().batches(split, batch_size, generator):
                assert batch.mask is not None
                train = split == "train"
                yield batch._replace(mask=torch.zeros_like(batch.mask)) if train else batch

    TASKS["parity"] = Blind  # the fixture takes it away
    run = TaskRun(config(tmp_path, "parity"), 0)
    before = [weight.clone() for weight in weights(run)]
    learned = run.train()
    assert learned.ended == "budget"
    assert all(map(torch.equal, weights(run), before))


def test_rates(tmp_path: Path) -> None:
    run = TaskRun(config(tmp_path, decay_at=(1, 3), decay_factor=0.1, halve_block=4), 0)
    seen = []
    for epoch, loss in ((0, 1.0), (0, 1.0), (0, 1.5), (0, 1.5), (1, 1.0), (1, 1.0), (3, 1.1)):
        run.rate.follow(epoch, loss, 2)
        seen.append(run.rate.value)
    half = run.config.learning_rate / 2
    assert seen[:4] == [2 * half] * 3 + [half], "the loss of the second block was greater"
    assert seen[4:] == pytest.approx([half / 10, half / 10, half / 100])


def test_a_block_is_compared_with_the_one_before(tmp_path: Path) -> None:
    run = TaskRun(config(tmp_path, halve_block=2), 0)
    halvings = []
    for loss in (1.0, 1.5, 1.25, 1.25, 1.5):
        run.rate.follow(0, loss, 2)
        halvings.append(math.log2(run.config.learning_rate / run.rate.value))
    assert halvings == pytest.approx([0, 1, 1, 1, 2])


@pytest.mark.parametrize("min_delta", [0.0, 0.1])
def test_early_stopping_keeps_the_best_weights(min_delta: float, tmp_path: Path) -> None:
    class Worse(TaskRun):
        """The second evaluation is the best, or the last that is better by more than 0.1."""

        scores = iter([0.5, 0.9, 0.7, 0.9 + 0.9 * min_delta, 0.8, 1.1])

        def _compare(self, figures: dict[str, float]) -> None:
            super()._compare({**figures, "accuracy": next(self.scores)})
            self.kept = [*getattr(self, "kept", []), [w.clone() for w in weights(self)]]

    run = Worse(config(tmp_path, "parity", patience=3, min_delta=min_delta, epochs=9), 0)
    learned = run.train()
    assert learned.ended == "patience"
    assert learned.best_step == 4
    assert len(learned.losses) == 5
    assert all(map(torch.equal, weights(run), run.kept[1]))
    assert set(learned.test) == {"loss", "accuracy"}
    assert not (run.folder.path / "checkpoint").exists()
    result = json.loads((run.folder.path / "manifest.json").read_text())["result"]
    assert (result["ended"], result["best_step"]) == ("patience", 4)


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Breaks(TaskRun):
        def learn(self) -> None:
            if self.update == 5:
                with torch.no_grad():
                    self.network.decoder.bias.fill_(torch.nan)
            super().learn()

    run = Breaks(config(tmp_path, "parity", epochs=9), 0)
    learned = run.train()
    assert (learned.ended, learned.diverged_at) == ("diverged", 6)
    saved = read_checkpoint(run.folder.path / "checkpoint")
    assert saved["progress"]["update"] == 4
    assert all(torch.isfinite(value).all() for value in saved["network"].values())
    assert math.isfinite(learned.test["loss"])
    again = TaskRun(run.config, 0).train()
    assert again == learned


def test_a_stop_says_what_is_saved(tmp_path: Path) -> None:
    class Breaks(TaskRun):
        def _evaluate(self, logger: Any) -> None:
            if self.update:
                with torch.no_grad():
                    self.network.decoder.bias.fill_(torch.nan)
            super()._evaluate(logger)

    run = Breaks(config(tmp_path, "parity", epochs=9), 0)
    with pytest.raises(InterruptedRun, match="as of the last checkpoint"):
        run.train(stop=lambda: run.update > 0 and not run._sound)
    assert read_checkpoint(run.folder.path / "checkpoint")["progress"]["update"] == 0


@pytest.mark.parametrize(
    ("writes", "words"), [(13, "an existing file is unchanged"), (14, "progress.csv could not be")]
)
def test_a_full_disk_is_said_and_the_last_checkpoint_is_whole(
    writes: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TaskRun(config(tmp_path / "whole"), 0)
    whole.train()
    run = TaskRun(config(tmp_path / "full"), 0)
    sync, left = os.fsync, itertools.count()

    def fsync(file: int) -> None:
        if next(left) >= writes:  # in the evaluation after the second epoch
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match=r"could not be written \(No space left") as error:
            run.train()
    assert error.value.errno == errno.ENOSPC
    assert words in str(error.value)
    assert not list(run.folder.path.glob("*.tmp"))
    at = read_checkpoint(run.folder.path / "checkpoint")["progress"]["update"]
    assert 0 < at <= run.update
    last = TaskRun(run.config, 0)
    last.train()
    assert all(map(torch.equal, weights(last), weights(whole)))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TaskRun(config(tmp_path / "file"), 0).train()
    with pytest.raises(OSError, match="could not be written"):
        write_atomically(tmp_path / "file" / "below", b"")


def test_what_is_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = TaskRun(config(tmp_path, core="lstm", num_layers=2), 0)
    run.train()
    events = EventAccumulator(str(run.folder.path), {"scalars": 0, "histograms": 0})
    events.Reload()
    found = events.Tags()
    names = ("loss", "accuracy", "perplexity", "bits_per_character")
    assert {f"eval/{name}" for name in names} <= set(found["scalars"])
    assert {"train/loss", "train/learning_rate"} <= set(found["scalars"])
    gates = {f"gates/{name}_{k}" for name in ("forget", "log10_timescale") for k in (0, 1)}
    assert gates == set(found["histograms"])
    assert "gates/forget_0/median" in found["scalars"]
    assert len(events.Histograms("gates/forget_0")) == 4
    assert not any(
        name == "gates/forget_0" for name in logs.read_rows(run.folder.path / "progress.csv")
    )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "radam", "rmsprop", "sgd"])
def test_each_optimizer_learns(optimizer: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "weight_decay": 1e-5, "gate_rows": 0}
    rate = {"sgd": 0.3, "radam": 0.1}.get(optimizer, 0.02)
    if optimizer in ("sgd", "rmsprop"):
        options["momentum"] = 0.5
    limit = None if optimizer == "adam" else 1.0
    made = config(tmp_path, "parity", learning_rate=rate, max_grad_norm=limit, epochs=15, **options)
    run = TaskRun(made, 0)
    (batch,) = run.task.batches("train", 10, torch.Generator())
    before = run.task.loss(run.network(batch.inputs), batch).item()
    while run.feed.epoch < 15:
        run.learn()
    assert run.task.loss(run.network(batch.inputs), batch).item() < 0.8 * before


def test_half_precision_on_the_cpu(tmp_path: Path) -> None:
    run = TaskRun(config(tmp_path, amp="bf16", core="lstm", decoder_size=8), 0)
    plain = TaskRun(config(tmp_path / "plain", core="lstm", decoder_size=8), 0)
    one, other = run.train(), plain.train()
    assert one.losses != other.losses
    assert one.losses[-1][1] == pytest.approx(other.losses[-1][1], rel=0.02)
    assert all(weight.dtype == torch.float32 for weight in weights(run))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": None}, "a budget is needed"),
        ({"patience": 3, "eval_every": None}, "set eval_every"),
        ({"stop_loss": 0.1, "eval_every": None}, "set eval_every"),
        ({"optimizer": "addam"}, "Did you mean 'adam'"),
        ({"amp": "fp16"}, "fp16' needs a GPU"),
        ({"momentum": 0.9}, "momentum is for sgd and rmsprop, not adam"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"decay_at": (0,)}, "decay_at must be at least 1"),
        ({"task": "parity", "embedding_size": 3}, "embedding_size is for tasks of tokens"),
        ({"task": "copy"}, "epochs must be left out: task 'copy' generates its sequences"),
        ({"task": "copy", "epochs": None, "updates": 3}, "eval_every must be a number of updates"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"patience": 1, "min_delta": -1.0}, "min_delta must be at least 0"),
        ({"min_delta": 0.1}, "min_delta is for patience"),
    ],
)
def test_bad_configs(changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config(tmp_path), **changes).check()


def test_the_identity_of_a_run_has_every_setting(tmp_path: Path) -> None:
    base = config(tmp_path, epochs=None, updates=7, eval_every=2, decay_at=(2, 3))
    settings = identity(base)
    assert settings["optimizer"] == "adam", "though it is the default"
    assert settings["decay_at"] == [2, 3]
    assert settings["core_options"]["reset"] == "after"
    assert "folder" not in settings
    assert identity(replace(base, folder="elsewhere", threads=2, seeds=(1,))) == settings
    TaskRun(config(tmp_path), 0).train()
    with pytest.raises(ValueError, match="tied was False and is now True"):
        TaskRun(config(tmp_path, tied=True, embedding_size=4), 0).train()


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"learning_rate": 0.5}, 0, r"learning_rate was 0.004 and is now 0.5\. Choose another"),
        ({"core": "lstm"}, 0, "core was 'gru' and is now 'lstm'"),
        ({}, 1, "seed was 0 and is now 1"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    changes: Any, seed: int, message: str, tmp_path: Path
) -> None:
    run, other = TaskRun(config(tmp_path), 0), TaskRun(config(tmp_path / "b", **changes), seed)
    for made in (run, other):
        with pytest.raises(InterruptedRun):
            made.train(stop=stop_after(0))
    other.folder.checkpoint.write_bytes(run.folder.checkpoint.read_bytes())
    with pytest.raises(ValueError, match=f"holds a checkpoint with another config: .*{message}"):
        TaskRun(other.config, seed).train()


def test_evaluations_at_the_start_and_the_end_alone(tmp_path: Path) -> None:
    result = TaskRun(config(tmp_path, eval_every=None), 0).train()
    assert [update for update, _ in result.losses] == [0, result.steps]


def test_a_run_ends_when_the_time_is_up(tmp_path: Path) -> None:
    result = TaskRun(config(tmp_path, max_minutes=1e-9), 0).train()
    assert (result.ended, result.steps) == ("time", 1)


def test_a_run_that_its_time_limit_ended_continues_with_more_time(tmp_path: Path) -> None:
    whole = TaskRun(config(tmp_path / "whole"), 0)
    result = whole.train()
    short = config(tmp_path, max_minutes=1e-9)
    for limit in (1e-9, 0.5e-9, 2e-9):
        assert TaskRun(replace(short, max_minutes=limit), 0).train().steps == 1
    run = TaskRun(replace(short, max_minutes=None), 0)
    longer = run.train()
    assert (longer.ended, longer.steps, longer.test) == ("budget", result.steps, result.test)
    assert all(map(torch.equal, weights(run), weights(whole)))
    assert not run.folder.checkpoint.exists()
    assert TaskRun(short, 0).train() == longer  # looked up


def test_the_evaluation_at_the_time_limit_does_not_use_up_patience(tmp_path: Path) -> None:
    run = TaskRun(config(tmp_path, patience=1, eval_every="epoch", max_minutes=1), 0)
    run.best = (-math.inf, 0)  # no evaluation is better: perplexities are positive
    run.update, run._late, run.feed.position = 1, True, 3  # within an epoch
    run._compare({run.task.metric: 1.0})
    assert (run.waited, run._ended()) == (0, "time")
    run.feed.position = 0
    run._compare({run.task.metric: 1.0})
    assert (run.waited, run._ended()) == (1, "patience")


@pytest.mark.parametrize("eval_every", [None, "epoch", 10**6])
def test_a_run_is_evaluated_when_the_time_is_up(
    eval_every: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = itertools.chain([0.0] * 3, itertools.repeat(61.0))
    run = TaskRun(config(tmp_path, eval_every=eval_every, max_minutes=1), 0)
    monkeypatch.setattr(run, "_count_time", lambda: setattr(run, "seconds", next(minutes)))
    result = run.train()
    assert result.ended == "time"
    assert [update for update, _ in result.losses] == [0, result.steps]
    assert result.steps > 1
    line, *_ = runner_for(run.config).describe(Job(run.config, 0), result)
    assert line.endswith(", ended by its time limit")


def test_a_run_that_is_over_is_not_kept(tmp_path: Path) -> None:
    run = TaskRun(config(tmp_path, "parity", epochs=1), 0)
    run.train()
    kept = weakref.ref(run)
    gc.disable()
    try:
        del run
        assert kept() is None
    finally:
        gc.enable()


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlgates.experiments.runs.progress.LINE_EVERY", 0.0)
    for bar in (False, True):
        progress = Progress("copy: gru seed 0", "updates", 20, bar)
        progress.begin(4)
        progress.update(5, epoch="1/3", loss="0.2500")
        progress.close()
    printed = capsys.readouterr()
    assert "copy: gru seed 0: 5 of 20 updates, epoch 1/3, loss 0.2500" in printed.out
    assert "copy: gru seed 0" in printed.err


def test_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the budget or the limit of time, whichever comes first."""
    monkeypatch.setattr("rlgates.experiments.runs.progress.LINE_EVERY", 0.0)
    clock = iter([0.0, 60.0] * 5)
    monkeypatch.setattr("rlgates.experiments.runs.progress.time.monotonic", lambda: next(clock))
    for total, minutes, before in (
        *((20, None, 0.0), (20, 9, 0.0), (2_000, 9, 0.0)),
        *((2_000, 9, 200.0), (None, None, 0.0)),  # 200 s in an earlier session
    ):
        progress = Progress("run", "updates", total, False, minutes)
        progress.begin(0, before)
        progress.update(10)
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("at most ")[2] for line in printed] == [
        "1 min 0 s left",
        "1 min 0 s left",
        "8 min 0 s left",
        "4 min 40 s left",
        "",
    ]
