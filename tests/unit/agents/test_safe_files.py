"""The safe format of model files: what it holds, and that training goes on as from SB3's zip."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import pickle
import zipfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from support.rma import SHORT, VIEW, rma_env, rma_model
from support.toys import BOX, CRITICS, IMAGE, Toy, model, parameters, toy
from torch import nn

from rlgates import MlpLstmPolicy, RecurrentA2C, RecurrentPPO, RMAPolicy
from rlgates.agents import (
    TVT,
    MaskableRecurrentPPO,
    MultiInputLstmPolicy,
    convert,
    load_vec_normalize,
)
from rlgates.agents.files import archive
from rlgates.agents.files.values import CLASSES, decode, decode_space, encode, encode_space
from rlgates.envs.torch import make_torch_env

GOLDEN = Path(__file__).parents[2] / "golden"
LARGE_IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
PAIR = spaces.Dict({"vector": BOX, "image": IMAGE})


def maskable_env() -> Any:
    def make() -> Any:
        env = InvalidActionEnvDiscrete(dim=6, n_invalid_actions=2)
        env.observation_space.seed(0)
        return ActionMasker(env, lambda masked: masked.unwrapped.action_masks())

    return make_vec_env(make, 4, seed=0)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (toy, {}),
    "a2c": (toy, {"algorithm": RecurrentA2C}),
    "a2c, RMSprop of TensorFlow": (
        toy,
        {"algorithm": RecurrentA2C, "policy_kwargs": {"optimizer_class": RMSpropTFLike}},
    ),
    "maskable": (maskable_env, {"algorithm": MaskableRecurrentPPO}),
    "no seed": (toy, {"seed": None}),
    "schedules": (
        toy,
        {
            "learning_rate": LinearSchedule(1e-3, 1e-4, 0.7),
            "clip_range": ConstantSchedule(0.3),
            "clip_range_vf": 0.4,
            "target_kl": 0.01,
            "max_grad_norm": float("inf"),
        },
    ),
    "chunks": (toy, {"chunk_len": 8, "burn_in": 2, "refresh_states": True, "kl_stop": "epoch"}),
    "normalized advantages": (
        toy,
        {"algorithm": RecurrentA2C, "normalize_advantage": True, "sum_over_time": True},
    ),
    "Box actions": (lambda: toy(action=spaces.Box(-1, 2, (2,))), {}),
    "gSDE": (lambda: toy(action=spaces.Box(-1, 2, (2,))), {"use_sde": True, "sde_sample_freq": 4}),
    "MultiDiscrete": (
        lambda: toy(spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([2, 3])),
        {},
    ),
    "MultiBinary": (lambda: toy(spaces.MultiBinary(4), spaces.MultiBinary(2)), {}),
    "Discrete": (lambda: toy(spaces.Discrete(5)), {}),
    **{
        dtype.__name__: (lambda dtype=dtype: toy(spaces.Box(0, 200, (3,), dtype)), {})
        for dtype in (np.uint16, np.uint32, np.uint64)
    },
    "image": (lambda: toy(IMAGE), {"policy": "CnnLstmPolicy"}),
    "large image": (
        lambda: toy(LARGE_IMAGE, n_envs=2),
        {"policy": "CnnLstmPolicy", "policy_kwargs": {"features_extractor_class": NatureCNN}},
    ),
    "two extractors": (
        lambda: toy(IMAGE),
        {"policy": "CnnLstmPolicy", "policy_kwargs": {"share_features_extractor": False}},
    ),
    "Dict": (lambda: toy(PAIR), {"policy": "MultiInputLstmPolicy"}),
    "tensors": (
        lambda: make_torch_env("rlgates/PassiveMatch-v0", 4, seed=0, **SHORT, **VIEW),
        {"policy": "MultiInputLstmPolicy"},
    ),
    "layers": (
        toy,
        {
            "policy_kwargs": {
                "n_lstm_layers": 2,
                "net_arch": {"pi": [5], "vf": [4, 3]},
                "activation_fn": nn.ELU,
                "core_kwargs": {"learned_state": True},
            }
        },
    ),
    "a core of another kind": (toy, {"policy_kwargs": {"core": "dnc"}}),
    "no memory": (toy, {"policy_kwargs": {"core": "none"}}),
    **{f"critic: {name}": (toy, {"policy_kwargs": options}) for name, options in CRITICS.items()},
    **{
        f"optimizer: {name}": (
            toy,
            {
                "policy_kwargs": {
                    "optimizer_class": optimizer,
                    "optimizer_kwargs": {"momentum": 0.5} if name == "SGD" else {},
                }
            },
        )
        for name, optimizer in CLASSES["optimizer_class"].items()
    },
}


def trained(case: str) -> tuple[Any, Any]:
    """An agent after two updates, and a function that makes its environments."""
    make_env, settings = CASES[case]
    settings = dict(settings)
    algorithm = settings.get("algorithm", RecurrentPPO)
    agent = model(make_env(), settings.pop("policy", "MlpLstmPolicy"), **settings)
    assert type(agent) is algorithm
    agent.learn(2 * agent.n_steps * agent.n_envs)
    return agent, make_env


def learned_further(algorithm: Any, path: Path, env: Any, **kwargs: Any) -> Any:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    agent = algorithm.load(path, env=env, device="cpu", **kwargs)
    return agent.learn(2 * agent.n_steps * agent.n_envs, reset_num_timesteps=False)


def assert_same(one: Any, other: Any) -> None:
    """Equality of data of any depth, types included."""
    assert type(one) is type(other) or isinstance(one, dict)  # an OrderedDict is a dictionary
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        for item, twin in zip(one, other, strict=True):
            assert_same(item, twin)
    elif isinstance(one, FloatSchedule | ConstantSchedule | LinearSchedule):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


def attributes(agent: Any) -> dict[str, Any]:
    """All that SB3 would save, by name."""
    left_out = {*agent._excluded_save_params(), "policy", "start_time"}
    return {name: x for name, x in sorted(vars(agent).items()) if name not in left_out}


@pytest.mark.parametrize("case", CASES)
def test_training_goes_on_as_from_the_zip_of_sb3(case: str, tmp_path: Path) -> None:
    agent, make_env = trained(case)
    agent.save(tmp_path / "agent.zip")
    agent.save(tmp_path / "agent.rlgates", format="safe")
    algorithm = type(agent)
    loaded = [
        algorithm.load(tmp_path / f"agent.{suffix}", device="cpu") for suffix in ("zip", "rlgates")
    ]
    assert_same(*map(attributes, loaded))
    assert_same(*(one.get_parameters() for one in loaded))
    ended = [
        learned_further(algorithm, tmp_path / f"agent.{suffix}", make_env())
        for suffix in ("zip", "rlgates")
    ]
    for timed in ended:
        for episode in timed.ep_info_buffer:
            episode.pop("t", None)
    assert not torch.equal(parameters(ended[1]), parameters(agent))
    assert_same(*map(attributes, ended))
    assert_same(*(one.get_parameters() for one in ended))


def test_an_agent_with_value_transport_goes_on(tmp_path: Path) -> None:
    def env() -> Any:
        return rma_env(2, explore_steps=1, distractor_steps=1, reward_steps=2)

    agent = rma_model(env(), n_steps=4, tvt=TVT(alpha=0.5)).learn(16)
    agent.save(tmp_path / "agent.zip")
    agent.save(tmp_path / "agent.rlgates", format="safe")
    ended = [
        learned_further(RecurrentA2C, tmp_path / f"agent.{suffix}", env())
        for suffix in ("zip", "rlgates")
    ]
    assert ended[1].tvt == TVT(alpha=0.5)
    assert type(ended[1].policy) is RMAPolicy
    assert_same(*(one.get_parameters() for one in ended))


def test_normalized_training_goes_on(tmp_path: Path) -> None:
    def env() -> Any:
        return toy(PAIR)

    def normalized() -> VecNormalize:
        return VecNormalize(env(), norm_obs_keys=["vector"], clip_obs=3.0, gamma=0.9)

    agent = model(normalized(), "MultiInputLstmPolicy").learn(128)
    agent.save(tmp_path / "agent.zip")
    agent.get_vec_normalize_env().save(str(tmp_path / "statistics.pkl"))
    agent.save(tmp_path / "agent.rlgates", format="safe")
    pickled = VecNormalize.load(str(tmp_path / "statistics.pkl"), env())
    ended = [learned_further(RecurrentPPO, tmp_path / "agent.zip", pickled)]
    restored = load_vec_normalize(tmp_path / "agent.rlgates", env())
    ended.append(learned_further(RecurrentPPO, tmp_path / "agent.rlgates", restored))
    assert_same(*(one.get_parameters() for one in ended))
    one, other = (agent.get_vec_normalize_env() for agent in ended)
    assert (other.clip_obs, other.gamma, other.norm_obs_keys) == (3.0, 0.9, ["vector"])
    assert one.ret_rms.count > 128
    for name in ("mean", "var", "count"):
        assert_same(getattr(one.ret_rms, name), getattr(other.ret_rms, name))
        assert_same(getattr(one.obs_rms["vector"], name), getattr(other.obs_rms["vector"], name))


def test_the_settings_of_a_normalization_are_kept(tmp_path: Path) -> None:
    settings = {"clip_obs": 3.0, "clip_reward": 4.0, "gamma": 0.9, "epsilon": 1e-3}
    model(VecNormalize(toy(), **settings)).save(tmp_path / "agent.rlgates")
    restored = load_vec_normalize(tmp_path / "agent.rlgates", toy())
    assert {name: getattr(restored, name) for name in settings} == settings


def test_statistics_that_are_absent_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    model().save(tmp_path / "plain", format="safe")
    with pytest.raises(ValueError, match=r"plain\.rlgates .* no statistics"):
        load_vec_normalize(tmp_path / "plain", toy())
    model(VecNormalize(toy())).save(tmp_path / "normalized", format="safe")
    with pytest.raises(ValueError, match=r"obs\.mean must be float64 \(5,\), got float64 \(3,\)"):
        load_vec_normalize(tmp_path / "normalized", toy(spaces.Box(-1, 1, (5,))))


def test_statistics_for_an_evaluation_do_not_move(tmp_path: Path) -> None:
    model(VecNormalize(toy())).learn(64).save(tmp_path / "agent.rlgates")
    for training in (True, False):
        env = load_vec_normalize(tmp_path / "agent.rlgates", toy(), training=training)
        assert (env.training, env.norm_reward) == (training, training)
        before = env.obs_rms.count
        env.reset()
        assert (env.obs_rms.count > before) is training


def test_statistics_that_are_left_out_are_named(tmp_path: Path) -> None:
    model(VecNormalize(toy())).save(tmp_path / "agent", format="safe")
    for env in (None, toy()):
        with pytest.warns(
            UserWarning, match="wrap its environments with .*load_vec_normalize"
        ) as w:
            RecurrentPPO.load(tmp_path / "agent", env=env)
        assert w[0].filename == __file__
    RecurrentPPO.load(tmp_path / "agent", load_vec_normalize(tmp_path / "agent", toy()))


def test_the_last_observations_are_kept(tmp_path: Path) -> None:
    """With them training goes on in the middle of an episode, as SB3 has it."""
    agent = model(toy(PAIR), "MultiInputLstmPolicy").learn(64)
    agent.save(tmp_path / "agent", format="safe")
    loaded = RecurrentPPO.load(tmp_path / "agent", env=agent.env, force_reset=False)
    assert_same(loaded._last_obs, agent._last_obs)
    assert loaded._last_obs is not None
    assert RecurrentPPO.load(tmp_path / "agent", env=agent.env)._last_obs is None


@pytest.mark.parametrize("format", ["sb3", "safe"])
def test_memory_begins_with_the_learned_state_of_the_file(format: Any, tmp_path: Path) -> None:
    agent = model(policy_kwargs={"core_kwargs": {"learned_state": True}}).learn(64)
    agent.save(tmp_path / "agent", format=format)
    suffix = "rlgates" if format == "safe" else "zip"
    path = tmp_path / f"agent.{suffix}"
    loaded = RecurrentPPO.load(path, env=agent.env, force_reset=False)
    assert_same(loaded._last_lstm_states.pi, agent.policy.initial_states(4).pi)
    assert agent.policy.initial_states(4).pi.any()


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(VecNormalize(toy())).learn(64).save(tmp_path / "agent", format="safe")
    model().policy.save(tmp_path / "policy", format="safe")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr("cloudpickle.loads", refuse)
    monkeypatch.setattr("torch.load", refuse)
    loaded = RecurrentPPO.load(tmp_path / "agent", load_vec_normalize(tmp_path / "agent", toy()))
    loaded.learn(64)
    model().set_parameters(tmp_path / "agent")
    MlpLstmPolicy.load(tmp_path / "policy", safe=True)


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "ran")


@pytest.mark.parametrize("name", ["agent.zip", "agent.rlgates"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_pickled_zip_is_refused(name: str, stream: bool, tmp_path: Path) -> None:
    agent = model()
    agent.own = Canary(tmp_path / "canary")
    agent.save(tmp_path / "saved.zip")
    (tmp_path / "saved.zip").rename(tmp_path / name)
    source: Any = io.BytesIO((tmp_path / name).read_bytes()) if stream else tmp_path / name
    with pytest.raises(ValueError, match=r"not of the safe format.*rlgates convert"):
        RecurrentPPO.load(source, safe=True)
    if name == "agent.rlgates" and not stream:  # the suffix promises the format
        with pytest.raises(ValueError, match=r"not of the safe format.*: rename it to \.zip, or"):
            RecurrentPPO.load(source)
    assert not (tmp_path / "canary").exists()
    (tmp_path / name).rename(tmp_path / "trusted.zip")
    RecurrentPPO.load(tmp_path / "trusted.zip")
    assert (tmp_path / "canary").exists()  # the canary is alive


def test_a_pickled_policy_is_refused(tmp_path: Path) -> None:
    model().policy.save(tmp_path / "policy.zip")
    with pytest.raises(ValueError, match="not of the safe format"):
        MlpLstmPolicy.load(tmp_path / "policy.zip", safe=True)
    assert isinstance(MlpLstmPolicy.load(tmp_path / "policy.zip"), MlpLstmPolicy)


def test_suffixes(tmp_path: Path) -> None:
    agent = model()
    agent.save(tmp_path / "agent", format="safe")
    assert [file.name for file in tmp_path.iterdir()] == ["agent.rlgates"]
    assert torch.equal(parameters(RecurrentPPO.load(tmp_path / "agent")), parameters(agent))
    agent.save(str(tmp_path / "agent"))
    with pytest.raises(ValueError, match=r"agent\.rlgates or agent\.zip: give the suffix"):
        RecurrentPPO.load(tmp_path / "agent")
    RecurrentPPO.load(tmp_path / "agent", safe=True)
    (tmp_path / "agent.rlgates").unlink()
    with pytest.raises(ValueError, match=r"agent\.zip is not of the safe format"):
        RecurrentPPO.load(tmp_path / "agent", safe=True)
    agent.save(tmp_path / "agent.zip", format="safe")
    RecurrentPPO.load(tmp_path / "agent", safe=True)
    for missing in ("none", "none.zip", "none.rlgates"):
        for safe in (False, True):
            with pytest.raises(FileNotFoundError):
                RecurrentPPO.load(tmp_path / missing, safe=safe)


def test_a_full_disk_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, agent = tmp_path / "agent.rlgates", model()
    agent.save(path)
    before = path.read_bytes()
    agent.num_timesteps = 99
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"agent\.rlgates could not be written .*unchanged"):
            agent.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    agent.save(path)
    assert path.read_bytes() != before


@pytest.mark.parametrize("whole", [True, False])
def test_the_suffix_chooses_the_format(whole: bool, tmp_path: Path) -> None:
    agent = model()
    saved = agent if whole else agent.policy
    saved.save(tmp_path / "agent.rlgates")
    loaded = type(saved).load(tmp_path / "agent.rlgates", safe=True)
    assert_same(
        loaded.get_parameters() if whole else loaded.state_dict(),
        agent.get_parameters() if whole else agent.policy.state_dict(),
    )
    with pytest.raises(ValueError, match=r"suffix \.rlgates is that of format='safe'"):
        saved.save(str(tmp_path / "agent.rlgates"), format="sb3")
    saved.save(tmp_path / "agent.zip")
    with pytest.raises(ValueError, match="not of the safe format"):
        type(saved).load(tmp_path / "agent.zip", safe=True)


def test_a_zip_of_sb3_under_the_wrong_suffix_is_converted(tmp_path: Path) -> None:
    agent = model()
    agent.save(tmp_path / "agent.zip")
    misnamed = (tmp_path / "agent.zip").rename(tmp_path / "agent.rlgates")
    assert convert(misnamed) == misnamed
    loaded = RecurrentPPO.load(misnamed, safe=True)
    assert torch.equal(parameters(loaded), parameters(agent))


def test_a_stream_holds_the_same_bytes_as_a_file(tmp_path: Path) -> None:
    agent = model().learn(64)
    stream = io.BytesIO(b"before")
    stream.seek(6)
    agent.save(stream, format="safe")
    agent.save(tmp_path / "agent", format="safe")
    assert stream.getvalue()[6:] == (tmp_path / "agent.rlgates").read_bytes()
    stream.seek(6)
    assert torch.equal(parameters(RecurrentPPO.load(stream, safe=True)), parameters(agent))


def test_the_header_says_what_is_in_the_file(tmp_path: Path) -> None:
    model(policy_kwargs={"core": "r_gru"}).learn(64).save(tmp_path / "agent", format="safe")
    with zipfile.ZipFile(tmp_path / "agent.rlgates") as archive:
        assert archive.testzip() is None
        header = json.loads(archive.read("header.json"))
        for name, described in header["parts"].items():
            content = archive.read(name)
            assert described["bytes"] == len(content)
            assert described["sha256"] == hashlib.sha256(content).hexdigest()
    assert (header["format"], header["version"]) == ("rlgates-model", 1)
    assert (header["algorithm"], header["policy"]) == ("RecurrentPPO", "MlpLstmPolicy")
    assert header["policy_kwargs"] == {"core": "r_gru", "lstm_hidden_size": 7}
    assert header["states"] == [
        {"name": name, "shape": [7], "dtype": "float32"} for name in ("pi", "vf")
    ]
    assert header["libraries"]["torch"] == torch.__version__


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MultiInputLstmPolicy"])
def test_a_policy_alone(policy: str, tmp_path: Path) -> None:
    env = toy(PAIR if policy == "MultiInputLstmPolicy" else BOX, spaces.Box(-1, 1, (2,)))
    agent = model(env, policy, use_sde=True).learn(64)
    agent.policy.save(tmp_path / "policy", format="safe")
    kind = type(agent.policy)
    loaded = kind.load(tmp_path / "policy", safe=True)
    assert type(loaded) is kind
    assert_same(loaded.state_dict(), agent.policy.state_dict())
    with pytest.raises(ValueError, match="holds a 'policy', not an agent"):
        RecurrentPPO.load(tmp_path / "policy")
    other = MlpLstmPolicy if kind is MultiInputLstmPolicy else MultiInputLstmPolicy
    with pytest.raises(ValueError, match=f"not a {other.__name__}"):
        other.load(tmp_path / "policy")


def test_an_rma_policy_alone(tmp_path: Path) -> None:
    policy = rma_model().policy
    policy.save(tmp_path / "policy", format="safe")
    assert_same(RMAPolicy.load(tmp_path / "policy").state_dict(), policy.state_dict())


def test_set_parameters_takes_a_safe_file(tmp_path: Path) -> None:
    agent = model().learn(64)
    agent.save(tmp_path / "agent", format="safe")
    other = model(seed=1)
    other.set_parameters(tmp_path / "agent")
    assert_same(other.get_parameters(), agent.get_parameters())
    with pytest.raises(ValueError, match=r"agent\.rlgates cannot be loaded.*lstm_actor"):
        model(policy_kwargs={"core": "gru"}).set_parameters(tmp_path / "agent")
    with pytest.raises(ValueError, match="state of Adam, not of RMSprop"):
        model(policy_kwargs={"optimizer_class": torch.optim.RMSprop}).set_parameters(
            tmp_path / "agent"
        )


class OwnPolicy(MlpLstmPolicy):
    """A policy of a user."""


class OwnActivation(nn.Tanh):
    """An activation of a user."""


class OwnAlgorithm(RecurrentPPO):
    """An algorithm of a user."""


class OwnOptimizer(torch.optim.Adam):
    """An optimizer of a user."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": lambda _: 1e-3}, "learning_rate: .*lambda.* is a function"),
        ({"clip_range": lambda _: 0.1}, "clip_range: .*lambda.* is a function"),
        ({"policy": OwnPolicy}, "the policy .*OwnPolicy is not in"),
        ({"algorithm": OwnAlgorithm}, "the algorithm .*OwnAlgorithm is not in"),
        (
            {"policy_kwargs": {"activation_fn": OwnActivation}},
            r"policy_kwargs\['activation_fn'\]: .*OwnActivation.* has no name",
        ),
        (
            {"policy_kwargs": {"optimizer_class": OwnOptimizer}},
            r"policy_kwargs\['optimizer_class'\]: .*OwnOptimizer.* has no name",
        ),
        (
            {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": torch.tensor(0.1)}}},
            r"policy_kwargs\['optimizer_kwargs'\]: tensor.* is not data",
        ),
    ],
)
def test_what_is_no_data_is_an_error_that_names_it(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"(?s){message}.*format='sb3' remains"):
        model(**settings).save(tmp_path / "agent", format="safe")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("steps", [1e2, np.float32(100), math.inf], ids=str)
