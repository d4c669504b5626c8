"""`compile=True`: one graph for each part, the same updates, and nothing that waits for a GPU."""

from __future__ import annotations

import copy
import pickle
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.looking import NoLooking
from support.toys import BOX, CRITICS, IMAGE, Masked, collected, model, parameters, toy
from torch import Tensor

from rlgates import MaskableRecurrentPPO, RecurrentA2C, RecurrentPPO
from rlgates.agents import compilation
from rlgates.agents.compilation import Compiled
from rlgates.agents.sequences.tensor_vec_env import TensorVecEnv
from rlgates.envs import ENVS
from rlgates.envs.torch import make_torch_env

pytestmark = [
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++"))
    or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="there is no C++ compiler, or no headers of Python",
)
SHORT = {"explore_steps": 3, "distractor_steps": 5, "reward_steps": 5}

DICT = spaces.Dict({"eye": IMAGE, "arm": BOX, "last": spaces.Discrete(3)})
FORCE = spaces.Box(-1.0, 1.0, (2,))
AGENTS: dict[str, Callable[..., Any]] = {
    "separate critic": model,
    **{
        name: lambda critic=name, **more: model(policy_kwargs=CRITICS[critic], **more)
        for name in ("shared", "shared, both gradients", "none")
    },
    "image": lambda **more: model(toy(IMAGE), "CnnLstmPolicy", **more),
    "dictionary": lambda **more: model(toy(DICT), "MultiInputLstmPolicy", **more),
    "one choice": lambda **more: model(toy(spaces.Discrete(5)), **more),
    "choices": lambda **more: model(toy(spaces.MultiDiscrete([2, 3])), **more),
    "bits": lambda **more: model(toy(spaces.MultiBinary(4)), **more),
    "forces": lambda **more: model(toy(BOX, FORCE), **more),
    "gSDE": lambda **more: model(toy(BOX, FORCE), use_sde=True, **more),
    "several actions": lambda **more: model(toy(BOX, spaces.MultiDiscrete([2, 3])), **more),
    "switches": lambda **more: model(toy(BOX, spaces.MultiBinary(3)), **more),
    **{
        f"masked {action}": lambda action=action, **more: model(
            toy(BOX, action, kind=Masked), algorithm=MaskableRecurrentPPO, **more
        )
        for action in (spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3))
    },
    "A2C": lambda **more: model(algorithm=RecurrentA2C, **more),
    "clipped values": lambda **more: model(
        clip_range=lambda remaining: 0.1 + 0.1 * remaining, clip_range_vf=0.1, **more
    ),
    "a smaller last minibatch": lambda **more: model(toy(n_envs=5), **more),
    "chunks": lambda **more: model(chunk_len=8, burn_in=2, **more),
}


