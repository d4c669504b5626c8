"""The old names of public things work for one release, with a warning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch

import rlgates
import rlgates.core
from rlgates import make_core
from rlgates.envs import BatchedEnv, EnvSpec, View, make_env_spec
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import TorchEnv
from rlgates.experiments.tasks import Copy, make_sequence_model, make_task

ID = "rlgates/MemoryChain-v0"
REGISTRY = (
    *("ALIASES", "COMMON_OPTIONS", "CORES", "check_options", "core_names", "core_options"),
    *("list_cores", "make_core"),
)
# By module: new names by old ones, of the same module if they have no dot.
RENAMED = {
    "rlgates": {"Observation": "rlgates.core.GateTrace"},
    "rlgates.core": {"Observation": "GateTrace"},
    "rlgates.cores": {name: f"rlgates.registry.{name}" for name in REGISTRY},
    "rlgates.kernels": {
        "Linear": "LinearStep",
        "FusedCell": "CellSpec",
        "GatedLayer": "CellSpec",
        "Loop": "CellSpec",
        "Recurrence": "CellSpec",
        "Scan": "LinearScan",
    },
    "rlgates.envs": {"Task": "EnvSpec", "TASKS": "ENVS", "make_task": "make_env_spec"},
    "rlgates.envs.gym": {"TaskEnv": "GymEnv"},
    "rlgates.envs.vector": {"TaskVectorEnv": "GymVectorEnv"},
    "rlgates.experiments.tasks": {
        "Generated": "GeneratedTask",
        "Published": "PublishedResult",
        "Reader": "SequenceModel",
        "make_reader": "make_sequence_model",
    },
    "rlgates.experiments.configs.agent": {
        "TrainConfig": "AgentConfig",
        "PRESETS": "rlgates.experiments.configs.presets.PRESETS",
        "preset": "rlgates.experiments.configs.presets.preset",
        "parse_pairs": "rlgates.experiments.configs.base.parse_pairs",
    },
    "rlgates.experiments.configs.task": {"SupervisedConfig": "TaskConfig"},
}


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()],
)
def test_old_names_are_the_new_ones(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is deprecated .* use .*{new}\."):
        value = getattr(importlib.import_module(module), old)
    assert value is getattr(importlib.import_module(home or module), name)


def test_old_arguments_and_methods_of_cores() -> None:
    core, x = make_core("lstm", 3, 4), torch.ones(2, 5, 3)
    episode_starts = torch.eye(2, 5).bool()
    with pytest.warns(DeprecationWarning, match="use episode_starts"):
        outputs, _ = core(x, starts=episode_starts)
    assert torch.equal(outputs, core(x, None, episode_starts)[0])
    with pytest.warns(DeprecationWarning, match=r"use Core\.trace_gates"):
        trace = core.observe(x, None, starts=episode_starts)
    assert torch.equal(trace.forget[0], core.trace_gates(x, None, episode_starts).forget[0])


def test_warnings_are_of_the_line_that_uses_the_old_name() -> None:
    """By default Python shows those of `__main__` alone."""
    core, x = make_core("lstm", 3, 4), torch.ones(2, 5, 3)
    episode_starts = torch.eye(2, 5).bool()

    def imported() -> Any:
        from rlgates import Observation  # type: ignore[attr-defined]

        return Observation

    uses: list[Callable[[], Any]] = [
        lambda: core(x, starts=episode_starts),
        lambda: core.observe(x),
        lambda: rlgates.Observation,
        lambda: rlgates.core.Observation,
        imported,
    ]
    for hooked in (False, True):
        if hooked:  # torch then calls `forward` in another function
            core.register_forward_hook(lambda *_: None)
        for use in uses:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                use()
            assert {warning.filename for warning in caught} == {__file__}
    with pytest.raises(TypeError, match=r"give episode_starts or starts, .* got both"):
        core(x, None, episode_starts, starts=episode_starts)


def test_old_attributes_of_environments() -> None:
    spec = make_env_spec(ID)
    with pytest.warns(DeprecationWarning, match="use BatchedEnv.spec"):
        assert BatchedEnv(spec, 2).task is spec
    with pytest.warns(DeprecationWarning, match="use env_spec"):
        assert gymnasium.make(ID).unwrapped.task == spec  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="use 'env_spec'"):
        assert make_vec_env(ID, 2).get_attr("task") == [spec, spec]
    with pytest.warns(DeprecationWarning, match="use parameters"):
        assert spec.choices == spec.parameters


@pytest.mark.parametrize("kind", [BatchedEnv, TorchEnv])
def test_old_arguments_of_environments(kind: Any) -> None:
    spec = make_env_spec(ID)
    with pytest.warns(DeprecationWarning, match="the argument 'task' is deprecated.* use 'spec'"):
        assert kind(task=spec, num_envs=2).spec is spec


def test_the_old_key_of_revealed_parameters() -> None:
    _, info = gymnasium.make(ID).reset(seed=0, options={"reveal": True})
    assert info["choices"] == info["parameters"]


def test_a_view_has_all_members_of_its_spec() -> None:
    """A member of `EnvSpec` that `View` forgot would silently have the default of the base."""
    members = {name for name in vars(EnvSpec) if not name.startswith("_")}
    assert members - {"choices", "memory_player", "reactive_player"} <= set(vars(View))


def test_old_names_of_batches_and_models() -> None:
    batch = make_task("lte_addition").sample(3, torch.Generator().manual_seed(0))
    with pytest.warns(DeprecationWarning, match=r"use Batch\.episode_starts"):
        assert batch.starts is batch.episode_starts
    task = Copy(2)
    model = make_sequence_model(task, "gru", 4)
    inputs = task.sample(3, torch.Generator().manual_seed(0)).inputs
    with pytest.warns(DeprecationWarning, match=r"use SequenceModel\.unroll"):
        predictions, _ = model.read(inputs)
    assert torch.equal(predictions, model(inputs))