def test_steps_of_learn_may_be_any_number(steps: Any, tmp_path: Path) -> None:
    agent = model().learn(steps, callback=StopTrainingOnMaxEpisodes(20))
    agent.save(tmp_path / "agent.rlgates")
    loaded = RecurrentPPO.load(tmp_path / "agent.rlgates", env=toy())
    assert loaded._total_timesteps == agent._total_timesteps == steps
    loaded.learn(64, reset_num_timesteps=False)


def test_numbers_of_numpy_are_data(tmp_path: Path) -> None:
    names = ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "target_kl")
    settings: dict[str, Any] = {name: np.float32(0.5) for name in names}
    settings["policy_kwargs"] = {
        "log_std_init": np.float32(-1),
        "optimizer_kwargs": {"eps": np.float32(2**-16)},
        "net_arch": {"pi": [np.int64(4)], "vf": (np.int32(4),)},
        "core_kwargs": {"input_scale": np.float32(2)},
    }
    agent = model(**settings)
    agent.learn(64).save(tmp_path / "agent.rlgates")
    loaded = RecurrentPPO.load(tmp_path / "agent.rlgates", env=toy()).learn(64)
    assert [getattr(loaded, name) for name in names] == [0.5] * len(names)
    assert loaded.policy.optimizer.param_groups[0]["eps"] == 2**-16