@pytest.fixture(autouse=True)
def _no_graphs() -> None:
    torch.compiler.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are made, by a backend that needs no compiler."""
    made: list[Any] = []
    compile_it = torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph

    def compiled(function: Any, *, options: Any, **how: Any) -> Any:
        return compile_it(function, backend=backend, **how)

    monkeypatch.setattr(compilation.torch, "compile", compiled)  # type: ignore[attr-defined]
    return made


def compare(one: Any, other: Any, tolerance: float = 2e-5) -> None:
    """The same rollout, losses and weights, of two agents that learned from the same seed."""
    actions = [agent.rollout_buffer.sequences.actions for agent in (one, other)]
    torch.testing.assert_close(*actions, rtol=1e-3, atol=1e-3)
    weights = parameters(one), parameters(other)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=tolerance)
    logs = [agent.logger.name_to_value for agent in (one, other)]
    names = [name for name in logs[0] if name.startswith("train/")]
    assert any("loss" in name for name in names)
    for name in names:
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-2, abs=1e-4, nan_ok=True), name


# ---- graphs ------------------------------------------------------------------------------------


QUICK = ("separate critic", "dictionary", "switches", "A2C", "a smaller last minibatch")


@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in AGENTS]
)
def test_each_part_is_one_graph(name: str, graphs: list[Any]) -> None:
    """`fullgraph=True` raises at a graph break; another shape would make another graph."""
    agent = AGENTS[name](compile=True)
    agent.learn(3 * agent.n_steps * agent.n_envs)
    parts = {"act", "evaluate"} | (set() if name == "A2C" else {"ppo_loss"})
    assert set(agent._compiled) == parts
    assert len(graphs) == len(parts)
    eager = AGENTS[name]()
    eager.learn(3 * agent.n_steps * agent.n_envs)
    compare(agent, eager)


def test_environments_of_tensors_are_one_graph(graphs: list[Any]) -> None:
    agents = []
    for more in ({"compile": True}, {}):
        env = make_torch_env("rlgates/PassiveMatch-v0", 4, 5, **SHORT)
        agents.append(model(env, "CnnLstmPolicy", **more))
        agents[-1].learn(3 * 64)  # episodes of 13 steps end in all rollouts
    assert isinstance(agents[0].env.env.advance, Compiled)
    assert not isinstance(agents[1].env.env.advance, Compiled)
    assert len(graphs) == 4
    compare(*agents)


def steps_of(env_id: str, compile: bool, **settings: Any) -> list[Tensor]:
    """Observations, rewards and dones of random actions."""
    env = TensorVecEnv(make_torch_env(env_id, 3, 0, **settings))
    env.compile(compile)
    assert isinstance(env.env.advance, Compiled) == compile
    results = [env.reset()]
    env.action_space.seed(0)
    for _ in range(4):
        actions = torch.as_tensor(np.stack([env.action_space.sample() for _ in range(3)]))
        results += env.step(actions)[:3]
    return [part for one in results for part in (one.values() if isinstance(one, dict) else [one])]


@pytest.mark.filterwarnings("ignore:add_previous_action")
@pytest.mark.parametrize("env_id", ENVS)
def test_the_steps_of_every_game_are_one_graph(env_id: str, graphs: list[Any]) -> None:
    for view in ({}, {"add_previous_action": True}):
        graphs.clear()
        compiled, plain = (steps_of(env_id, option, **view) for option in (True, False))
        assert 1 <= len(graphs) <= 2  # the first states may have other strides
        assert all(map(torch.equal, compiled, plain))


def test_environments_without_a_graph_again(graphs: list[Any]) -> None:
    env = make_torch_env("rlgates/PassiveMatch-v0", 4, 5, **SHORT)
    for option, kind in ((True, True), ("default", "default"), (False, None)):
        agent = model(env, "CnnLstmPolicy", compile=option)
        agent.learn(64)
        assert getattr(env.advance, "mode", None) == kind
    assert not isinstance(env.advance, Compiled)


@needs_compiler
def test_compiled_code_computes_the_same() -> None:
    """All but this test stop before code is made; this one runs it."""
    one, other = (model(compile=option).learn(128) for option in ("default", False))
    assert all(graph.works for graph in one._compiled.values())
    compare(one, other)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.parametrize("name", AGENTS)
def test_compiled_code_of_all_agents(name: str) -> None:
    compare(AGENTS[name](compile=True).learn(128), AGENTS[name]().learn(128))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_modes(mode: Any) -> None:
    compare(model(compile=mode).learn(192), model().learn(192))


# ---- options, files, faults --------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_options(algorithm: Any) -> None:
    with pytest.raises(ValueError, match="Did you mean 'reduce-overhead'"):
        model(algorithm=algorithm, compile="reduce_overhead")
    with pytest.raises(TypeError, match="compile must be True, False or one of default"):
        model(algorithm=algorithm, compile=1)


def test_files_keep_the_option_and_no_code(tmp_path: Path, graphs: list[Any]) -> None:
    agent = model(algorithm=RecurrentA2C, compile="max-autotune-no-cudagraphs").learn(64)
    for name, kind in (("model.zip", "sb3"), ("model.rlgates", "safe")):
        agent.save(tmp_path / name, format=kind)
        loaded = RecurrentA2C.load(tmp_path / name, env=toy(), device="cpu")
        assert loaded.compile == "max-autotune-no-cudagraphs"
        assert loaded._compiled == {}
        torch.testing.assert_close(parameters(loaded), parameters(agent))
        loaded.learn(64)
        assert set(loaded._compiled) == {"act", "evaluate"}
        assert RecurrentA2C.load(tmp_path / name, compile=False).compile is False


def test_files_without_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of versions that did not have it."""
    from rlgates.agents.files import models

    agent = model()
    with monkeypatch.context() as patch:
        settings = {k: v for k, v in models.ALGORITHMS["RecurrentPPO"].items() if k != "compile"}
        patch.setitem(models.ALGORITHMS, "RecurrentPPO", settings)
        patch.setattr(models, "_LEFT_OUT", (*models._LEFT_OUT, "compile"))
        patch.setattr(models, "_with_defaults", lambda found: found)
        agent.save(tmp_path / "model.rlgates", format="safe")
    assert RecurrentPPO.load(tmp_path / "model.rlgates").compile is False


