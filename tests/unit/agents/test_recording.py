"""CUDA graphs of agents: what a replay computes, with graphs that run on a CPU."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from support import tape
from support.toys import CRITICS, IMAGE, collected, model, parameters, toy
from torch import Tensor

from rlgates import RecurrentA2C, kernels
from rlgates.agents import compilation, recording
from rlgates.agents.recording import Recorded, copied
from rlgates.agents.sequences import rollouts
from rlgates.envs.torch import make_torch_env
from rlgates.kernels.recording import recording as recording_kernels

CPU = torch.device("cpu")
SHORT = {"explore_steps": 3, "distractor_steps": 5, "reward_steps": 5}
PLAIN = {"core_kwargs": {"backend": "plain"}}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs on the CPU, of operations of torch alone, as there are on a GPU."""
    monkeypatch.setattr(recording, "record", tape.record)
    monkeypatch.setattr(rollouts, "can_record", lambda device: True)
    monkeypatch.setattr(compilation.torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(kernels, "grid_features", lambda *_: None)
    monkeypatch.setattr(kernels, "supports_heads", lambda *_: False)
    monkeypatch.setattr(
        "rlgates.core._reset_masks", lambda starts: list(starts.unsqueeze(-1).unbind(0))
    )


def tensor_env(name: str = "rlgates/PassiveMatch-v0", **settings: Any) -> Any:
    env = make_torch_env(name, 8, 5, **(settings or SHORT))
    env._on_host = env._checks_values = False  # as where the device is not the CPU
    return env


def shared(**more: Any) -> dict[str, Any]:
    return {**CRITICS["shared, both gradients"], **PLAIN, **more}


AGENTS: dict[str, Callable[..., Any]] = {
    "tensors": lambda **more: model(tensor_env(), "CnnLstmPolicy", policy_kwargs=shared(), **more),
    "two cores": lambda **more: model(tensor_env(), "CnnLstmPolicy", policy_kwargs=PLAIN, **more),
    "chunks": lambda **more: model(
        tensor_env(), "CnnLstmPolicy", policy_kwargs=shared(), chunk_len=8, burn_in=2, **more
    ),
    "episodes of any length": lambda **more: model(
        tensor_env("rlgates/StatelessCartPole-v0", max_steps=9),
        policy_kwargs=shared(),
        **more,
    ),
    "arrays": lambda **more: model(toy(IMAGE), "CnnLstmPolicy", policy_kwargs=shared(), **more),
    "a smaller last minibatch": lambda **more: model(
        toy(IMAGE, n_envs=5), "CnnLstmPolicy", policy_kwargs=shared(), **more
    ),
    "A2C": lambda **more: model(
        tensor_env(),
        "CnnLstmPolicy",
        algorithm=RecurrentA2C,
        policy_kwargs=shared(),
        sum_over_time=True,
        **more,
    ),
    "schedules": lambda **more: model(
        toy(IMAGE),
        "CnnLstmPolicy",
        policy_kwargs=shared(),
        clip_range=lambda remaining: 0.1 + 0.1 * remaining,
        clip_range_vf=0.1,
        learning_rate=lambda remaining: 1e-3 * remaining,
        **more,
    ),
}


@pytest.mark.usefixtures("graphs")
@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.parametrize("name", AGENTS)
def test_graphs_compute_the_same(name: str) -> None:
    """Bit for bit: a replay is made of the same operations."""
    agents = []
    for mode in ("reduce-overhead", False):
        agent = AGENTS[name](compile=mode)
        agents.append(agent.learn(6 * agent.n_steps * agent.n_envs))
    one, other = agents
    replayed = [g for g in one._recorded.values() if g.replays]
    assert len(replayed) >= 2
    if one._recorded_steps is not None:
        assert any(g.replays for g in one._recorded_steps._graphs.values())
    assert not other._recorded
    assert torch.equal(parameters(one), parameters(other))
    for part in ("actions", "rewards", "episode_starts", "values", "advantages"):
        values = [getattr(agent.rollout_buffer.sequences, part) for agent in agents]
        assert torch.equal(*values), part
    infos = [[info["r"] for info in agent.ep_info_buffer] for agent in agents]
    assert infos[0] == infos[1]
    logs = [agent.logger.name_to_value for agent in agents]
    for key in logs[1]:
        if key.startswith("train/"):
            assert logs[0][key] == pytest.approx(logs[1][key], rel=1e-5, nan_ok=True), key


class Reader(BaseCallback):
    """Reads the rollout in its fifth step."""

    found: Any = None

    def _on_step(self) -> bool:
        agent: Any = self.model
        if self.num_timesteps // agent.n_envs % agent.n_steps == 5:
            names = "actions", "values", "rewards", "advantages"
            self.found = [getattr(agent.rollout_buffer, name).copy() for name in names]
        return True


@pytest.mark.usefixtures("graphs")
@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.parametrize("name", ["tensors", "episodes of any length"])
def test_callbacks_may_read_the_rollout(name: str) -> None:
    """A graph has written the step before the callback is called."""
    agents, readers = [], [Reader(), Reader(), None]
    for mode, reader in zip(("reduce-overhead", False, "reduce-overhead"), readers, strict=True):
        torch.manual_seed(0)
        agent = AGENTS[name](compile=mode)
        agents.append(agent.learn(6 * agent.n_steps * agent.n_envs, callback=reader))
    assert torch.equal(parameters(agents[0]), parameters(agents[2]))
    one, other, _ = readers
    assert one is not None
    assert other is not None
    for found, expected in zip(one.found, other.found, strict=True):
        assert (found == expected).all()
        assert not found[4:].any()  # a step counts after the callback
    assert one.found[1][:4].all()


@pytest.mark.usefixtures("graphs")
def test_learning_goes_on_with_new_graphs() -> None:
    agents = [AGENTS["tensors"](compile=mode) for mode in ("reduce-overhead", False)]
    for agent in agents:
        torch.manual_seed(0)
        for seed in (None, 3):
            if seed is not None:  # other episodes, and weights in other tensors
                agent.env.seed(seed)
                agent._last_obs = None
                agent.policy.lstm_actor.core.to(torch.float64).to(torch.float32)
            agent.learn(5 * 128, reset_num_timesteps=False)
    assert torch.equal(*(parameters(agent) for agent in agents))


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("name", ["tensors", "a smaller last minibatch"])
@pytest.mark.filterwarnings("ignore:batch_size")
def test_weights_may_be_frozen_before_and_while_they_learn(name: str) -> None:
    class Freeze(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.n_calls == 5 * agent.n_steps:
                agent.policy.value_net.requires_grad_(False)
                self.before = [p.clone() for p in agent.policy.value_net.parameters()]

    agents = []
    for mode in ("reduce-overhead", False):
        agent = AGENTS[name](compile=mode)
        agent.policy.features_extractor.requires_grad_(False)
        encoder = [p.clone() for p in agent.policy.features_extractor.parameters()]
        callback = Freeze()
        agent.learn(8 * agent.n_steps * agent.n_envs, callback)
        for before, part in ((encoder, "features_extractor"), (callback.before, "value_net")):
            weights = getattr(agent.policy, part).parameters()
            assert all(torch.equal(*pair) for pair in zip(before, weights, strict=True))
        agents.append(agent)
    assert torch.equal(*map(parameters, agents))


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("name", ["tensors", "arrays"])
def test_another_policy_is_recorded_anew(name: str) -> None:
    class Replace(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.n_calls == 5 * agent.n_steps:
                agent.policy = pickle.loads(pickle.dumps(agent.policy))
                with torch.no_grad():
                    agent.policy.action_net.bias[0] += 20

    agents = []
    for mode in ("reduce-overhead", False):
        agent = AGENTS[name](compile=mode)
        agents.append(agent.learn(6 * agent.n_steps * agent.n_envs, Replace()))
        assert (agent.rollout_buffer.actions == 0).all()
    assert torch.equal(*map(parameters, agents))


@pytest.mark.usefixtures("graphs")
def test_an_interrupted_step_does_not_shift_the_clock() -> None:
    agent = AGENTS["tensors"](compile="reduce-overhead")
    agent.learn(5 * 128)
    env = agent.env.env
    tick, clocks = env.tick, []

    def interrupted(ended: bool) -> None:
        if env._state["t"][0] == 6:
            raise KeyboardInterrupt
        tick(ended)

    env.tick = interrupted
    with pytest.raises(KeyboardInterrupt):
        agent.learn(3 * 128, reset_num_timesteps=False)
    env.tick = lambda ended: (tick(ended), clocks.append((env._clock, int(env._state["t"][0]))))
    agent.learn(5 * 128, reset_num_timesteps=False)
    assert len(clocks) == 5 * 16
    assert all(clock == t for clock, t in clocks)


@pytest.mark.usefixtures("graphs")
def test_a_callback_may_restore_the_state_of_the_environments() -> None:
    class Restore(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            env = self.training_env.env
            env.set_state(env.get_state())

    agents = []
    for mode in ("reduce-overhead", False):
        agents.append(AGENTS["tensors"](compile=mode))
        agents[-1].learn(8 * 128, Restore())
    assert torch.equal(*map(parameters, agents))


@pytest.mark.usefixtures("graphs")
def test_steps_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_it(function: Any, **_: Any) -> Any:
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(compilation.torch, "compile", compile_it)  # type: ignore[attr-defined]
    agent = AGENTS["tensors"](compile="reduce-overhead")
    for _ in range(3):
        agent.learn(4 * 128, reset_num_timesteps=False)
    assert sorted(compiled) == ["_step_within", "evaluate", "ppo_loss"]


def test_a_recording_begins_anew_with_other_shapes_and_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "record", tape.record)
    calls: list[Any] = []

    def scaled(x: dict[str, Tensor], factor: float) -> Tensor:
        calls.append((x["a"].shape, factor))
        return factor * x["a"]

    recorded = Recorded(scaled, CPU)
    for size, factor in ((2, 3.0), (4, 3.0), (4, 5.0)):
        calls.clear()
        for number in range(6):
            x = torch.full((size,), float(number))
            assert torch.equal(recorded({"a": x}, factor), factor * x)
        assert calls == [(torch.Size([size]), factor)] * 3  # twice to warm up, once to record


def test_recordings_of_other_shapes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "record", tape.record)
    calls: list[int] = []

    def doubled(x: Tensor) -> Tensor:
        calls.append(len(x))
        return 2 * x

    recorded = Recorded(doubled, CPU, most=2)
    for size in (1, 2, 1, 2, 1, 2, 1, 2):
        x = torch.rand(size)
        assert torch.equal(recorded(x), 2 * x)
    assert calls == [1, 2] * 3
    recorded(torch.rand(3))  # takes the place of the one that was used longest ago
    for size in (2, 1):
        recorded(torch.rand(size))
    assert calls == [1, 2] * 3 + [3, 1]


def test_results_are_overwritten_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "record", tape.record)
    recorded = Recorded(lambda x: x + 1, CPU)
    for _ in range(3):
        result = recorded(torch.zeros(2))
    kept = copied(result)
    recorded(torch.ones(2))
    assert torch.equal(kept, torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0))


