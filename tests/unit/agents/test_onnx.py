"""A policy as an ONNX file acts as the model does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize
from support.cases import every_family, small
from support.toys import BOX, CRITICS, IMAGE, model, toy

import rlgates
from rlgates import MaskableRecurrentPPO, MlpLstmPolicy, RecurrentA2C
from rlgates.agents import export_onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
pytest.importorskip("onnxscript", reason="needs the extra [onnx]")

TASKS: dict[str, tuple[str, spaces.Space[Any], spaces.Space[Any]]] = {
    "discrete": ("MlpLstmPolicy", BOX, spaces.Discrete(3)),
    "box": ("MlpLstmPolicy", BOX, spaces.Box(-0.02, 0.01, (2, 2))),
    "box_float64": ("MlpLstmPolicy", BOX, spaces.Box(-0.02, 0.01, (2,), np.float64)),
    "multi_discrete": ("MlpLstmPolicy", spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([2, 4])),
    "multi_binary": ("MlpLstmPolicy", spaces.Discrete(4), spaces.MultiBinary(3)),
    "image": ("CnnLstmPolicy", IMAGE, spaces.Discrete(3)),
    "dict": (
        "MultiInputLstmPolicy",
        spaces.Dict(a=IMAGE, b=spaces.Discrete(3), c=BOX),
        spaces.Discrete(3),
    ),
}


def some(cases: Iterable[str], *quick: str) -> list[Any]:
    """Cases, of which the others are slow: an export takes seconds."""
    return [c if c in quick else pytest.param(c, marks=pytest.mark.slow) for c in cases]


def agent(task: str = "discrete", core: str = "ur_lstm", **kwargs: Any) -> Any:
    policy, observation, action = TASKS[task]
    learner = model(toy(observation, action), policy, policy_kwargs={"core": core, **kwargs})
    tell_actions_apart(learner)
    return learner


def tell_actions_apart(learner: Any) -> None:
    """Let its likeliest action depend on what it saw, which it hardly does in some new cores."""
    torch.manual_seed(0)
    head, latents = learner.policy.action_net, []
    env, states = learner.get_env(), None
    obs, episode_starts = env.reset(), np.ones(4, bool)
    with torch.no_grad():
        for parameter in learner.policy.lstm_actor.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        head.weight.mul_(100.0)
        hook = head.register_forward_hook(lambda _, inputs, __: latents.append(inputs[0]))
        for _ in range(30):
            action, states = learner.predict(obs, states, episode_starts, deterministic=True)
            obs, _, episode_starts, _ = env.step(action)
        hook.remove()
        head.bias.copy_(-head.weight @ torch.cat(latents).mean(0))


def session(learner: Any, folder: Path, *args: Any, **kwargs: Any) -> Any:
    return onnxruntime.InferenceSession(
        export_onnx(learner, folder / "policy.onnx", *args, **kwargs)
    )


def feed(learner: Any, obs: Any) -> dict[str, Any]:
    """Observations as inputs of the file."""
    return obs if isinstance(obs, dict) else {"observation": obs}


def test_no_warning_of_statistics_of_rewards(tmp_path: Path) -> None:
    export_onnx(model(VecNormalize(toy(), norm_obs=False)), tmp_path / "policy.onnx")


def test_normalized_integers_are_floats_in_the_file(tmp_path: Path) -> None:
    numbers = spaces.Box(0, 9, (3,), np.int64)
    env = VecNormalize(toy(spaces.Dict(a=numbers, b=numbers)), norm_obs_keys=["a"])
    learner, obs = model(env, "MultiInputLstmPolicy"), env.reset()
    with pytest.warns(UserWarning, match="not in it: .*normalize_obs"):
        file = session(learner, tmp_path)
    state = np.zeros((4, learner.policy.lstm_actor.core.state_size), np.float32)
    inputs = {"a": obs["a"], "b": obs["b"], "state": state, "episode_start": np.ones(4, bool)}
    assert obs["a"].dtype == np.float32
    action, _ = file.run(None, inputs)
    np.testing.assert_array_equal(action, learner.predict(obs, deterministic=True)[0])


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "deploy.md"


@pytest.mark.parametrize(
    "space",
    [
        *(spaces.Box(-1, 1, (3,), dtype) for dtype in (np.float64, np.float16, np.int32)),
        spaces.Discrete(4),
        spaces.MultiBinary(3),
    ],
    ids=str,
)
def test_the_loop_of_the_guide_casts_observations(space: spaces.Space[Any], tmp_path: Path) -> None:
    learner = model(toy(space, spaces.Box(-1.0, 1.0, (2,))))
    file = export_onnx(learner, tmp_path / "policy.onnx")
    names: dict[str, Any] = {}
    code = GUIDE.read_text().partition("import json")[2].partition("env, policy =")[0]
    exec("import json" + code, names)
    policy = names["Policy"](file)
    policy.reset()
    observation, state = space.sample(), None
    for _ in range(2):
        expected, state = learner.predict(observation, state, deterministic=True)
        np.testing.assert_allclose(policy.act(observation), expected, atol=1e-5)


def metadata(run: Any) -> dict[str, Any]:
    return {k: json.loads(v) for k, v in run.get_modelmeta().custom_metadata_map.items()}


def compare(learner: Any, run: Any, steps: int = 30) -> None:
    """Act with both in four environments, with episode starts in between."""
    env = learner.get_env()
    env.seed(3)
    obs, states, episode_starts = env.reset(), None, np.ones(4, bool)
    flat = np.full((4, metadata(run)["state_size"]), 9.0, np.float32)
    actions, started = [], 0
    for _ in range(steps):
        inputs = {**feed(learner, obs), "state": flat, "episode_start": episode_starts}
        action, flat = run.run(["action", "state_out"], inputs)
        expected, states = learner.predict(obs, states, episode_starts, deterministic=True)
        assert action.dtype == expected.dtype
        if isinstance(learner.action_space, spaces.Box):
            np.testing.assert_allclose(action, expected, atol=1e-5)
        else:
            np.testing.assert_array_equal(action, expected)
        pair = tuple(torch.as_tensor(half) for half in states)
        np.testing.assert_allclose(flat, learner.policy.lstm_actor.unpack(pair), atol=1e-5)
        obs, _, episode_starts, _ = env.step(expected)
        started += episode_starts.sum()
        actions.append(expected)
    assert started > 8
    assert np.unique(np.stack(actions)).size > 1


@pytest.mark.slow
@every_family
def test_every_core(name: str, tmp_path: Path) -> None:
    sizes = {"lstm_hidden_size": 6, "n_lstm_layers": 2, "core_kwargs": small(name)}
    learner = agent("discrete", name, **sizes)
    compare(learner, session(learner, tmp_path))


@pytest.mark.parametrize("task", some(TASKS, "discrete", "box", "dict"))
def test_every_space(task: str, tmp_path: Path) -> None:
    learner = agent(task)
    compare(learner, session(learner, tmp_path))


@pytest.mark.parametrize(
    ("action", "masked"),
    [
        (spaces.Discrete(5), True),
        pytest.param(spaces.MultiDiscrete([5, 3]), False, marks=pytest.mark.slow),
        (spaces.MultiBinary(4), False),
        pytest.param(spaces.MultiBinary(4), True, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ties_are_broken_alike(action: spaces.Space[Any], masked: bool, tmp_path: Path) -> None:
    """Among logits that differ by less than their probabilities can."""
    learner = model(toy(BOX, action), algorithm=MaskableRecurrentPPO if masked else RecurrentA2C)
    head = learner.policy.action_net
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(1e-9 * torch.arange(len(head.bias)))
    run = session(learner, tmp_path)
    obs = learner.get_env().reset()
    state = np.zeros((4, metadata(run)["state_size"]), np.float32)
    inputs = {"observation": obs, "state": state, "episode_start": np.ones(4, bool)}
    if masked:
        inputs["action_masks"] = np.ones((4, len(head.bias)), bool)
    result, _ = run.run(None, inputs)
    expected, _ = learner.predict(obs, deterministic=True)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_a_core_that_sorts(tmp_path: Path) -> None:
    """torch's exporter knows no stable sort."""
    learner = agent("discrete", "dnc", core_kwargs=small("dnc"))
    compare(learner, session(learner, tmp_path))


