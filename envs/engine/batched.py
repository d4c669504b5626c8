"""The loop that steps a batch of environments, and its saved state.

The samples of an episode are a function of (seed, environment index, episode), so environment k
of a batch equals a batch of one with index k, for any batch size, order of resets and device.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import array_api_compat
import numpy as np
from gymnasium.error import ResetNeeded

from rlgates.deprecation import renamed_arguments, warn_renamed
from rlgates.envs.engine.actions import check_actions
from rlgates.envs.engine.arrays import Array, namespace, put, rows_of, select
from rlgates.envs.engine.parameters import override, report, reset_info
from rlgates.envs.engine.philox import Key, check_seed, random_seed
from rlgates.envs.engine.spec import EnvSpec, Observation, State
from rlgates.errors import check_flag, check_size, unknown_choice

_MAX_INDEX = 2**32 - 1
_EPISODES_AHEAD = 1024
"""How many episodes are begun at once where they end at different times: several times as fast."""
_BYTES_AHEAD = 2**24
"""The size up to which their states are prepared."""


class _Ahead(NamedTuple):
    """The beginnings of the next episodes of each environment.

    Attributes:
        first: the number of the first of them, (B,).
        state, obs: of all of them, those of an environment one after the other.
    """

    first: Array
    state: State
    obs: Observation


class BatchedEnv:
    """`num_envs` environments of one spec, stepped together and reset automatically.

    Environment k of the batch has index `first_index + k`: several batches with the same seed
    and consecutive first indices are parts of one larger batch. `rlgates.envs.torch` has the
    same for torch tensors.

    Args:
        spec: the definition of the environment.
        num_envs: at least 1.
        seed: in [0, 2**64); None takes one from the operating system at the first reset.
        first_index: index of the first environment, at least 0.
        xp: array namespace.
        device: of the arrays, as `xp` names it.
        debug: check the values of actions on every device; on a GPU that synchronizes.

    Attributes:
        truncates: whether steps may truncate episodes, which those of a subclass may.
    """

    truncates: ClassVar[bool] = False

    @renamed_arguments(task="spec")
    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        seed: int | None = None,
        first_index: int = 0,
        *,
        xp: Any = np,
        device: Any = None,
        debug: bool = False,
    ) -> None:
        if not isinstance(spec, EnvSpec):
            raise TypeError(f"spec must be an EnvSpec, as make_env_spec makes it, got {spec!r}.")
        self.spec = spec
        self.num_envs = check_size("num_envs", num_envs)
        self.first_index = check_size("first_index", first_index, minimum=0)
        if self.first_index + self.num_envs - 1 > _MAX_INDEX:
            raise ValueError(f"indices must stay below 2**32, got first_index={first_index}.")
        self.xp = xp
        self._length = spec.max_episode_length if spec.fixed_length else None
        self._seed = None if seed is None else check_seed(seed)
        self._index = self.first_index + xp.arange(self.num_envs, dtype=xp.int64, device=device)
        self.device = self._index.device
        self._on_host = xp is np or self.device.type == "cpu"
        self._checks_values = check_flag("debug", debug) or self._on_host
        self._ahead: _Ahead | None = None
        self._episode = xp.full_like(self._index, -1)
        self._return = self._zeros(xp.float64)
        self._clock = 0  # steps since the reset; used where all episodes have the same length
        self._in_first_episodes = True  # since the reset
        self._state: State | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A compiled step belongs to its process.
        saved = {name: v for name, v in vars(self).items() if name not in ("xp", "advance")}
        return {**saved, "_ahead": None}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved, xp=namespace(saved["_index"]))

    def _zeros(self, dtype: Any) -> Array:
        zeros: Array = self.xp.zeros(self.num_envs, dtype=dtype, device=self.device)
        return zeros

    @property
    def task(self) -> EnvSpec:
        """Deprecated: the old name of `spec`."""
        warn_renamed("BatchedEnv.task", "BatchedEnv.spec")
        return self.spec

    @property
    def seed(self) -> int | None:
        """The seed in use; None before the first reset if none was passed."""
        return self._seed

    @property
    def state(self) -> State:
        """The state of the game, (num_envs, ...) arrays. Do not write into them."""
        if self._state is None:
            raise ResetNeeded("call reset() first: this environment has not started yet.")
        return self._state

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in every environment.

        With a seed, these are episodes 0 of that seed; without one, each environment continues with
        its next episode.

        Args:
            seed: in [0, 2**64).
            options: values for parameters of the episode by name, the same in every environment
                and for this episode only; `reveal=True` reports all parameters.

        Returns:
            First observations, and info: with `reveal` it has `parameters`, (num_envs, ...)
            arrays by name, in the form that options take (also as `choices`, the old name of this
            key).

        Raises:
            ValueError: an unknown option, or a value out of range. TypeError: of the wrong type.
        """
        overrides = dict(options or {})
        reveal = check_flag("reveal", overrides.pop("reveal", False))
        if seed is not None:
            seed, episode = check_seed(seed), self.xp.zeros_like(self._episode)
        else:
            seed = random_seed() if self._seed is None else self._seed
            episode = self._episode + 1
        parameters = self.spec.sample(Key(seed, self._index, episode))
        parameters = override(self.spec.parameters, parameters, overrides)
        self._state = self.spec.initial_state(parameters)
        self._seed, self._episode, self._clock = seed, episode, 0
        self._in_first_episodes = True
        self._return, self._ahead = self._zeros(self.xp.float64), None
        info = reset_info(report(self.spec.parameters, parameters)) if reveal else {}
        return self.spec.observe(self._state), info

    def step(self, actions: Any) -> tuple[Observation, Array, Array, Array, dict[str, Any]]:
        """Take one action in every environment.

        An environment whose episode ends starts the next one in the same step: its observation
        is the first one of the new episode, its reward and flags belong to the old one.

        Args:
            actions: (num_envs, ...) of the action space; integers (num_envs,) if it is `Discrete`.

        Returns:
            observation, reward float32, terminated bool, truncated bool (never true), and info.
            `info["finished"]` (num_envs,) marks the episodes that ended. If any did, info also
            has, for all environments and valid in the finished ones, `final_obs` (the last
            observation), `episode_return`, `episode_length` and the metrics of the spec. On a
            GPU, where checking would synchronize, info has them whenever an episode may have ended.

        Raises:
            ResetNeeded: before the first reset. TypeError, ValueError: unusable actions.
        """
        state, reward, finished, obs = self.advance(self.state, self._check(actions))
        self._return = self._return + reward
        self._clock += 1
        info: dict[str, Any] = {"finished": finished}
        if self._ends(finished):
            info |= {"final_obs": obs, **self._results(state)}
            state, obs = self._restart(state, obs, finished)
        self._state = state
        return obs, reward, finished, self._zeros(self.xp.bool), info

    def _results(self, state: State) -> dict[str, Array]:
        """What info says of the episodes that end in a state."""
        results = {"episode_return": self._return, "episode_length": state["t"]}
        metrics = dict(self.spec.metrics(state))
        if metrics.keys() != set(self.spec.metric_names):
            raise ValueError(
                f"metrics must be those of metric_names, {', '.join(self.spec.metric_names)}, "
                f"got {', '.join(metrics)}."
            )
        return results | metrics

    def advance(self, state: State, actions: Array) -> tuple[State, Array, Array, Observation]:
        """One step of the game, a pure function, which may be replaced by a compiled one.

        Returns:
            the next state, reward float32, whether the episode ended, and the observation.
        """
        state, reward, finished = self.spec.step(state, actions)
        return state, reward, finished, self.spec.observe(state)

    def _check(self, actions: Any) -> Array:
        """`actions` as an array of the action space."""
        space, batch = self.spec.action_space, (self.num_envs,)
        return check_actions(space, actions, self.xp, self.device, batch, self._checks_values)

    def _ends(self, finished: Array) -> bool:
        """Whether an episode ended, or may have where looking would synchronize."""
        if self._length is not None:
            if self._checks_values:
                self._check_length(finished)
            return self._clock == self._length
        return not self._looks or bool(finished.any())

    def _check_length(self, finished: Array) -> None:
        """Raise ValueError where episodes do not have the length that the spec says they have.

        A step takes microseconds: that none ends early is only looked at in the first episodes.
        """
        at_end = self._clock == self._length
        if finished.all() if at_end else not (self._in_first_episodes and finished.any()):
            return
        which = "not every" if at_end else "an"
        raise ValueError(
            f"fixed_length is True, but {which} episode ended at step {self._clock} of "
            f"max_episode_length={self._length}: define fixed_length as False."
        )

    @property
    def _looks(self) -> bool:
        """Whether to look which episodes ended."""
        return self._on_host or self.spec.sampling_is_costly

    def _restart(
        self, state: State, obs: Observation, finished: Array
    ) -> tuple[State, Observation]:
        """`state` and `obs` with finished episodes replaced by the start of the next ones."""
        assert self._seed is not None
        self._clock, self._in_first_episodes = 0, False
        self._episode = self._episode + finished
        self._return = self.xp.where(finished, 0.0, self._return)
        if not self._looks:
            new_state, new_obs = self._begin(Key(self._seed, self._index, self._episode))
            return select(finished, new_state, state), select(finished, new_obs, obs)
        (rows,) = self.xp.nonzero(finished)
        if self._num_ahead > 1:
            new_state, new_obs = self._from_ahead(rows, finished)
        else:
            new_state, new_obs = self._begin(
                Key(self._seed, self._index[rows], self._episode[rows])
            )
        return put(rows, new_state, state), put(rows, new_obs, obs)

    @cached_property
    def _num_ahead(self) -> int:
        """How many episodes of each environment are begun at once."""
        if self.spec.fixed_length:
            return 1
        size = sum(values.nbytes for values in self.state.values()) // self.num_envs
        return max(1, min(_EPISODES_AHEAD, _BYTES_AHEAD // size) // self.num_envs)

    def _begin(self, key: Key) -> tuple[State, Observation]:
        """First states and observations of the episodes of `key`."""
        state = self.spec.initial_state(self.spec.sample(key))
        return state, self.spec.observe(state)

    def _from_ahead(self, rows: Array, finished: Array) -> tuple[State, Observation]:
        """The same for the current episodes of `rows`, from those that are made many at a time."""
        count, ahead = self._num_ahead, self._ahead
        if ahead is None or bool((self._episode[rows] >= ahead.first[rows] + count).any()):
            first = self.xp.where(finished, self._episode, self._episode + 1)
            numbers = self.xp.arange(count, device=self.device)
            episodes = (first[:, None] + numbers).reshape(-1)
            index = (self._index[:, None] + 0 * numbers).reshape(-1)
            assert self._seed is not None
            ahead = self._ahead = _Ahead(first, *self._begin(Key(self._seed, index, episodes)))
        slots = rows * count + self._episode[rows] - ahead.first[rows]
        return rows_of(ahead.state, slots), rows_of(ahead.obs, slots)

    def get_state(self) -> dict[str, Array]:
        """The full state as named NumPy arrays, to be saved with `numpy.savez`."""
        arrays = {
            "index": self._index,
            "episode": self._episode,
            "episode_return": self._return,
            **{f"task/{name}": values for name, values in self.state.items()},
        }
        return {
            "settings": np.array(repr(self.spec)),
            "seed": np.array(self._seed, dtype=np.uint64),
            **{
                name: np.asarray(array_api_compat.to_device(values, "cpu")).copy()
                for name, values in arrays.items()
            },
        }

    def set_state(self, saved: Mapping[str, Any]) -> Observation:
        """Restore what `get_state` returned, and return the current observations.

        Raises:
            ValueError: it was saved with other settings or another `num_envs`, has a missing
                or unknown entry, or an impossible value. TypeError: an entry has numbers of the
                wrong kind. In both cases the batch keeps its state.
        """
        settings = str(saved.get("settings", "an unknown environment"))
        if settings != repr(self.spec):
            raise ValueError(f"saved from {settings}, but this environment is {self.spec!r}.")
        example = BatchedEnv(self.spec, self.num_envs, seed=0)
        example.reset()
        arrays = _checked_state(saved, example.get_state(), self.spec)
        self._seed = int(arrays.pop("seed"))
        del arrays["settings"]
        self.first_index = int(arrays["index"][0])
        self._clock, self._ahead = int(arrays["task/t"][0]), None
        moved = {
            name: self.xp.asarray(values, device=self.device) for name, values in arrays.items()
        }
        self._index, self._episode = moved["index"], moved["episode"]
        self._return = moved["episode_return"]
        self._state = {
            name.removeprefix("task/"): values
            for name, values in moved.items()
            if name.startswith("task/")
        }
        return self.spec.observe(self._state)


def _checked_state(
    saved: Mapping[str, Any], example: Mapping[str, Array], spec: EnvSpec
) -> dict[str, Array]:
    """The entries of `saved`, with the shapes and dtypes of those of `example`.

    Args:
        saved: from the user.
        example: `BatchedEnv.get_state` of another batch of this size.
        spec: of the batch.

    Raises:
        ValueError: a missing or unknown entry, or one with a shape or value that a running batch
            cannot have. TypeError: an entry has numbers of the wrong kind.
    """
    for name in saved:
        if name not in example:
            raise unknown_choice("entry of a saved state", name, example)
    arrays = {}
    for name, like in example.items():
        if name not in saved:
            raise ValueError(f"the saved state has no entry {name!r}.")
        values = np.asarray(saved[name])
        if values.shape != like.shape:
            raise ValueError(f"{name!r} must have shape {like.shape}, got {values.shape}.")
        _check_values(name, values, spec)
        arrays[name] = values.astype(like.dtype, casting="same_kind")
    index, t = arrays["index"], arrays["task/t"]
    if (np.diff(index) != 1).any():
        raise ValueError(f"'index' must count up by 1, got {index.tolist()}.")
    if spec.fixed_length and (t != t[0]).any():
        raise ValueError(f"'task/t' must be the same in all environments, got {t.tolist()}.")
    return arrays


def _check_values(name: str, values: Array, spec: EnvSpec) -> None:
    # Before the cast, which could wrap a wrong number into the range.
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"{name!r} must be finite, got {values[~np.isfinite(values)][0]}.")
        return
    bounds = {
        "index": (0, _MAX_INDEX),
        "episode": (0, 2**63 - 1),
        "task/t": (0, spec.max_episode_length - 1),
        **{f"task/{part}": ends for part, ends in spec.state_bounds.items()},
    }
    if name not in bounds:
        return
    low, high = bounds[name]
    wrong = (values < low) | (values > high)
    if wrong.any():
        raise ValueError(f"{name!r} must be in [{low}, {high}], got {values[wrong].flat[0]}.")