def test_a_lack_of_memory_is_not_taken_for_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDAGraph", "device", "graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())
    monkeypatch.setattr(recording, "_stream", lambda device: None)

    def fails(error: RuntimeError) -> None:
        raise error

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        recording.record(lambda: fails(torch.OutOfMemoryError("CUDA out of memory.")), CPU, "")
    with pytest.raises(ValueError, match=r"never waits for the GPU: it waits\. Take care"):
        recording.record(lambda: fails(RuntimeError("it waits.")), CPU, "Take care.")


def test_graphs_are_not_saved(tmp_path: Any, graphs: None) -> None:
    agent = AGENTS["tensors"](compile="reduce-overhead").learn(5 * 128)
    agent.save(tmp_path / "agent.zip")
    loaded = type(agent).load(tmp_path / "agent.zip", env=tensor_env(), device="cpu")
    assert loaded._recorded == {}
    assert loaded._recorded_steps is None
    loaded.learn(128)


@pytest.mark.parametrize("name", ["rlgates/PassiveMatch-v0", "rlgates/StatelessCartPole-v0"])
def test_steps_in_place_are_steps(name: str) -> None:
    settings = SHORT if "Match" in name else {"max_steps": 9}
    envs = [tensor_env(name, **settings) for _ in range(2)]
    firsts = [env.reset()[0] for env in envs]
    assert torch.equal(*firsts)
    envs[1].make_variables_static()
    own = envs[1]._variables()
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        actions = torch.randint(2, (8,), generator=generator)
        obs, reward, done, _, info = envs[0].step(actions)
        may_end = envs[1].may_end
        results = envs[1].step_in_place(actions, may_end)
        envs[1].tick(may_end)
        for one, other in zip((obs, reward, done), results, strict=False):
            assert torch.equal(one, other)
        assert ("episode_return" in info) == may_end
        assert all(torch.equal(info[key], part) for key, part in results[3].items())
        assert all(a is b for a, b in zip(own, envs[1]._variables(), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("amp", [None, "bf16"])
def test_graphs_of_a_gpu(amp: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: Recorded, *args: Any) -> Any:
        with recording_kernels(), recording.aside(self.device):
            return self.function(*args)

    agents = []
    for replays in (True, False):
        env = make_torch_env("rlgates/PassiveMatch-v0", 64, 5, device="cuda", **SHORT)
        kwargs = {**CRITICS["shared, both gradients"], "amp": amp}
        agents.append(
            model(
                env,
                "CnnLstmPolicy",
                policy_kwargs=kwargs,
                compile="reduce-overhead",
                device="cuda",
            )
        )
        if not replays:
            monkeypatch.setattr(Recorded, "__call__", call)
        agents[-1].learn(6 * agents[-1].n_steps * 64)
    assert agents[0]._recorded["gradients"].replays
    weights = [parameters(agent) for agent in agents]
    torch.testing.assert_close(*weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_waits_for_the_gpu_cannot_be_recorded() -> None:
    recorded, x = Recorded(lambda x: x if x.sum() > 0 else -x, torch.device("cuda")), torch.ones(2)
    for _ in range(2):
        recorded(x.cuda())
    with pytest.raises(ValueError, match="never waits for the GPU"):
        recorded(x.cuda())


def test_amp_keeps_states_and_losses_in_float32() -> None:
    kwargs = {**CRITICS["shared, both gradients"], "amp": "bf16"}
    agent = model(toy(IMAGE), "CnnLstmPolicy", policy_kwargs=kwargs)
    sequences = collected(agent)
    assert sequences.values.dtype == sequences.log_probs.dtype == torch.float32
    assert sequences.states[0].pi.dtype == torch.float32
    exact = model(toy(IMAGE), "CnnLstmPolicy", policy_kwargs=CRITICS["shared, both gradients"])
    expected = collected(exact).values
    assert not torch.equal(sequences.values[0], expected[0])
    torch.testing.assert_close(sequences.values[0], expected[0], rtol=0, atol=2e-2)
    before = parameters(agent)
    agent.learn(64)
    assert not torch.equal(parameters(agent), before)
    assert parameters(agent).dtype == torch.float32


def test_unknown_amp() -> None:
    with pytest.raises(ValueError, match="unknown amp 'fp16'"):
        model(toy(IMAGE), "CnnLstmPolicy", policy_kwargs={"amp": "fp16"})
