"""Several processes train the agent that one would, and stay equal bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env as make_sb3_env
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize
from support import toys
from support.ranks import together

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import load_vec_normalize
from rlgates.agents.ranks import PooledMeanStd, RankLost, Ranks
from rlgates.agents.sequences.updates import SequenceAlgorithm
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env

ENVS = 8
GAME = {"explore_steps": 2, "distractor_steps": 2, "reward_steps": 4}
SMALL = {"core": "ur_lstm", "lstm_hidden_size": 8}


def batched(**changes: Any) -> SequenceAlgorithm:
    """PPO on a game, with fewer sequences in a minibatch than there are ranks in some tests."""
    ranks = Ranks.world().split(ENVS)
    env = make_vec_env(
        "rlgates/PassiveMatch-v0", ranks.count, first_index=ranks.first, seed=3, **GAME
    )
    options = {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "policy_kwargs": SMALL} | changes
    return RecurrentPPO(
        "CnnLstmPolicy", env, seed=3, device="cpu", distributed=not ranks.is_alone, **options
    )


def chunks() -> SequenceAlgorithm:
    return batched(chunk_len=4, batch_size=16, burn_in=2, clip_range_vf=0.2)


def stopped_by_kl() -> SequenceAlgorithm:
    return batched(target_kl=1e-5, learning_rate=3e-3, n_epochs=4)


def a2c() -> SequenceAlgorithm:
    ranks = Ranks.world().split(ENVS)
    env = make_torch_env(
        "rlgates/PassiveMatch-v0", ranks.count, first_index=ranks.first, seed=3, **GAME
    )
    return RecurrentA2C(
        "CnnLstmPolicy", env, n_steps=8, seed=3, policy_kwargs=SMALL, normalize_advantage=True,
        use_rms_prop=False, device="cpu", distributed=not ranks.is_alone,
    )  # fmt: skip


def normalized(env_id: str, **options: Any) -> SequenceAlgorithm:
    """PPO with VecNormalize, in environments that SB3 seeds one by one."""
    ranks = Ranks.world().split(ENVS)
    env = VecNormalize(make_sb3_env(env_id, n_envs=ranks.count))
    return RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=16, batch_size=32, n_epochs=1, seed=3, policy_kwargs=SMALL,
        device="cpu", distributed=not ranks.is_alone, **options,
    )  # fmt: skip


def cartpole() -> SequenceAlgorithm:
    return normalized("CartPole-v1")


def gaussian() -> SequenceAlgorithm:
    return normalized("Pendulum-v1")


def state_dependent_noise() -> SequenceAlgorithm:
    return normalized("Pendulum-v1", use_sde=True, sde_sample_freq=4)


def trained(make: Callable[[], SequenceAlgorithm], rollouts: int = 5) -> dict[str, Any]:
    """What training leaves, whatever the number of ranks."""
    torch.manual_seed(Ranks.world().rank)  # agents must not depend on it
    model = make()
    model.learn(rollouts * model.n_steps * ENVS)
    normalize = model.get_vec_normalize_env()
    return {
        "weights": {name: x.clone() for name, x in model.policy.state_dict().items()},
        "optimizer": copy.deepcopy(model.policy.optimizer.state_dict()["state"]),
        "episodes": [(info["r"], info["l"]) for info in model.ep_info_buffer or ()],
        "successes": list(model.ep_success_buffer or ()),
        "steps": model.num_timesteps,
        "updates": model._n_updates,
        "metrics": {k: v for k, v in model.logger.name_to_value.items() if k.startswith("train/")},
        "statistics": None if normalize is None else vars(normalize.obs_rms) | {},
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (batched, 2),
        (batched, 4),
        (batched, 3),  # with 2, 3 and 3 environments
        (chunks, 2),
        (stopped_by_kl, 2),
        (a2c, 2),
        (cartpole, 2),
        (cartpole, 4),
        (gaussian, 2),
        (state_dependent_noise, 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_ranks_train_the_agent_that_one_process_would(
    make: Callable[[], SequenceAlgorithm], size: int, tmp_path: Path
) -> None:
    alone = trained(make)
    first, *others = together(size, tmp_path, lambda: trained(make))
    for other in others:
        for name, weight in first["weights"].items():
            assert torch.equal(weight, other["weights"][name]), name
        for parameter, state in first["optimizer"].items():
            for name, value in state.items():
                assert torch.equal(value, other["optimizer"][parameter][name])
        for name in ("episodes", "successes", "steps", "updates", "metrics"):
            assert first[name] == other[name]
        assert torch.equal(first["random"], other["random"])
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], weight, atol=1e-6, rtol=0)
    np.testing.assert_allclose(first["episodes"], alone["episodes"], rtol=1e-6)
    assert len(first["episodes"]) > 0 or make in (gaussian, state_dependent_noise)
    assert first["successes"] == alone["successes"]
    assert (first["steps"], first["updates"]) == (alone["steps"], alone["updates"])
    assert first["metrics"].keys() == alone["metrics"].keys()
    for name, value in alone["metrics"].items():
        relative = 0.1 if name == "train/explained_variance" else 1e-2
        if name == "train/explained_variance" and value < -1e6:
            # All returns of the rollout are equal, and the variance is that of the rounding.
            assert first["metrics"][name] < -1e6
            continue
        assert first["metrics"][name] == pytest.approx(value, rel=relative, abs=1e-5), name
    if alone["statistics"]:
        for name, value in alone["statistics"].items():
            np.testing.assert_allclose(first["statistics"][name], value, rtol=1e-5, atol=1e-5)
    assert torch.equal(first["random"], alone["random"])


def test_the_kl_divergence_does_stop() -> None:
    assert trained(stopped_by_kl)["updates"] < 4 * 5


def test_what_differs_between_ranks_is_that_of_the_first(tmp_path: Path) -> None:
    """Other weights and random numbers at the start, and a callback that draws some on one rank."""

    def run() -> Any:
        model = batched()
        rank = Ranks.world().rank
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter.add_(rank)
        torch.manual_seed(rank)

        def draw(*_: Any) -> bool:
            torch.rand(1 + rank)
            return True

        model.learn(3 * 64, callback=draw)
        return [parameter.detach() for parameter in model.policy.parameters()]

    first, second = together(2, tmp_path, run)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert max(x.abs().max() for x in first) < 2


def test_saved_agents_go_on_alone(tmp_path: Path) -> None:
    def run() -> None:
        model = cartpole()
        model.learn(2 * 16 * ENVS)
        if model.ranks.is_first:
            model.save(tmp_path / "model")
            model.save(tmp_path / "safe", format="safe")
            env = model.get_vec_normalize_env()
            assert isinstance(env.ret_rms, PooledMeanStd)
            env.save(str(tmp_path / "env.pkl"))

    together(2, tmp_path, run)
    fresh = make_sb3_env("CartPole-v1", n_envs=4)
    env = VecNormalize.load(str(tmp_path / "env.pkl"), fresh)
    for name in ("model", "safe.rlgates"):
        model = RecurrentPPO.load(tmp_path / name, env=env)
        assert (model.distributed, model.ranks.total) == (False, 4)
        model.learn(64, reset_num_timesteps=False)
    safe = load_vec_normalize(tmp_path / "safe.rlgates", fresh)
    assert type(safe.ret_rms) is RunningMeanStd
    assert safe.ret_rms.count > 2 * 16 * ENVS


def test_only_the_first_rank_logs(tmp_path: Path) -> None:
    def run() -> None:
        batched(tensorboard_log=str(tmp_path / "logs"), verbose=0).learn(64)

    together(2, tmp_path, run)
    assert len(list((tmp_path / "logs").rglob("events.*"))) == 1


def test_statistics_are_of_the_last_episodes() -> None:
    agent = toys.model(stats_window_size=3)
    agent._setup_learn(64)
    agent._record_episodes([(step, {"episode": {"r": step, "l": 1}}) for step in range(5)])
    assert [episode["r"] for episode in agent.ep_info_buffer] == [2, 3, 4]


def test_environments_of_another_rank_are_refused(tmp_path: Path) -> None:
    def run() -> None:
        env = make_vec_env("rlgates/PassiveMatch-v0", 4, **GAME)
        RecurrentPPO("CnnLstmPolicy", env, distributed=True, policy_kwargs=SMALL)

    with pytest.raises(RuntimeError, match=r"ranks \[1\].*(?s:.)*with first_index=4"):
        together(2, tmp_path, run)


def test_without_a_process_group() -> None:
    with pytest.raises(ValueError, match="needs a process group: call torch"):
        RecurrentPPO("MlpLstmPolicy", "CartPole-v1", distributed=True)
    with pytest.raises(TypeError, match="distributed must be True or False, got 2"):
        RecurrentA2C("MlpLstmPolicy", "CartPole-v1", distributed=2)  # type: ignore[arg-type]


def test_a_rank_that_dies_is_missed(tmp_path: Path) -> None:
    class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            if Ranks.world().rank == 1:
                raise OSError("the simulator is gone")
            return super().step(action)

    def run() -> None:
        env = make_sb3_env("CartPole-v1", n_envs=2, wrapper_class=Broken)
        model = RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=16, distributed=True)
        try:
            model.learn(64)
        except RankLost as error:
            (tmp_path / "missed").write_text(str(error))
            raise

    with pytest.raises(RuntimeError, match=r"the simulator is gone"):
        together(2, tmp_path, run)
    assert "another process of this training ended" in (tmp_path / "missed").read_text()


def test_split() -> None:
    parts = [Ranks(rank, 3).split(8) for rank in range(3)]
    assert [(part.first, part.count, part.total) for part in parts] == [
        (0, 2, 8),
        (2, 3, 8),
        (5, 3, 8),
    ]
    x = torch.arange(6.0).view(3, 2)
    wide = parts[1].spread(x, fill=-1)
    assert wide.shape == (8, 2)
    assert torch.equal(parts[1].own(wide), x)
    assert (wide[:2] == -1).all()
    with pytest.raises(ValueError, match="n_envs must be at least 3, one for each process, got 2"):
        Ranks(0, 3).split(2)


def test_exchanges(tmp_path: Path) -> None:
    numbers = 1e6 + np.random.default_rng(0).normal(size=(9, 2))

    def run() -> Any:
        ranks = Ranks.world()

        def fail() -> None:
            raise ValueError(f"on rank {ranks.rank}")

        with pytest.raises(ValueError, match="on rank 0"):
            ranks.from_first(fail)
        part = torch.from_numpy(numbers[[slice(0, 3), slice(3, 9), slice(0, 1)][ranks.rank]])
        return (
            ranks.moments(part, counts=ranks.rank < 2),
            ranks.gather({"seed": torch.tensor(ranks.rank, dtype=torch.uint64)}),
            ranks.from_first(lambda: ranks.rank),
            ranks.in_order([(1, f"{ranks.rank}b"), (0, f"{ranks.rank}a")]),
        )

    for (mean, variance, count), gathered, first, ordered in together(3, tmp_path, run):
        np.testing.assert_allclose(mean, numbers.mean(0), rtol=1e-12)
        np.testing.assert_allclose(variance, numbers.var(0), rtol=1e-9)
        assert count.tolist() == [9, 9]
        assert [int(part["seed"]) for part in gathered] == [0, 1, 2]
        assert first == 0
        assert ordered == ["0a", "1a", "2a", "0b", "1b", "2b"]