def test_metadata(tmp_path: Path) -> None:
    learner = agent(core="gru", core_kwargs={"learned_state": True})
    core = learner.policy.lstm_actor.core
    torch.nn.init.normal_(core.learned["h_0"])
    core.debug = True
    learner.policy.set_training_mode(True)
    run = session(learner, tmp_path)
    assert core.debug
    assert core.backend == "auto"
    assert learner.policy.training
    content = metadata(run)
    np.testing.assert_allclose(content.pop("initial_state"), core.initial_state(1)[0].tolist())
    assert content == {
        "rlgates_version": rlgates.__version__,
        "policy": "MlpLstmPolicy",
        "core": "gru",
        "core_kwargs": {"learned_state": True},
        "state_size": 7,
        "actor_state_size": 7,
        "deterministic": True,
    }
    compare(learner, run)
    assert [i.name for i in run.get_inputs()] == ["observation", "state", "episode_start"]
    assert [o.name for o in run.get_outputs()] == ["action", "state_out"]
    assert {axes.shape[0] for axes in (*run.get_inputs(), *run.get_outputs())} == {"batch"}
    assert [p.name for p in tmp_path.iterdir()] == ["policy.onnx"]


@pytest.mark.parametrize("critic", some(["separate", "shared", "none"], "separate"))
def test_values_and_logits(critic: str, tmp_path: Path) -> None:
    learner = agent(**CRITICS[critic])
    run = session(learner, tmp_path, value=True, logits=True)
    policy, steps = learner.policy, 5
    states = policy.initial_states(3)
    size = metadata(run)["state_size"]
    assert size == (28 if critic == "separate" else 14)
    flat = np.array([metadata(run)["initial_state"]] * 3, np.float32)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        obs = rng.normal(size=(3, 3)).astype(np.float32)
        episode_starts = rng.random(3) < 0.3
        inputs = {"observation": obs, "state": flat, "episode_start": episode_starts}
        _, flat, value, logits = run.run(None, inputs)
        with torch.no_grad():
            tensors = torch.as_tensor(obs), states, torch.as_tensor(episode_starts)
            latents = policy.latents(*tensors[:2], tensors[2].unsqueeze(0))
            decision = policy.act(*tensors, deterministic=True)
        states = decision.states
        np.testing.assert_allclose(value, decision.values, atol=1e-5)
        np.testing.assert_allclose(logits, policy.action_net(latents.pi).detach(), atol=1e-4)