REPORTS = {
    "number": np.float32(1),
    "flag": np.True_,
    "scalar": np.array(1.0),
    "one": np.array([True]),
    "several": np.arange(3.0),
    "nested": {"a": [np.float32(2), np.ones(2)], "b": (np.int8(1), "x")},
}

PLAIN = {
    "number": 1.0,
    "flag": True,
    "scalar": 1.0,
    "one": [True],
    "several": [0.0, 1.0, 2.0],
    "nested": {"a": [2.0, [1.0, 1.0]], "b": (1, "x")},
}


@pytest.mark.parametrize("name", REPORTS)
def test_what_environments_report_may_be_of_numpy(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]

    class Reports(Toy):
        def step(self, action: Any) -> Any:
            *step, _ = super().step(action)
            success = report if name in ("number", "flag", "scalar", "one") else 1
            return *step, {"is_success": success, "report": report}

    def make() -> Any:
        return Monitor(Reports(BOX, spaces.Discrete(3)), info_keywords=("report",))

    agent = model(DummyVecEnv([make] * 2)).learn(64)
    agent.save(tmp_path / "agent.rlgates")
    loaded = RecurrentPPO.load(tmp_path / "agent.rlgates", env=DummyVecEnv([make] * 2))
    for episode in loaded.ep_info_buffer:
        assert_same(episode["report"], PLAIN[name])
    loaded.learn(64, reset_num_timesteps=False)
    assert np.mean(loaded.ep_success_buffer) == 1