def test_without_a_compiler_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    def fails(function: Any, **_: Any) -> Any:
        def raises(*_: Any) -> Any:
            raise InductorError(InvalidCxxCompiler(), None)

        return raises

    monkeypatch.setattr(compilation.torch, "compile", fails)  # type: ignore[attr-defined]
    agent = model(compile=True)
    with pytest.warns(UserWarning, match="has no effect, .*No working C\\+\\+ compiler") as found:
        agent.learn(64)
    assert len(found) == 1
    assert torch.equal(parameters(agent), parameters(model().learn(64)))


def test_a_policy_that_is_not_one_graph(graphs: list[Any]) -> None:
    from rlgates.agents import MlpLstmPolicy

    class Looks(MlpLstmPolicy):
        def values_of(self, latents: Any) -> Tensor:
            values = super().values_of(latents)
            return values if values.mean() > 0 else -values

    agent = model(policy=Looks, compile=True)
    with pytest.raises(ValueError, match=r"compile=True needs Looks\.act to be one graph"):
        agent.learn(64)
    agent.compile = False
    agent.learn(64)


def test_a_copy_computes_with_its_own_weights(graphs: list[Any]) -> None:
    agent = model(algorithm=RecurrentA2C, compile=True).learn(64)
    for twin in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert twin._compiled == {}
        take_first_action(twin.policy)
        before, copied = parameters(agent), parameters(twin)
        twin.learn(64)
        assert (twin.rollout_buffer.actions == 0).all()
        assert torch.equal(parameters(agent), before)
        assert not torch.equal(parameters(twin), copied)


def test_another_policy_is_compiled_anew(graphs: list[Any]) -> None:
    agent = model(algorithm=RecurrentA2C, compile=True).learn(64)
    agent.policy = copy.deepcopy(agent.policy)
    take_first_action(agent.policy)
    before = parameters(agent)
    agent.learn(64)
    assert (agent.rollout_buffer.actions == 0).all()
    assert not torch.equal(parameters(agent), before)


def take_first_action(policy: Any) -> None:
    with torch.no_grad():
        policy.action_net.weight.zero_()
        policy.action_net.bias.copy_(torch.tensor([20.0, -20.0, -20.0]))


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_many_agents_in_a_process(graphs: list[Any]) -> None:
    """torch gives up a function after eight graphs: each agent has its own."""
    for size in range(10):
        assert torch.equal(Compiled(double, True)(torch.ones(size + 2)), 2 * torch.ones(size + 2))
    assert len(graphs) == 10


# ---- nothing waits for a GPU -------------------------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What code does on the CPU alone, because looking costs nothing there, is left out."""
    monkeypatch.setattr(
        "rlgates.core._reset_masks", lambda starts: list(starts.unsqueeze(-1).unbind(0))
    )

    def leave(*_: Any) -> Any:
        raise AssertionError("a tensor has left the device")

    for name in ("numpy", "cpu", "tolist", "__array__"):
        monkeypatch.setattr(Tensor, name, leave)


def test_the_mode_finds_a_look() -> None:
    with NoLooking(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3).sum().item()
    with NoLooking(), pytest.raises(AssertionError, match="waits for the device"):
        bool(torch.ones(3).any())
    with NoLooking(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3)[torch.ones(3) > 0]
    with NoLooking():
        torch.ones(3)[torch.tensor([0, 2])]


@pytest.mark.parametrize("critic", CRITICS)
def test_a_minibatch_does_not_wait(critic: str, request: pytest.FixtureRequest) -> None:
    from rlgates.agents.sequences.updates import MeanMetrics

    agent = model(toy(IMAGE), "CnnLstmPolicy", policy_kwargs=CRITICS[critic])
    batches = collected(agent).minibatches(32, agent.policy)
    agent.policy.set_training_mode(True)
    request.getfixturevalue("as_on_a_gpu")
    means, before = MeanMetrics(), parameters(agent)
    with NoLooking():
        for batch in batches:
            means.add(**agent._compute_gradients(batch, agent._loss_settings()))
            agent._step_optimizer()
    assert not torch.equal(parameters(agent), before)


def test_a_rollout_does_not_wait(request: pytest.FixtureRequest) -> None:
    env = make_torch_env("rlgates/PassiveMatch-v0", 4, 5, **SHORT)
    agent = model(env, "CnnLstmPolicy")
    agent.learn(64)
    assert isinstance(agent.env, TensorVecEnv)
    env._on_host = env._checks_values = False  # as where the device is not the CPU
    _, callback = agent._setup_learn(64, reset_num_timesteps=False)
    agent.env.device = torch.device("meta")  # another one, too
    agent.env.episodes = lambda most: []  # reports finished episodes: once a rollout
    agent._check_rollout = lambda: None  # once a rollout
    request.getfixturevalue("as_on_a_gpu")
    with NoLooking():
        assert agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, 16)
