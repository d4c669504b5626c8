"""A trained policy as an ONNX file, one step of its core a call."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import rlgates
from rlgates.agents.onnx_step import PolicyStep
from rlgates.agents.sequences import SequencePolicy
from rlgates.core import Core
from rlgates.errors import check_flag


def export_onnx(
    model_or_policy: Any,
    path: str | Path,
    deterministic: bool = True,
    *,
    value: bool = False,
    logits: bool = False,
    opset_version: int | None = None,
) -> Path:
    """Write one step of a policy as an ONNX file, weights included.

    Every core of `rlgates.list_cores()` can be exported. In `rma`, which of several memory rows
    that match equally well are read is left to the runtime.

    Inputs, all with a batch axis of any size B first:
        observation: as the policy's space says, pictures channels first and in their own uint8;
            each part of a Dict is an input of its name.
        state: (B, state_size) float32, what `state_out` was in the step before. In rows that
            start an episode it is not read.
        episode_start: (B,) bool, true where an episode starts.
        action_masks: (B, ...) bool, only of a policy that is made for masks.
        noise: only with `deterministic=False`, what an action is drawn with. For Box actions
            (B, number of actions) standard normal; else uniform in [0, 1), a number for each
            choice: (B, n) of Discrete(n) and MultiBinary(n), (B, sum(nvec)) of MultiDiscrete;
            (B, 2n) of MultiBinary(n) with masks.

    Outputs:
        action: (B, ...), within the bounds of the action space as `model.predict` gives it.
        state_out: (B, state_size) float32.
        value: (B,), if asked for. A critic with a core of its own has its state behind the
            actor's in `state`.
        logits: (B, ...), if asked for: what the network gives before the softmax or sigmoid.

    The file's metadata holds, as JSON: `core`, `core_kwargs`, `state_size`, `actor_state_size`,
    `initial_state` (the numbers of one row), `deterministic`, `policy`, `rlgates_version`.

    Args:
        model_or_policy: a model of rlgates, or its policy. It stays as it is.
        path: of the file; its folder must exist.
        deterministic: the likeliest action; else one drawn with `noise`.
        value, logits: whether they are among the outputs.
        opset_version: of ONNX; that of torch's exporter if None.

    Returns:
        the path.

    Raises:
        TypeError: what is no policy of rlgates, or one with a distribution of its own.
        ValueError: logits of Box actions; `deterministic=False` with gSDE.
        ModuleNotFoundError: onnxscript is missing.
    """
    policy = getattr(model_or_policy, "policy", model_or_policy)
    if not isinstance(policy, SequencePolicy):
        raise TypeError(f"expected a model or a policy of rlgates, got {type(policy).__name__}.")
    table: dict[Any, Any] = {torch.ops.aten.sort.stable: _stable_sort()}
    names = _input_names(policy)
    step = PolicyStep(
        policy,
        names,
        check_flag("deterministic", deterministic),
        check_flag("value", value),
        check_flag("logits", logits),
    )
    examples = step.examples(_examples(policy.observation_space))
    asked = [name for name, wanted in (("value", value), ("logits", logits)) if wanted]
    # A batch axis needs a name of its own in each input; that all are as long is found out.
    batch = torch.export.Dim.DYNAMIC
    with _plain(policy, step), _quiet(), torch.no_grad():
        program = torch.onnx.export(
            step,
            tuple(examples.values()),
            input_names=list(examples),
            output_names=["action", "state_out", *asked],
            dynamic_shapes=(tuple({0: batch} for _ in examples),),
            opset_version=opset_version,
            custom_translation_table=table,
            external_data=False,
            verbose=False,
            dynamo=True,
        )
        initial = step.initial_state()
    assert program is not None
    core = policy.lstm_actor.core
    metadata = {
        "rlgates_version": rlgates.__version__,
        "policy": type(policy).__name__,
        "core": core.name,
        "core_kwargs": getattr(policy, "core_kwargs", {}),
        "state_size": len(initial),
        "actor_state_size": core.state_size,
        "initial_state": initial,
        "deterministic": deterministic,
    }
    program.model.metadata_props.update({k: json.dumps(v) for k, v in metadata.items()})
    program.save(str(path), external_data=False)
    return Path(path)


def _input_names(policy: SequencePolicy) -> list[str]:
    """Names of the observations: those of a Dict's parts."""
    space = policy.observation_space
    if not isinstance(space, spaces.Dict):
        return ["observation"]
    taken = {"state", "episode_start", "action_masks", "noise"} & set(space.spaces)
    if taken:
        raise ValueError(f"observations may not have the names of other inputs, got {taken}.")
    return list(space.spaces)


def _examples(space: spaces.Space[Any]) -> list[Tensor]:
    """Observations of two rows; sizes of 0 and 1 would be taken for fixed ones."""
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    return [torch.zeros(2, *(part.shape or ()), dtype=_dtype(part)) for part in parts]


def _dtype(space: spaces.Space[Any]) -> torch.dtype:
    kind = np.dtype(space.dtype)
    return torch.float32 if kind.kind == "f" else torch.from_numpy(np.zeros(1, kind)).dtype


def _stable_sort() -> Any:
    """`torch.sort` with equal values in their order, which torch's exporter does not know."""
    try:
        op: Any = importlib.import_module("onnxscript").opset18
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "export_onnx needs onnxscript: install rlgates with its extra [onnx]."
        ) from error

    def stable_sort(
        self: Any, stable: bool = True, dim: int = -1, descending: bool = False
    ) -> tuple[Any, Any]:
        # TopK is defined to keep equal values in their order.
        size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        found: tuple[Any, Any] = op.TopK(self, size, axis=dim, largest=int(descending))
        return found

    return stable_sort


@contextmanager
def _plain(policy: SequencePolicy, step: torch.nn.Module) -> Iterator[None]:
    """The policy as it acts, with cores that do nothing but what can be written down."""
    cores = [module for module in policy.modules() if isinstance(module, Core)]
    before = [(core, core.backend, core.debug) for core in cores]
    training = policy.training
    policy.set_training_mode(False)
    step.eval()
    for core in cores:
        core.backend, core.debug = "plain", False
    try:
        yield
    finally:
        policy.set_training_mode(training)
        for core, backend, debug in before:
            core.backend, core.debug = backend, debug


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's words on its own insides, and on torchvision, which is not needed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
