"""The random words, and the batched stepping loop."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from rlgates.envs import BatchedEnv, PassiveMatch, RepeatFirst, make_env_spec
from rlgates.envs.engine.philox import Key, below, permutations, philox

# Random123, tests/kat_vectors, philox4x32 with 10 rounds: counter, key, words.
KNOWN_ANSWERS = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SHORT = PassiveMatch(explore_steps=2, distractor_steps=7, reward_steps=12, apple_reward=(1, 3))
UNEVEN = PassiveMatch(explore_steps=1, distractor_steps=3, reward_steps=15, end_on_choice=True)


def actions(steps: int, num_envs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, size=(steps, num_envs))


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


# Random words


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter, key, words):
    arrays = philox(tuple(np.array([c]) for c in counter), tuple(np.array([k]) for k in key))
    assert [int(word[0]) for word in arrays] == list(words)
    # Numbers instead of arrays, as the seed and the stream are given.
    mixed = philox((np.array([counter[0]]), *counter[1:]), (key[0], np.array([key[1]])))
    assert [int(word[0]) for word in mixed] == list(words)


def test_key_and_counter_hold_seed_index_episode_and_block():
    seed = (7 << 32) + 5
    words = Key(seed, np.array([11, 12]), np.array([3, 2**32 + 4])).words(6, stream=9)
    for row, (index, episode) in enumerate([(11, 3), (12, 4)]):
        expected = [
            word.item()
            for block in (0, 1)
            for word in philox((block, episode, 7, 9), (5, np.array([index])))
        ]
        assert words[row].tolist() == expected[:6]


def test_more_words_leave_the_first_ones_as_they_are():
    key = Key(1, np.arange(3), np.zeros(3, dtype=np.int64))
    np.testing.assert_array_equal(key.words(30)[:, :5], key.words(5))
    assert (key.words(8) != key.words(8, stream=1)).all()


def test_bounded_integers_and_permutations_are_uniform():
    words = Key(0, np.arange(6000), np.zeros(6000, dtype=np.int64)).words(4)
    assert words.min() >= 0
    assert words.max() < 2**32
    counts = np.bincount(below(words[:, 0], 3), minlength=3)
    assert abs(counts - 2000).max() < 4 * np.sqrt(6000 * 2 / 9)
    orders = permutations(words[:, 1:]) @ np.array([9, 3, 1])
    counts = np.unique(orders, return_counts=True)[1]
    assert len(counts) == 6
    assert abs(counts - 1000).max() < 4 * np.sqrt(6000 * 5 / 36)


# The stepping loop


def test_defaults_run():
    env = BatchedEnv(PassiveMatch(), 2)
    obs, _ = env.reset()
    assert (obs.shape, obs.dtype) == ((2, 5, 5, 3), np.uint8)
    assert isinstance(env.seed, int)
    obs, reward, terminated, truncated, info = env.step([0, 3])
    assert (obs.shape, obs.dtype) == ((2, 5, 5, 3), np.uint8)
    assert (reward.shape, reward.dtype) == ((2,), np.float32)
    assert (terminated.dtype, truncated.dtype) == (bool, bool)
    assert list(info) == ["finished"]


@pytest.mark.parametrize("spec", [SHORT, UNEVEN], ids=["together", "apart"])
def test_finished_environments_restart_in_the_same_step(spec):
    env = BatchedEnv(spec, 16, seed=3)
    obs, _ = env.reset()
    returns, lengths, episode = np.zeros(16), np.zeros(16, dtype=int), np.zeros(16, dtype=int)
    ended = 0
    for action in actions(200, 16):
        before, first = env.state, obs.copy()
        obs, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_array_equal(first, spec.observe(before))  # not written over
        last, expected_reward, expected_end = spec.step(before, action)
        np.testing.assert_array_equal(reward, expected_reward)
        np.testing.assert_array_equal(terminated, expected_end)
        np.testing.assert_array_equal(info["finished"], terminated)
        assert not truncated.any()
        returns, lengths = returns + reward, lengths + 1
        if not terminated.any():
            assert list(info) == ["finished"]
            continue
        ended += terminated.sum()
        np.testing.assert_array_equal(info["final_obs"], spec.observe(last))
        np.testing.assert_array_equal(info["episode_return"][terminated], returns[terminated])
        np.testing.assert_array_equal(info["episode_length"][terminated], lengths[terminated])
        metrics = spec.metrics(last)
        assert set(metrics) == set(spec.metric_names)
        for name, values in metrics.items():
            np.testing.assert_array_equal(info[name], values)
        episode += terminated
        start = spec.observe(spec.initial_state(spec.sample(Key(3, np.arange(16), episode))))
        np.testing.assert_array_equal(obs[terminated], start[terminated])
        returns[terminated] = lengths[terminated] = 0
    assert ended > 40


def test_same_seed_same_run_and_another_seed_another():
    runs = []
    for seed in (5, 5, 6, 5 + 2**32):
        env = BatchedEnv(SHORT, 8, seed)
        frames = [env.reset()[0]] + [env.step(a)[0] for a in actions(60, 8)]
        runs.append(np.stack(frames))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()
    assert (runs[0] != runs[3]).any()


def test_a_return_begins_at_zero_after_a_reset_within_an_episode():
    env = BatchedEnv(RepeatFirst(), 4, seed=0)
    env.reset()
    assert env.step(actions(1, 4)[0])[1].all()  # every answer pays or costs
    env.reset()
    steps = [env.step(action) for action in actions(51, 4)]
    returns = np.sum([reward for _, reward, *_ in steps], axis=0)
    np.testing.assert_allclose(steps[-1][-1]["episode_return"], returns, atol=1e-6)


def test_long_episodes_are_not_prepared_by_the_hundred():
    env = BatchedEnv(
        make_env_spec("rlgates/NoisyStatelessCartPole-v0", max_steps=10_000), 1, seed=0
    )
    env.reset()
    tracemalloc.start()
    try:
        while not env.step(np.zeros(1, dtype=np.int64))[2].any():
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 150e6


def test_reset_continues_without_a_seed_and_restarts_with_one():
    env = BatchedEnv(SHORT, 8, seed=1)
    first, second = env.reset()[0], env.reset()[0]
    assert (first != second).any()
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
    np.testing.assert_array_equal(BatchedEnv(SHORT, 8).reset(seed=1)[0], first)


def test_unusable_saved_states_are_refused():
    env = BatchedEnv(SHORT, 4, seed=0)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.get_state()
    env.reset()
    saved = env.get_state()
    with pytest.raises(ValueError, match="but this environment is PassiveMatch"):
        BatchedEnv(UNEVEN, 4).set_state(saved)
    with pytest.raises(ValueError, match=r"'episode' must have shape \(3,\), got \(4,\)"):
        BatchedEnv(SHORT, 3).set_state({**saved, "index": np.arange(3)})
    with pytest.raises(ValueError, match="no entry 'task/pays'"):
        env.set_state({name: v for name, v in saved.items() if name != "task/pays"})
    with pytest.raises(ValueError, match=r"'task/payz'.*Did you mean 'task/pays'"):
        env.set_state({**saved, "task/payz": saved["task/pays"]})
    with pytest.raises(ValueError, match=r"'index' must count up by 1, got \[0, 1, 3, 4\]"):
        env.set_state({**saved, "index": np.array([0, 1, 3, 4])})
    with pytest.raises(ValueError, match=r"'episode' must be in \[0, .*got -1"):
        env.set_state({**saved, "episode": saved["episode"] - 1})
    with pytest.raises(
        ValueError, match=r"'task/t' must be the same in all environments, got \[0, 1, 2"
    ):
        env.set_state({**saved, "task/t": np.arange(4)})
    with pytest.raises(TypeError, match="float64"):
        env.set_state({**saved, "episode": saved["episode"] + 0.5})


@pytest.mark.parametrize(
    ("actions", "error", "text"),
    [
        ([0.0, 1.0, 2.0], TypeError, "actions must be integers, got dtype float64"),
        ([True, False, True], TypeError, "got dtype bool"),
        ([0, 1], ValueError, r"shape \(3,\), got \(2,\)"),
        ([[0, 1, 2]], ValueError, r"shape \(3,\), got \(1, 3\)"),
        ([0, 4, 1], ValueError, r"in \[0, 4\), got 4"),
        ([0, 1, -1], ValueError, r"in \[0, 4\), got -1"),
    ],
)
def test_unusable_actions_are_refused(actions, error, text):
    env = BatchedEnv(SHORT, 3, seed=0)
    env.reset()
    before = env.get_state()
    with pytest.raises(error, match=text):
        env.step(actions)
    assert_same(before, env.get_state())


def test_unusable_arguments_are_refused():
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        BatchedEnv(SHORT, 2).step([0, 0])
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        BatchedEnv(SHORT, 0)
    with pytest.raises(ValueError, match=r"seed must be in \[0, 2\*\*64\), got -1"):
        BatchedEnv(SHORT, 1, seed=-1)
    with pytest.raises(ValueError, match=r"seed must be in \[0, 2\*\*64\)"):
        BatchedEnv(SHORT, 1).reset(seed=2**64)
    with pytest.raises(TypeError, match=r"seed must be an integer, got 1\.5 \(float\)"):
        BatchedEnv(SHORT, 1, seed=1.5)
    with pytest.raises(ValueError, match=r"below 2\*\*32, got first_index=4294967295"):
        BatchedEnv(SHORT, 2, first_index=2**32 - 1)