def test_verbose_may_be_true(tmp_path: Path) -> None:
    model(verbose=True).save(tmp_path / "agent", format="safe")
    assert RecurrentPPO.load(tmp_path / "agent").verbose == 1


def test_own_attributes_are_named_or_left_out(tmp_path: Path) -> None:
    agent = model()
    agent.own, agent.another = 1, "x"
    with pytest.raises(ValueError, match=r"'another'.*exclude=\['another', 'own'\]"):
        agent.save(tmp_path / "agent", format="safe")
    with pytest.raises(ValueError, match="gamma belongs to every file"):
        agent.save(tmp_path / "agent", exclude=["gamma"], format="safe")
    with pytest.raises(ValueError, match="include is for format='sb3'"):
        agent.save(tmp_path / "agent", include=["env"], format="safe")
    with pytest.raises(ValueError, match=r"unknown format 'save'. Did you mean 'safe'"):
        agent.save(tmp_path / "agent", format="save")
    agent.save(tmp_path / "agent", exclude=["own", "another"], format="safe")
    assert not hasattr(RecurrentPPO.load(tmp_path / "agent"), "own")


def test_arguments_of_load_are_those_of_sb3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tensorboard_log="/home/me/logs").save(tmp_path / "agent", format="safe")
    assert RecurrentPPO.load(tmp_path / "agent").tensorboard_log is None
    assert b"/home/me" not in (tmp_path / "agent.rlgates").read_bytes()
    loaded = RecurrentPPO.load(
        tmp_path / "agent",
        device="cpu",
        custom_objects={"learning_rate": 0.5, "unknown": 1},
        print_system_info=True,
        ent_coef=0.25,
        tensorboard_log="logs",
    )
    assert loaded.tensorboard_log == "logs"
    assert (loaded.learning_rate, loaded.lr_schedule(1.0), loaded.ent_coef) == (0.5, 0.5, 0.25)
    assert "SAVED WITH" in capsys.readouterr().out
    with pytest.raises(ValueError, match="policy_kwargs must be those of the file"):
        RecurrentPPO.load(tmp_path / "agent", policy_kwargs={"core": "gru"})
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        RecurrentPPO.load(tmp_path / "agent", env=toy(spaces.Box(-1, 1, (4,))))
    with pytest.raises(ValueError, match=r"holds a RecurrentPPO: load it with RecurrentPPO\.load"):
        RecurrentA2C.load(tmp_path / "agent")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    model().save(tmp_path / "agent", format="safe")
    with (tmp_path / "agent.rlgates").open("rb") as file:
        header, parts = archive.unpack(file)
    (tmp_path / "new.rlgates").write_bytes(archive.pack({**header, "version": 2}, parts))
    with pytest.raises(ValueError, match=r"version 2 of the format.*upgrade rlgates"):
        RecurrentPPO.load(tmp_path / "new")


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        IMAGE,
        spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Box(0, 2**63, (2,), np.uint64),
        spaces.Discrete(4, start=-1),
        spaces.Discrete(4, dtype=np.int32),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 3]),
        spaces.Dict([("z", BOX), ("a", spaces.Discrete(3))]),
    ],
    ids=str,
)
def test_spaces_are_data(space: spaces.Space[Any]) -> None:
    again = decode_space(json.loads(json.dumps(encode_space(space), allow_nan=False)))
    assert again == space
    assert (type(again), again.shape, again.dtype) == (type(space), space.shape, space.dtype)
    if isinstance(space, spaces.Dict) and isinstance(again, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


def test_other_spaces_are_refused() -> None:
    for space in (spaces.Text(3), spaces.Tuple([BOX]), spaces.Dict(a=spaces.Dict(b=BOX))):
        with pytest.raises(ValueError, match=r"cannot be written|another Dict"):
            encode_space(space)


def test_plain_data_comes_back_with_its_types() -> None:
    value = {"a": (1, 2.5, [None, True, "x"]), "b": float("-inf"), "c": {"d": ()}}
    assert_same(decode(json.loads(json.dumps(encode(value), allow_nan=False))), value)
    assert np.isnan(decode(encode(float("nan"))))
    for number in (np.float32(0.1), np.float16(0.5), np.float64("inf"), np.int8(3), np.True_):
        assert_same(decode(encode(number)), number.item())
    for other in (object(), {1: 2}, {"!tuple": 1}, 2**70, {1}, np.ones(1), nn.Tanh):
        with pytest.raises(ValueError, match=r"is not data|is not text|below 2\*\*64"):
            encode(other)


def test_conversion_of_models_of_earlier_versions(tmp_path: Path) -> None:
    target = convert(GOLDEN / "a2c_rma_tvt.zip", tmp_path / "agent", RecurrentA2C)
    assert target == tmp_path / "agent.rlgates"
    loaded = RecurrentA2C.load(target, safe=True)
    original = RecurrentA2C.load(GOLDEN / "a2c_rma_tvt.zip", device="cpu")
    assert_same(loaded.get_parameters(), original.get_parameters())
    with pytest.raises(ValueError, match="already in the safe format"):
        convert(target)


def test_conversion_as_another_algorithm_names_that_of_the_agent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="belongs to a RecurrentA2C: load or convert the agent as"):
        convert(GOLDEN / "a2c_rma_tvt.zip", tmp_path / "agent")


