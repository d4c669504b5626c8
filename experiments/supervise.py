"""Train a core on a supervised task: one run, which can be stopped at any update and go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice

import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rlgates.errors import check_size
from rlgates.experiments import hparams, logs, manifest
from rlgates.experiments.checkpoint import write_checkpoint
from rlgates.experiments.devices import find_device
from rlgates.experiments.supervised_check import build, check, run_folder
from rlgates.experiments.supervised_configs import SupervisedConfig, learned_from
from rlgates.experiments.supervised_evaluate import (
    entering,
    evaluate,
    in_parts,
    moved,
    watch_gates,
)
from rlgates.experiments.supervised_feed import Feed
from rlgates.experiments.supervised_progress import Progress
from rlgates.experiments.supervised_rates import Precision, Rate, make_optimizer, total_norm
from rlgates.experiments.supervised_saved import (
    Learned,
    as_learned,
    load_best,
    restore,
    snapshot,
)
from rlgates.tasks import Batch, Generated

# Beyond all seeds of training, and of each other.
SEEDS = {"valid": 2**40, "test": 2**41}
# Over hundreds of steps a gradient overflows now and then. Such updates are not made; with more of
# them in a row a run has diverged.
MOST_LEFT_OUT = 10


def finished(config: SupervisedConfig, seed: int) -> Learned | None:
    """What the run came to if it was finished before.

    Raises:
        ValueError: the folder holds a run with another config; what differs is named.
    """
    found = manifest.result_of(run_folder(config, seed), learned_from(config), seed)
    return None if found is None else as_learned(found)


class Run:
    """A run: the network, its optimizer, its random numbers and its logs.

    The batches are drawn by a generator of their own, so that all cores see the same ones.

    Attributes:
        reader: the network; that with the best weights once the run is over.
        update: how many were made.
    """

    def __init__(self, config: SupervisedConfig, seed: int) -> None:
        self.config, self.seed = config, check_size("seed", seed, minimum=0)
        self.task = check(config)
        self.folder = run_folder(config, seed)
        self.settings = {**learned_from(config), "seed": seed}
        torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self.device = find_device(config.device)
        self.reader = build(config, self.task).to(self.device)
        self.optimizer = make_optimizer(config, self.reader.parameters())
        self.rate = Rate(config, self.optimizer)
        self.precision = Precision(config.amp, self.device)
        self.feed = Feed(self.task, config.batch_size, torch.Generator().manual_seed(seed))
        self.state: Tensor | None = None
        self.update, self.seconds = 0, 0.0
        self.since: list[float] = [0.0, 0]  # training loss since the last evaluation, and updates
        self.losses: list[tuple[int, float]] = []
        self.metrics: dict[str, float] = {}
        self.best: tuple[float, int] | None = None
        self.waited = 0
        self.left_out = 0
        self.diverged_at: int | None = None
        self._made: dict[str, Batch] = {}
        self._gated = config.gate_rows > 0
        self._sound = True  # for all that is known, the weights can be saved
        self._saved = -1

    def go(
        self, stop: Callable[[], bool] = lambda: False, progress: Progress | None = None
    ) -> Learned | None:
        """Train to the end, or until `stop` says so after an update.

        Returns:
            what was learned, at once if the run was finished before; None if it was stopped:
            then it goes on from there the next time, bit for bit as if it had not been stopped.

        Raises:
            ValueError: the folder holds a run with another config.
            OSError: nothing can be written; the last checkpoint is as it was.
        """
        before = finished(self.config, self.seed)
        if before is not None:
            return before
        logger = restore(self)
        manifest.begin(
            self.folder, learned_from(self.config), self.seed, self.update, self.config.threads
        )
        self._before, self._began = self.seconds, time.monotonic()
        if progress is not None:
            progress.begin(self.update)
        try:
            ended = self._train(logger, stop, progress)
            test = self._test() if ended else {}
        finally:
            logger.close()
            if progress is not None:
                progress.close()
        if ended is None:
            manifest.end(self.folder, "interrupted")
            return None
        return self._finish(ended, test)

    def _train(
        self, logger: Logger, stop: Callable[[], bool], progress: Progress | None
    ) -> str | None:
        """Updates until there is a reason to end, which is returned; None: to be continued."""
        saved_at = time.monotonic()
        while True:
            if self._evaluation_is_due():
                self._evaluate(logger)
                self._save(logger)
            if ended := self._ended():
                return ended
            if stop():
                self._save(logger)
                return None
            if time.monotonic() - saved_at > 60 * self.config.save_minutes:
                self._save(logger)
                saved_at = time.monotonic()
            self.learn()
            if progress is not None:
                progress.at(self.update, self.feed.epoch, self.losses[-1][1])

    def _spent(self) -> bool:
        updates, epochs = self.config.updates, self.config.epochs
        over = updates is not None and self.update >= updates
        return over or (epochs is not None and self.feed.epoch >= epochs)

    def _ended(self) -> str | None:
        if self._spent() and not self._sound:  # no further update will tell
            self.diverged_at = self.update
        if self.diverged_at is not None:
            return "diverged"
        goal = self.config.stop_loss
        if goal is not None and self.losses and self.losses[-1][1] < goal:
            return "solved"
        if self._spent():
            return "budget"
        patience = self.config.patience
        return "patience" if patience is not None and self.waited >= patience else None

    def _evaluation_is_due(self) -> bool:
        if self.diverged_at is not None or (self.losses and self.losses[-1][0] == self.update):
            return False
        if self.update == 0 or self._spent():
            return True
        if self.config.eval_every is None:
            return self.feed.position == 0
        return self.update % self.config.eval_every == 0

    def learn(self) -> None:
        """Make an update of the next batch."""
        self.reader.train()
        epoch, given = self.feed.epoch, self.feed.draw()
        self.update += 1
        batch = moved(given, self.device)
        with self.precision.forward():
            state = entering(self.state, batch)
            predictions, after = self.reader.read(batch.inputs, state, batch.starts)
        self.state = self._carried(after, epoch)
        if given.mask is not None and not given.mask.any():
            return  # there is nothing to learn from
        loss = self.task.loss(predictions.float(), batch)
        scaler = self.precision.scaler
        self.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(self.optimizer)
        norm = total_norm(list(self.reader.parameters()), self.config.max_grad_norm)
        value = float(loss.detach())
        # In float16 the scaler leaves out the update itself.
        overflown = not (scaler.is_enabled() or norm.isfinite())
        self.left_out = self.left_out + 1 if overflown else 0
        if not math.isfinite(value) or self.left_out > MOST_LEFT_OUT:
            self.diverged_at = self.update
        if overflown or self.diverged_at is not None:
            return
        scaler.step(self.optimizer)
        scaler.update()
        self._sound = True
        self.since = [self.since[0] + value, self.since[1] + 1]
        self.rate.follow(self.feed.epoch, value, batch.inputs.shape[1])

    def _carried(self, state: Tensor, epoch: int) -> Tensor | None:
        """What the next batch goes on from; None: the initial state."""
        if not self.task.carries_state or self.feed.epoch > epoch:
            return None
        return state.detach()

    def held_out(self, split: str) -> Iterator[Batch]:
        """The batches of a split, the same ones each time."""
        generator = torch.Generator().manual_seed(SEEDS[split] + self.seed)
        if not isinstance(self.task, Generated):
            batches = self.task.batches(split, self.config.batch_size, generator)
            return islice(batches, self.config.eval_batches)
        if split not in self._made:
            batches = self.task.batches(split, self.config.eval_sequences, generator)
            self._made[split] = next(batches)
        if self.task.carries_state:
            return iter([self._made[split]])
        return in_parts(self._made[split], self.reader.core.output_size)

    def _evaluate(self, logger: Logger) -> None:
        figures = evaluate(self.reader, self.task, self.held_out("valid"), self.precision)
        loss, self.metrics = figures["loss"], {k: v for k, v in figures.items() if k != "loss"}
        stuck = self.left_out > 0 and not self.since[1]  # no update since the one before
        self._sound = math.isfinite(loss) and not stuck
        self.losses.append((self.update, loss))
        total, count = self.since
        if count:
            logger.record("train/loss", total / count)
        logger.record("train/learning_rate", self.rate.value)
        for name, number in figures.items():
            logger.record(f"eval/{name}", number)
        if self._gated and self._sound:
            first, rows = next(self.held_out("valid")), self.config.gate_rows
            self._gated = watch_gates(self.reader, first, rows, logger, self.device)
        logger.dump(self.update)
        self.since = [0.0, 0]
        self._compare(figures)

    def _compare(self, figures: dict[str, float]) -> None:
        """Keep the weights if the task's metric is better than ever."""
        value = figures[self.task.metric]
        sign = 1 if self.task.higher_is_better else -1
        if math.isfinite(value) and (self.best is None or sign * value > sign * self.best[0]):
            self.best, self.waited = (value, self.update), 0
            write_checkpoint(self.folder / "best", snapshot(self, whole=False))
        else:
            self.waited += 1

    def _test(self) -> dict[str, float]:
        if self.best is None:
            return {}
        self.reader.load_state_dict(load_best(self))
        return evaluate(self.reader, self.task, self.held_out("test"), self.precision)

    def _save(self, logger: Logger) -> None:
        """Write a checkpoint, unless this update has one or the weights have gone wrong."""
        if self._saved == self.update or not self._sound:
            return
        self._count_time()
        content = {**snapshot(self), "logs": logs.position(self.folder, logger)}
        write_checkpoint(self.folder / "checkpoint", content)
        self._saved = self.update

    def _count_time(self) -> None:
        self.seconds = self._before + time.monotonic() - self._began

    def _finish(self, ended: str, test: dict[str, float]) -> Learned:
        self._count_time()
        learned = Learned(
            self.losses,
            self.metrics,
            self.task.baseline,
            sum(parameter.numel() for parameter in self.reader.core.parameters()),
            self.reader.core.state_size,
            round(self.seconds, 1),
            self.diverged_at,
            test,
            None if self.best is None else self.best[1],
            ended,
        )
        metrics = {
            f"test_{self.task.metric}": test.get(self.task.metric),
            "loss": self.losses[-1][1],
            "steps": self.update,
            "seconds": learned.seconds,
        }
        diverged = ended == "diverged"
        hparams.write_hparams(
            self.folder, self.config, self.seed, metrics, self.update, diverged=diverged
        )
        manifest.end(self.folder, "finished", result=asdict(learned))
        if not diverged:
            (self.folder / "checkpoint").unlink(missing_ok=True)
        return learned
