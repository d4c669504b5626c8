"""Train a core on a supervised task: one run, which can stop at any update and continue."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rlgates.agents.callbacks import record_gates
from rlgates.agents.recording import Recorded, can_record, copied
from rlgates.core import GateTrace
from rlgates.errors import check_size
from rlgates.experiments.configs.devices import find_device
from rlgates.experiments.configs.task import TaskConfig, build_auxiliary, build_model
from rlgates.experiments.runs.folder import EndReason, RunFolder, RunResult
from rlgates.experiments.runs.hparams import write_hparams
from rlgates.experiments.runs.network.evaluate import (
    batch_figures,
    evaluate,
    initial_state,
    read,
    split_batch,
    to_device,
    trace_gates,
)
from rlgates.experiments.runs.network.feed import Feed
from rlgates.experiments.runs.network.optim import (
    Precision,
    Rate,
    clip_gradients,
    gradient_norm,
    make_optimizer,
)
from rlgates.experiments.runs.progress import Progress
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.experiments.tasks import Batch, GeneratedTask

BEST_WEIGHTS = "best.pt"  # in the folder of a run
HELD_OUT = {"valid": 1, "test": 2}
# Updates with an overflown gradient are skipped; more than these in a row end the run as diverged.
MAX_SKIPPED = 10
# Shapes of batches that are kept as CUDA graphs: corpora have about 30 lengths.
MAX_SHAPES = 32
_PROGRESS = (
    "update",
    "seconds",
    "since",
    "auxiliary_since",
    "losses",
    "metrics",
    "best",
    "waited",
    "skipped",
)


@dataclass(frozen=True, kw_only=True)
class TaskResult(RunResult):
    """What a finished run on a task reached.

    Attributes:
        losses: (update, loss on the split "valid"), from before the first update on.
        metrics: the task's further figures on "valid" at the end.
        baseline: the loss of the best prediction without memory; None if unknown.
        parameters, state_size: of the core.
        diverged_at: the update whose loss was not finite, where the run ended.
        test: all figures on the split "test" with the best weights; empty without them.
    """

    losses: tuple[tuple[int, float], ...]
    metrics: dict[str, float]
    baseline: float | None
    parameters: int
    state_size: int
    diverged_at: int | None
    test: dict[str, float]


class Gradients(NamedTuple):
    """What a forward and a backward pass give, besides the gradients.

    Attributes:
        state: (B, state_size), after the last step.
        figures: (3,), the loss, the auxiliary loss, 0 without one, and the norm of the gradients;
            None if no target counts.
    """

    state: Tensor
    figures: Tensor | None


def load_best(folder: RunFolder) -> dict[str, Any]:
    """The weights with which the task's metric was best on "valid".

    Raises:
        ValueError: they are missing, damaged, or of another run.
    """
    path = folder.path / BEST_WEIGHTS
    if not path.exists():
        raise ValueError(f"{path} is missing: put it back, or remove the folder to start again.")
    state_dict: dict[str, Any] = folder.read(path)["network"]
    return state_dict


class TaskRun:
    """A run in progress: the network, its optimizer, its random numbers and its logs.

    Batches come from a separate generator, so that all cores get the same ones.

    Attributes:
        network: the network; with the best weights once the run is over.
        auxiliary: the loss that is added to that of the task; None without one.
        parameters: the weights of both.
        update: number of updates so far.
    """

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self.config, self.seed = config, check_size("seed", seed, minimum=0)
        self.task = config.check()
        self.folder = RunFolder(config, seed)
        torch.set_num_threads(config.threads)
        torch.manual_seed(seed)
        self.device = find_device(config.device)
        self.network = build_model(config, self.task).to(self.device)
        auxiliary = build_auxiliary(config, self.network)
        self.auxiliary = None if auxiliary is None else auxiliary.to(self.device)
        self.parameters = list(self.network.parameters())
        if self.auxiliary is not None:
            self.parameters += self.auxiliary.parameters()
        self.optimizer = make_optimizer(config, self.parameters)
        self.rate = Rate(config, self.optimizer)
        self.precision = Precision(config.amp, self.device)
        self.feed = Feed(self.task, config.batch_size, torch.Generator().manual_seed(seed))
        self.state: Tensor | None = None
        self.update, self.seconds = 0, 0.0
        self.since: list[float] = [0.0, 0]  # training loss since the last evaluation, and updates
        self.auxiliary_since = 0.0  # as `since`, of the auxiliary loss
        self.losses: list[tuple[int, float]] = []
        self.metrics: dict[str, float] = {}
        self.best: tuple[float, int] | None = None
        self.waited = 0
        self.skipped = 0
        self.diverged_at: int | None = None
        self._held_out: dict[str, Batch] = {}
        self._gated = config.gate_rows > 0
        self._sound = True  # as far as known, the weights are finite
        self._late = False  # the time is up
        self._saved = -1
        # Through a reference of its own the run would outlive its end, with all it holds.
        compute_gradients = partial(TaskRun._compute_gradients, weakref.proxy(self))
        self._gradients = self._as_graphs(compute_gradients)
        self._figures_of = self._as_graphs(
            partial(batch_figures, self.network, self.task, self.precision)
        )
        self._trace_gates = self._as_graphs(partial(trace_gates, self.network))

    def train(
        self, stop: Callable[[], bool] = lambda: False, progress: Progress | None = None
    ) -> TaskResult:
        """Train to the end, or until `stop` returns true after an update.

        Returns:
            the result, at once if the run is already finished.

        Raises:
            InterruptedRun: `stop` returned true. The next call continues bit for bit as if the run
                had not been stopped.
            ValueError: the folder holds a run with another config.
            OSError: a write failed; the last checkpoint is unchanged.
        """
        result = self.folder.result(TaskResult)
        if result is not None:
            return result
        saved = self.folder.load()
        with closing(self.folder.open_logs(saved)) as logger:
            if saved is not None:
                self.restore(saved)
            self.folder.begin(self.update)
            self._before, self._began = self.seconds, time.monotonic()
            if progress is not None:
                progress.begin(self.update, self.seconds)
            try:
                ended = self._train(logger, stop, progress)
            finally:
                if progress is not None:
                    progress.close()
            if ended is None:
                self.folder.end("interrupted")
                at = f"at {self.update:,} updates, saved in {self.folder.path}"
                if self._saved != self.update:  # `_save` keeps the last sound weights
                    at = f"{at} as of the last checkpoint"
                raise InterruptedRun(at)
            return self._finish(ended, logger)

    def weights(self) -> dict[str, Any]:
        """The weights, with their update and figures."""
        return {
            "network": self.network.state_dict(),
            "progress": {name: getattr(self, name) for name in _PROGRESS},
        }

    def snapshot(self) -> dict[str, Any]:
        """The complete state of the run between two updates, as plain data and tensors."""
        return {
            **self.weights(),
            "auxiliary": None if self.auxiliary is None else self.auxiliary.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rate": self.rate.get_state(),
            "scaler": self.precision.scaler.state_dict(),
            "state": self.state,
            "feed": self.feed.get_state(),
            "random": {
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            },
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from a `snapshot` of a run with the same config and seed."""
        self.network.load_state_dict(saved["network"])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(saved["auxiliary"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.rate.set_state(saved["rate"])
        self.precision.scaler.load_state_dict(saved["scaler"])
        self.state = None if saved["state"] is None else saved["state"].to(self.device)
        self.feed.set_state(saved["feed"])
        for name in _PROGRESS:
            setattr(self, name, saved["progress"][name])
        torch.set_rng_state(saved["random"]["torch"])
        if saved["random"]["cuda"]:
            torch.cuda.set_rng_state_all(saved["random"]["cuda"])

    def _train(
        self, logger: Logger, stop: Callable[[], bool], progress: Progress | None
    ) -> EndReason | None:
        """Make updates until training ends, and return the reason; None: it was stopped."""
        saved_at = time.monotonic()
        while True:
            self._late = self._time_is_up()
            if self._evaluation_is_due():
                self._evaluate(logger)
                self._save(logger)
            if ended := self._ended():
                return ended
            if stop():
                self._save(logger)
                return None
            if time.monotonic() - saved_at > 60 * self.config.checkpoint_minutes:
                self._save(logger)
                saved_at = time.monotonic()
            self.learn()
            if progress is not None:
                progress.update(self.update, **self._figures())

    def _figures(self) -> dict[str, str]:
        """The epoch, if they are limited, and the last evaluation's loss."""
        epochs = self.config.epochs
        epoch = {} if epochs is None else {"epoch": f"{self.feed.epoch}/{epochs}"}
        return {**epoch, "loss": f"{self.losses[-1][1]:.4f}"}

    def _spent(self) -> bool:
        updates, epochs = self.config.updates, self.config.epochs
        over = updates is not None and self.update >= updates
        return over or (epochs is not None and self.feed.epoch >= epochs)

    def _is_over(self) -> bool:
        return self._spent() or self._late

    def _time_is_up(self) -> bool:
        limit = self.config.max_minutes
        if limit is None or not self.update:
            return False
        self._count_time()
        return self.seconds >= 60 * limit

    def _ended(self) -> EndReason | None:
        if self._is_over() and not self._sound:  # no further update will tell
            self.diverged_at = self.update
        if self.diverged_at is not None:
            return "diverged"
        goal = self.config.stop_loss
        if goal is not None and self.losses and self.losses[-1][1] < goal:
            return "goal"
        if self._spent():
            return "budget"
        patience = self.config.patience
        if patience is not None and self.waited >= patience:
            return "patience"
        return "time" if self._late else None

    def _evaluation_is_due(self) -> bool:
        if self.diverged_at is not None or (self.losses and self.losses[-1][0] == self.update):
            return False
        return self._is_over() or self._is_planned()

    def _is_planned(self) -> bool:
        """Whether `eval_every` has an evaluation at this update."""
        if self.update == 0:
            return True
        if self.config.eval_every is None:
            return False
        if self.config.eval_every == "epoch":
            return self.feed.position == 0
        return self.update % self.config.eval_every == 0

    def learn(self) -> None:
        """Make an update with the next batch."""
        self.network.train()
        epoch, cpu_batch = self.feed.epoch, self.feed.draw()
        self.update += 1
        batch = to_device(cpu_batch, self.device)
        state = initial_state(self.state, batch)
        scored = cpu_batch.mask is None or bool(cpu_batch.mask.any())
        gradients = self._gradients if batch.mask is None else self._compute_gradients
        alone = self.auxiliary is not None and self.update <= self.config.auxiliary_updates
        results = gradients(batch, state, scored, alone)
        keeps_state = self.task.carries_state and self.feed.epoch == epoch
        self.state = results.state if keeps_state else None  # None: the initial one
        if results.figures is None:
            return
        value, auxiliary, norm = read(results.figures)
        limit = self.config.max_grad_norm
        if limit is not None:
            norm = clip_gradients(self.parameters, limit, results.figures[-1], norm)
        scaler = self.precision.scaler
        # In float16 the scaler skips the update itself.
        overflown = not (scaler.is_enabled() or math.isfinite(norm))
        self.skipped = self.skipped + 1 if overflown else 0
        if not math.isfinite(value) or self.skipped > MAX_SKIPPED:
            self.diverged_at = self.update
        if overflown or self.diverged_at is not None:
            return
        scaler.step(self.optimizer)
        scaler.update()
        self._sound = True
        self.since = [self.since[0] + value, self.since[1] + 1]
        self.auxiliary_since += auxiliary
        self.rate.follow(self.feed.epoch, value, batch.inputs.shape[1])

    def _compute_gradients(
        self, batch: Batch, state: Tensor | None, scored: bool, alone: bool
    ) -> Gradients:
        """The gradients of a batch, in `parameters`.

        Args:
            batch: on the device.
            state: before its first step; None for the initial one.
            scored: whether any target counts.
            alone: whether the auxiliary loss is all there is.
        """
        with self.precision.forward():
            hidden, after = self.network.unroll_hidden(batch.inputs, state, batch.episode_starts)
        if not scored:
            return Gradients(after.detach(), None)
        loss, auxiliary = self._loss(hidden, batch), self._auxiliary_loss(batch)
        objective = loss
        if auxiliary is not None:
            objective = auxiliary if alone else loss + auxiliary
        scaler = self.precision.scaler
        # A replay writes to the gradients of its recording: all have the same.
        self.optimizer.zero_grad(set_to_none=not self.records)
        scaler.scale(objective).backward()
        scaler.unscale_(self.optimizer)
        added = torch.zeros_like(loss) if auxiliary is None else auxiliary
        norm = gradient_norm(self.parameters)
        return Gradients(after.detach(), torch.stack((loss.detach(), added.detach(), norm)))

    @property
    def records(self) -> bool:
        """Whether work is recorded: fp16 waits for the GPU, and so may an auxiliary loss."""
        waits = self.precision.scaler.is_enabled() or self.auxiliary is not None
        return can_record(self.device) and self.config.cuda_graphs and not waits

    def _as_graphs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose work on a GPU is recorded, if it may be."""
        if not self.records:
            return function
        return Recorded(function, self.device, "Pass --no-cuda-graphs to run without.", MAX_SHAPES)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """The figures of the network, as it is, on batches."""

        def figures_of(batch: Batch, state: Tensor | None) -> Any:
            if batch.mask is None:
                return self._figures_of(batch, state)
            return batch_figures(self.network, self.task, self.precision, batch, state)

        moved = (to_device(batch, self.device) for batch in batches)
        return evaluate(self.network, self.task, moved, figures_of)

    def trace_gates(self, batch: Batch, sequences: int) -> GateTrace:
        """The gates of the core on the first sequences of a batch."""
        inputs, starts = batch.inputs[:, :sequences].to(self.device), batch.episode_starts
        first = None if starts is None else starts[:, :sequences].to(self.device)
        trace: GateTrace = copied(self._trace_gates(inputs, first))
        return trace

    def _loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch from the inputs of the decoder."""
        decoder = self.network.decoder
        if self.precision.amp == "none":
            loss = self.task.decoder_loss(hidden, decoder, batch)
            if loss is not None:
                return loss
        with self.precision.forward():
            predictions = decoder(hidden)
        return self.task.loss(predictions.float(), batch)

    def _auxiliary_loss(self, batch: Batch) -> Tensor | None:
        """What is added to the loss of a batch; None without `auxiliary`."""
        if self.auxiliary is None:
            return None
        if batch.episode_starts is not None:  # of a task that does not say so
            raise ValueError(
                f"auxiliary={self.config.auxiliary!r} is for batches without episode starts: in "
                f"task {self.config.task!r} it would learn the padding between sequences."
            )
        with self.precision.forward():
            loss: Tensor = self.auxiliary(self.network, batch.inputs)
        return loss

    def held_out(self, split: str) -> Iterator[Batch]:
        """The batches of a held-out split, the same each time."""
        # Of a larger seed torch uses 32 bits alone: streams far apart would be the same.
        (seed,) = np.random.SeedSequence([self.seed, HELD_OUT[split]]).generate_state(1).tolist()
        generator = torch.Generator().manual_seed(seed)
        if not isinstance(self.task, GeneratedTask):
            batches = self.task.batches(split, self.config.batch_size, generator)
            return islice(batches, self.config.eval_batches)
        if split not in self._held_out:
            batches = self.task.batches(split, self.config.eval_sequences, generator)
            self._held_out[split] = next(batches)
        if self.task.carries_state:
            return iter([self._held_out[split]])
        return split_batch(self._held_out[split], self.network.core.output_size)

    def _evaluate(self, logger: Logger) -> None:
        figures = self.evaluate(self.held_out("valid"))
        loss, self.metrics = figures["loss"], {k: v for k, v in figures.items() if k != "loss"}
        stuck = self.skipped > 0 and not self.since[1]  # no update since the last evaluation
        self._sound = math.isfinite(loss) and not stuck
        self.losses.append((self.update, loss))
        total, count = self.since
        if count:
            logger.record("train/loss", total / count)
            if self.auxiliary is not None:
                logger.record("train/auxiliary_loss", self.auxiliary_since / count)
        logger.record("train/learning_rate", self.rate.value)
        for name, number in figures.items():
            logger.record(f"eval/{name}", number)
        if self._gated and self._sound:
            trace = self.trace_gates(next(self.held_out("valid")), self.config.gate_rows)
            self._gated = bool(trace.forget)
            if self._gated:
                record_gates(logger, "gates", trace)
        logger.dump(self.update)
        self.since, self.auxiliary_since = [0.0, 0], 0.0
        self._compare(figures)

    def _compare(self, figures: dict[str, float]) -> None:
        """Save the weights if the task's metric is the best so far, by more than `min_delta`."""
        value, margin = figures[self.task.metric], self.config.min_delta
        sign = 1 if self.task.higher_is_better else -1
        if math.isfinite(value) and (
            self.best is None or sign * value > sign * self.best[0] + margin
        ):
            self.best, self.waited = (value, self.update), 0
            self.folder.write(self.folder.path / BEST_WEIGHTS, self.weights())
        elif self.update > self.config.auxiliary_updates and self._is_planned():
            self.waited += 1

    def _test(self) -> dict[str, float]:
        if self.best is None:
            return {}
        self.network.load_state_dict(load_best(self.folder))
        return self.evaluate(self.held_out("test"))

    def _save(self, logger: Logger) -> None:
        """Write a checkpoint, unless this update has one or the weights are not finite."""
        if self._saved == self.update or not self._sound:
            return
        self._count_time()
        self.folder.save(self.snapshot(), logger)
        self._saved = self.update

    def _count_time(self) -> None:
        self.seconds = self._before + time.monotonic() - self._began

    def _finish(self, ended: EndReason, logger: Logger) -> TaskResult:
        last = self.folder.path / "last.pt"
        if ended != "diverged":
            self.folder.write(last, self.weights())
        test = self._test()
        self._count_time()
        result = TaskResult(
            losses=tuple(self.losses),
            metrics=self.metrics,
            baseline=self.task.baseline,
            parameters=sum(parameter.numel() for parameter in self.network.core.parameters()),
            state_size=self.network.core.state_size,
            seconds=round(self.seconds, 1),
            steps=self.update,
            diverged_at=self.diverged_at,
            test=test,
            best_step=None if self.best is None else self.best[1],
            ended=ended,
        )
        metrics = {
            f"test_{self.task.metric}": test.get(self.task.metric),
            "loss": self.losses[-1][1],
            "steps": self.update,
            "seconds": result.seconds,
        }
        write_hparams(logger, self.config, self.seed, metrics, self.update)
        self.folder.finish(result, keep_checkpoint=ended == "diverged")
        return result
