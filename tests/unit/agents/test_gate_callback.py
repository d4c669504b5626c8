"""Recording gates during training: what is recorded, when, and that nothing else changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.policies import BasePolicy
from support.toys import BOX, IMAGE, collected, model, parameters, toy

import rlgates
from rlgates import GateCallback, MlpLstmPolicy, MultiInputLstmPolicy, RecurrentPPO, timescale
from rlgates.agents import trace_gates
from rlgates.registry import CORES

MIXED = spaces.Dict(a=BOX, b=spaces.Discrete(3))
AGENTS: dict[str, dict[str, Any]] = {
    "rlgates": {"policy": "MlpLstmPolicy"},
    "our policy in sb3-contrib": {"policy": MlpLstmPolicy, "algorithm": sb3_contrib.RecurrentPPO},
    "their policy": {"policy": "MlpLstmPolicy", "algorithm": "contrib"},
}


def make(kind: str, env: Any = None, folder: Path | None = None, **policy_kwargs: Any) -> Any:
    """An agent with 4 environments and rollouts of 16 steps."""
    choice = dict(AGENTS[kind])
    if choice.pop("algorithm", None) == "contrib":
        return sb3_contrib.RecurrentPPO(
            choice["policy"],
            env or toy(),
            policy_kwargs={"lstm_hidden_size": 7, **policy_kwargs},
            n_steps=16,
            batch_size=32,
            n_epochs=2,
            seed=0,
            device="cpu",
            tensorboard_log=folder and str(folder),
        )
    kwargs = {"core": "lstm", **policy_kwargs}
    log = folder and str(folder)
    return model(env, policy_kwargs=kwargs, tensorboard_log=log, **AGENTS[kind])


def recorded(folder: Path) -> tuple[dict[str, list[Any]], dict[str, list[tuple[int, float]]]]:
    """Histograms and scalars of all event files, by tag, that are about gates."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    histograms: dict[str, list[Any]] = {}
    numbers: dict[str, list[tuple[int, float]]] = {}
    for run in sorted({file.parent for file in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(run), {"scalars": 0, "histograms": 0})
        events.Reload()
        for tag in events.Tags()["histograms"]:
            histograms.setdefault(tag, []).extend(events.Histograms(tag))
        for tag in events.Tags()["scalars"]:
            if tag.startswith("gates"):
                points = [(event.step, event.value) for event in events.Scalars(tag)]
                numbers.setdefault(tag, []).extend(points)
    return histograms, numbers


class ByHand(BaseCallback):
    """The forget gates of every step from the state stored with it, by the LSTM's equation."""

    def __init__(self, critic: bool) -> None:
        super().__init__()
        self.critic = critic

    def _on_rollout_start(self) -> None:
        self.hidden: list[torch.Tensor] = []

    def _on_step(self) -> bool:
        """Keep the state before this step."""
        states = self.locals.get("states", self.model._last_lstm_states)
        state = states.vf if self.critic else states.pi
        before = state[0][0] if isinstance(state, tuple) else state[:, : state.shape[1] // 2]
        ended = torch.as_tensor(self.model._last_episode_starts)
        self.hidden.append(torch.where(ended[:, None], 0.0, before))
        return True

    @torch.no_grad()
    def _on_rollout_end(self) -> None:
        policy: Any = self.model.policy
        buffer: Any = self.model.rollout_buffer
        lstm = policy.lstm_critic if self.critic else policy.lstm_actor
        extractor = policy.vf_features_extractor if self.critic else policy.pi_features_extractor
        weights = dict(getattr(lstm, "core", lstm).named_parameters())
        ih, hh, b_ih, b_hh = (
            next(value for name, value in weights.items() if key in name).chunk(4)[1]
            for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        gates = []
        for t in range(self.model.n_steps):
            obs = buffer.observations
            now = (
                {key: torch.as_tensor(value[t]) for key, value in obs.items()}
                if isinstance(obs, dict)
                else torch.as_tensor(obs[t])
            )
            x = BasePolicy.extract_features(policy, now, extractor)
            h = self.hidden[t]
            gates.append(torch.sigmoid(x @ ih.T + h @ hh.T + b_ih + b_hh))
        self.gates = torch.stack(gates)


@pytest.mark.parametrize("critic", [False, True], ids=["actor", "critic"])
@pytest.mark.parametrize("kind", AGENTS)
def test_recorded_gates_follow_the_equation(kind: str, critic: bool, tmp_path: Path) -> None:
    agent = make(kind, folder=tmp_path, share_features_extractor=False)
    truth = ByHand(critic)
    # The second rollout begins in the middle of episodes.
    agent.learn(128, callback=[truth, GateCallback(every=1, envs=3, critic=critic)])
    prefix = "gates_critic" if critic else "gates"
    histograms, numbers = recorded(tmp_path)
    gates = truth.gates[:, :3]
    for name, values in (("forget", gates), ("log10_timescale", timescale(gates).log10())):
        first, last = histograms[f"{prefix}/{name}"]
        assert (first.step, last.step) == (64, 128)
        value = last.histogram_value
        assert value.num == sum(value.bucket) == 16 * 3 * 7
        assert value.sum == pytest.approx(values.sum().item(), rel=1e-5)
        assert value.min == pytest.approx(values.min().item(), rel=1e-5)
        assert value.max == pytest.approx(values.max().item(), rel=1e-5)
        for mark, share in (("q10", 0.1), ("median", 0.5), ("q90", 0.9)):
            step, number = numbers[f"{prefix}/{name}/{mark}"][-1]
            assert step == 128
            assert number == pytest.approx(values.quantile(share).item(), rel=1e-5)
    assert any(tag.startswith("gates_critic/") for tag in histograms) is critic
    assert histograms["gates/forget"][-1].histogram_value.num == 16 * 3 * 7


@pytest.mark.parametrize("space", [MIXED, IMAGE], ids=["dict", "image"])
def test_other_observations(space: spaces.Space[Any]) -> None:
    name = "MultiInputLstmPolicy" if space is MIXED else "CnnLstmPolicy"
    agent = model(toy(space), name, policy_kwargs={"core": "lstm"})
    truth, gates = ByHand(False), GateCallback(envs=None, keep=True)
    agent.learn(64, callback=[truth, gates])
    assert gates.first is not None
    torch.testing.assert_close(gates.first.forget[0], truth.gates)


@pytest.mark.parametrize("kwargs", [{"n_lstm_layers": 2}, {"lstm_kwargs": {"bias": False}}])
def test_an_lstm_of_sb3_contrib_is_traced(kwargs: dict[str, Any]) -> None:
    agent = make("their policy", **kwargs)
    gates = GateCallback(envs=None, keep=True)
    agent.learn(64, callback=gates)
    trace = gates.first
    assert trace is not None
    layers = kwargs.get("n_lstm_layers", 1)
    assert [tuple(layer.shape) for layer in trace.forget] == layers * [(16, 4, 7)]

    # From there on they give the same outputs, so they hold the same state.
    lstm = make("their policy", **kwargs).policy
    obs = torch.randn(9, 4, 3)
    pair = tuple(torch.randn(layers, 4, 7) for _ in range(2))
    expected, _ = lstm.lstm_actor(obs, pair)
    torch.testing.assert_close(trace_gates(lstm, obs, state=pair).outputs, expected.detach())


SMALL = {"rma": {"latent_size": 6, "num_slots": 8, "top_k": 2}}
UNGATED = (
    "none",
    "nru",
    "elman",
    "indrnn",
    "cornn",
    "lmu",
    "fwp",
    "transformer",
    "gtrxl",
    "frame_stack",
    "frame_conv",
    "positional",
    "linear_transformer",
    "shm",
)


@pytest.mark.parametrize("core", CORES)
def test_every_core(core: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"lstm_hidden_size": 8, "core_kwargs": SMALL.get(core, {})}
    agent = make("rlgates", folder=tmp_path, core=core, **options)
    gates = GateCallback(envs=2, keep=True)
    agent.learn(64, callback=gates)
    histograms, _ = recorded(tmp_path)
    if core in UNGATED:
        assert histograms == {}
        assert caplog.messages == [f"core {core!r} has no forget gates to record."]
        return
    assert gates.first is not None
    (forget,) = gates.first.forget
    assert forget.shape[:2] == (16, 2)
    for name in ("forget", "log10_timescale"):
        (event,) = histograms[f"gates/{name}"]
        assert event.histogram_value.num == forget.numel()


def test_each_layer_has_its_own_tags(tmp_path: Path) -> None:
    agent = make("rlgates", folder=tmp_path, core="f_lstm", n_lstm_layers=2)
    agent.learn(64, callback=GateCallback(critic=True))
    expected = {
        f"{prefix}/{name}_{layer}"
        for prefix in ("gates", "gates_critic")
        for name in ("forget", "log10_timescale")
        for layer in (0, 1)
    }
    histograms, numbers = recorded(tmp_path)
    assert histograms.keys() == expected
    assert numbers.keys() == {f"{tag}/{m}" for tag in expected for m in ("q10", "median", "q90")}


def test_it_records_after_the_first_rollout_and_every_few(tmp_path: Path) -> None:
    agent = make("rlgates", folder=tmp_path)
    agent.learn(64 * 4, callback=GateCallback(every=3))
    # A new callback does not restart the count in a continued training.
    agent.learn(64 * 3, callback=GateCallback(every=3), reset_num_timesteps=False)
    histograms, numbers = recorded(tmp_path)
    steps = [64 * k for k in (1, 3, 6)]
    assert [event.step for event in histograms["gates/log10_timescale"]] == steps
    assert [step for step, _ in numbers["gates/forget/median"]] == steps


def test_exponential_decay(tmp_path: Path) -> None:
    agent = make("rlgates", folder=tmp_path)
    gates = GateCallback(decay="exponential", keep=True)
    agent.learn(64, callback=gates)
    assert gates.last is not None
    expected = (-1 / gates.last.forget[0].log()).log10().median()
    ((_, median),) = recorded(tmp_path)[1]["gates/log10_timescale/median"]
    assert median == pytest.approx(expected.item(), abs=1e-2)


@pytest.mark.parametrize("kind", AGENTS)
def test_training_is_not_changed(kind: str, tmp_path: Path) -> None:
    plain = make(kind).learn(192)
    gates = GateCallback(every=1, critic=True, keep=True)
    watched = make(kind, folder=tmp_path).learn(192, callback=gates)
    assert torch.equal(parameters(plain), parameters(watched))


def test_nothing_is_kept_unless_asked() -> None:
    plain, keeping = GateCallback(every=1), GateCallback(every=1, keep=True)
    make("rlgates").learn(192, callback=[plain, keeping])
    assert plain.first is plain.last is None
    assert keeping.first is not None
    assert keeping.last is not None
    assert not torch.equal(keeping.first.forget[0], keeping.last.forget[0])


def test_a_core_without_gates_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gates = GateCallback(every=1, critic=True, keep=True)
    agent = make("rlgates", folder=tmp_path, core="none")
    agent.learn(192, callback=gates)
    agent.learn(192, callback=gates)
    assert [record.getMessage() for record in caplog.records] == [
        "core 'none' has no forget gates to record."
    ]
    assert caplog.records[0].levelno == logging.WARNING
    assert recorded(tmp_path) == ({}, {})
    assert gates.first is None


def test_printed_tables_have_only_scalars(capsys: pytest.CaptureFixture[str]) -> None:
    agent = make("rlgates")
    agent.set_logger(configure(None, ["stdout"]))
    agent.learn(64, callback=GateCallback())
    printed = capsys.readouterr().out
    assert "forget/median" in printed
    assert "log10_timescale/q90" in printed
    assert "[" not in printed


def test_tracing_does_not_change_the_policy() -> None:
    agent = make("rlgates", core="ur_lstm")
    before, obs = torch.get_rng_state(), np.zeros((5, 4, 3), np.float32)
    for training in (True, False):
        agent.policy.set_training_mode(training)
        trace = trace_gates(agent.policy, obs)
        assert agent.policy.training is agent.policy.lstm_actor.training is training
    assert torch.equal(before, torch.get_rng_state())
    assert trace.forget[0].shape == (5, 4, 7)
    episode_starts = np.zeros((5, 4))
    episode_starts[2] = 1
    again = trace_gates(agent.policy, obs, episode_starts).forget[0]
    torch.testing.assert_close(again[2:], trace.forget[0][:3])


def test_a_mapping_of_observations() -> None:
    agent = model(toy(MIXED), MultiInputLstmPolicy)
    obs = {"a": torch.zeros(5, 4, 3), "b": np.ones((5, 4), np.int64)}
    assert trace_gates(agent.policy, obs).forget[0].shape == (5, 4, 7)


@pytest.mark.parametrize("critic", [False, True], ids=["actor", "critic"])
@pytest.mark.parametrize("method", ["preprocess", "extract_features", "core_inputs"])
def test_own_inputs_of_the_core_are_traced(method: str, critic: bool) -> None:
    class Own(MlpLstmPolicy):
        pass

    def own(self: Any, *args: Any) -> Any:
        result = getattr(super(Own, self), method)(*args)
        if method == "core_inputs":
            cores = [(core, -x, state + 1) for core, x, state in result.cores]
            return result._replace(cores=cores)
        return tuple(-x for x in result) if isinstance(result, tuple) else -result

    setattr(Own, method, own)
    agent = model(policy=Own, policy_kwargs={"share_features_extractor": False})
    buffer = collected(agent)
    obs, episode_starts, states = buffer.observations, buffer.episode_starts, buffer.states[0]
    expected = agent.policy.core_outputs(obs.flatten(0, 1), states, episode_starts)
    state = states.vf if critic else states.pi
    trace = trace_gates(agent.policy, obs, episode_starts, state, critic=critic)
    outputs = expected.vf if critic else expected.pi
    torch.testing.assert_close(trace.outputs.flatten(0, 1), outputs.detach())


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"episode_starts must be \(T, B\) = \(5, 4\), got \(5,\)"):
        trace_gates(make("rlgates").policy, np.zeros((5, 4, 3)), np.zeros(5))
    for kwargs, message in (
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"envs": 0}, "envs must be at least 1, got 0"),
        ({"decay": "lineal"}, "Did you mean 'linear'"),
    ):
        with pytest.raises(ValueError, match=message):
            GateCallback(**kwargs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keep must be True or False"):
        GateCallback(keep=1)  # type: ignore[arg-type]


def test_models_without_such_a_core_are_refused_before_training() -> None:
    shared = make("rlgates", shared_lstm=True, enable_critic_lstm=False)
    with pytest.raises(ValueError, match="enable_critic_lstm=True"):
        shared.learn(64, callback=GateCallback(critic=True))
    plain = stable_baselines3.PPO("MlpPolicy", toy(), n_steps=16, device="cpu")
    with pytest.raises(TypeError, match=r"recurrent policy .* got ActorCriticPolicy"):
        plain.learn(64, callback=GateCallback())
    assert shared.num_timesteps == plain.num_timesteps == 0
    with pytest.raises(ValueError, match=r"observations must be \(T, B, ...\), got \(3,\)"):
        trace_gates(shared.policy, np.zeros(3))


def test_the_callback_is_exported() -> None:
    assert rlgates.GateCallback is rlgates.agents.GateCallback
    assert "GateCallback" in dir(rlgates)
    assert RecurrentPPO is rlgates.RecurrentPPO


def test_former_names_warn() -> None:
    policy, obs = make("rlgates").policy, np.zeros((5, 4, 3), np.float32)
    episode_starts = np.arange(20).reshape(5, 4) % 3 == 0
    expected = trace_gates(policy, obs, episode_starts).forget[0]
    with pytest.warns(DeprecationWarning, match="trace_gates"):
        observe_gates = rlgates.agents.observe_gates
    with pytest.warns(DeprecationWarning, match="episode_starts"):
        assert torch.equal(observe_gates(policy, obs, starts=episode_starts).forget[0], expected)