@pytest.mark.parametrize(
    "task", some(["discrete", "multi_discrete", "multi_binary", "box"], "multi_discrete", "box")
)
def test_actions_sampled_with_noise(task: str, tmp_path: Path) -> None:
    learner = agent(task)
    learner.policy.action_net.weight.data.div_(100.0)
    learner.policy.action_net.bias.data.copy_(
        torch.linspace(-1, 1, learner.policy.action_net.out_features)
    )
    box = task == "box"
    if box:
        learner.policy.log_std.data.fill_(-5.0)
    run = session(learner, tmp_path, deterministic=False)
    rows, rng = 4_000, np.random.default_rng(0)
    obs = np.stack([learner.observation_space.sample()] * rows)
    noise = run.get_inputs()[-1]
    assert noise.name == "noise"
    shape = (rows, noise.shape[1])
    uniform_or_normal = rng.normal(size=shape) if box else rng.random(shape)
    state = np.zeros((rows, metadata(run)["state_size"]), np.float32)
    action, _ = run.run(
        None,
        {
            "observation": obs,
            "state": state,
            "episode_start": np.ones(rows, bool),
            "noise": uniform_or_normal.astype(np.float32),
        },
    )
    torch.manual_seed(0)
    expected, _ = learner.predict(obs, None, np.ones(rows, bool))
    for sampled, reference in zip(
        action.reshape(rows, -1).T, expected.reshape(rows, -1).T, strict=True
    ):
        if box:
            assert sampled.std() == pytest.approx(reference.std(), rel=0.1)
            assert sampled.mean() == pytest.approx(reference.mean(), abs=5e-4)
        else:
            counts = (
                np.bincount(one.astype(int), minlength=4) / rows for one in (sampled, reference)
            )
            np.testing.assert_allclose(*counts, atol=0.04)
            assert np.unique(sampled).size > 1


