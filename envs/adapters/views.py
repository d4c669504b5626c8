"""The settings of `View`, for environments of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium

from rlgates.envs.engine.views import VIEW_SETTINGS, check_reward_scale, warn_of_kept_cue
from rlgates.envs.wrappers import PreviousActionReward, ScaleFrames, ScaleReward, ShowTime
from rlgates.errors import check_flag, unknown_choice

Env = gymnasium.Env[Any, Any]


def split_settings(
    name: str, settings: Mapping[str, Any], known: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `settings` of an environment, and those of `View` among them.

    Raises:
        ValueError: one that is neither `known` nor of `View` (the nearest of both is named).
    """
    allowed = (*known, *VIEW_SETTINGS)
    for setting in settings:
        if setting not in allowed:
            raise unknown_choice(f"setting of {name}", setting, allowed)
    own = {key: value for key, value in settings.items() if key not in VIEW_SETTINGS}
    return own, {key: value for key, value in settings.items() if key in VIEW_SETTINGS}


def with_view(
    env: Env,
    name: str,
    *,
    add_previous_action: bool = False,
    add_previous_reward: bool = False,
    add_time: bool = False,
    add_phase: bool = False,
    scale_frames: bool = False,
    reward_scale: float = 1.0,
) -> Env:
    """The environment in the wrappers that do what `View` does for the games of rlgates.

    Args:
        env: without phases.
        name: of the environment, for errors.
        add_previous_action, add_previous_reward, add_time, add_phase, scale_frames, reward_scale:
            as in `View`.

    Warns:
        UserWarning: `add_previous_action` makes memory superfluous.

    Raises:
        ValueError: it has no phases or images or does not say how long an episode is, or the
            scale is 0, not finite or above 1e30 in magnitude. TypeError: a setting of the wrong
            type.
    """
    action = check_flag("add_previous_action", add_previous_action)
    reward = check_flag("add_previous_reward", add_previous_reward)
    if check_flag("add_phase", add_phase):
        raise ValueError(f"add_phase: {name} has no phases.")
    if action and getattr(env.unwrapped, "actions_can_keep_the_cue", False):
        warn_of_kept_cue(name)
    reward_scale = check_reward_scale(reward_scale)
    if reward_scale != 1:
        env = ScaleReward(env, reward_scale)
    if action or reward:
        env = PreviousActionReward(env, action, reward)
    if check_flag("add_time", add_time):
        try:
            env = ShowTime(env)
        except ValueError as error:
            raise ValueError(
                f"add_time: {name} does not say how long an episode is. "
                "rlgates.envs.wrappers.ShowTime takes its max_steps."
            ) from error
    if check_flag("scale_frames", scale_frames):
        try:
            env = ScaleFrames(env)
        except ValueError as error:
            raise ValueError(f"scale_frames: {name} has no images.") from error
    return env