def test_conversion_of_a_model_of_sb3_contrib_with_statistics(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([lambda: Toy(BOX, spaces.Discrete(3))]))
    options = {"lstm_hidden_size": 5, "net_arch": [4]}
    agent = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=16, batch_size=16, policy_kwargs=options, device="cpu"
    ).learn(16)
    agent.save(tmp_path / "agent")
    env.save(str(tmp_path / "statistics.pkl"))
    target = convert(tmp_path / "agent", vec_normalize=tmp_path / "statistics.pkl")
    with pytest.warns(UserWarning, match="load_vec_normalize"):
        loaded = RecurrentPPO.load(target, device="cpu", safe=True)
    obs = np.zeros((1, 3), np.float32)
    expected = agent.predict(obs, deterministic=True)
    assert_same(loaded.predict(obs, deterministic=True)[0], expected[0])
    restored = load_vec_normalize(target, DummyVecEnv([lambda: Toy(BOX, spaces.Discrete(3))]))
    assert_same(restored.obs_rms.mean, env.obs_rms.mean)
    for content, message in (
        (pickle.dumps([1]), "holds a list, not a VecNormalize"),
        (b"x", "x.pkl"),
    ):
        (tmp_path / "x.pkl").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            convert(tmp_path / "agent.zip", vec_normalize=tmp_path / "x.pkl")


def test_conversion_with_something_in_place_of_a_function(tmp_path: Path) -> None:
    model(clip_range=lambda _: 0.1).save(tmp_path / "agent")
    with pytest.raises(ValueError, match="clip_range"):
        convert(tmp_path / "agent.zip")
    convert(tmp_path / "agent.zip", custom_objects={"clip_range": 0.1})
    assert RecurrentPPO.load(tmp_path / "agent.rlgates").clip_range(1.0) == 0.1