def test_masks(tmp_path: Path) -> None:
    learner = model(toy(), algorithm=MaskableRecurrentPPO)
    run = session(learner, tmp_path)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(50, 3)).astype(np.float32)
    masks = rng.random((50, 3)) < 0.5
    masks[~masks.any(1), 0] = True
    episode_starts = np.ones(50, bool)
    inputs = {"observation": obs, "episode_start": episode_starts, "action_masks": masks}
    action, _ = run.run(None, {**inputs, "state": np.zeros((50, 14), np.float32)})
    expected, _ = learner.predict(
        obs, None, episode_starts, deterministic=True, action_masks=torch.as_tensor(masks)
    )
    np.testing.assert_array_equal(action, expected)
    assert masks[np.arange(50), action].all()


def test_unsupported_exports_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    with pytest.raises(TypeError, match="of rlgates, got str"):
        export_onnx("model.zip", path)
    with pytest.raises(ValueError, match="no logits"):
        export_onnx(agent("box"), path, logits=True)
    space = spaces.Box(-1.0, 1.0, (2,))
    noisy = model(toy(BOX, space), use_sde=True)
    with pytest.raises(ValueError, match="gSDE"):
        export_onnx(noisy, path, deterministic=False)
    for name, kind, options in (
        ("state", "other inputs", {}),
        ("action", "outputs", {}),
        ("value", "outputs", {"value": True}),
    ):
        named = model(toy(spaces.Dict({name: BOX})), "MultiInputLstmPolicy")
        with pytest.raises(ValueError, match=f"names of {kind}, got {{'{name}'}}"):
            export_onnx(named, path, **options)
    assert not path.exists()


def test_squashed_actions_of_a2c(tmp_path: Path) -> None:
    space = spaces.Box(np.array([-1.0, 2.0], np.float32), np.array([3.0, 2.5], np.float32))
    learner = RecurrentA2C(
        "MlpLstmPolicy",
        toy(BOX, space),
        n_steps=4,
        use_sde=True,
        policy_kwargs={"core": "mingru", "lstm_hidden_size": 7, "squash_output": True},
    )
    learner.learn(16)
    compare(learner, session(learner, tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [("_get_action_dist_from_latent", True), ("distribution", False), ("latents", False)],
)
def test_own_methods_that_the_file_would_leave_out_are_refused(
    tmp_path: Path, name: str, value: bool
) -> None:
    def own(self: Any, *args: Any) -> Any:
        return getattr(MlpLstmPolicy, name)(self, *args)

    learner = model(policy=type("Own", (MlpLstmPolicy,), {name: own}))
    with pytest.raises(TypeError, match=f"cannot export Own: .* without its own {name}"):
        export_onnx(learner, tmp_path / "policy.onnx", value=value)


def test_a_policy_with_amp_is_exported_in_float32(tmp_path: Path) -> None:
    learner = agent()
    expected = session(learner, tmp_path, value=True)
    learner.policy.amp = "bf16"
    run = session(learner, tmp_path, value=True)
    assert learner.policy.amp == "bf16"
    inputs = {
        "observation": np.ones((2, 3), np.float32),
        "state": np.array([metadata(run)["initial_state"]] * 2, np.float32),
        "episode_start": np.array([True, False]),
    }
    for one, other in zip(run.run(None, inputs), expected.run(None, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
