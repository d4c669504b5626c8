"""Agents in files: other formats made safe, and statistics taken out of a file."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rlgates.agents.files import archive
from rlgates.agents.files.models import pack_model, reading, saving
from rlgates.agents.files.normalize import restore_normalize
from rlgates.agents.ppo import RecurrentPPO
from rlgates.agents.sequences.updates import SequenceAlgorithm
from rlgates.errors import check_flag

__all__ = ["convert", "load_vec_normalize"]


def convert(
    source: str | Path,
    target: str | Path | None = None,
    algorithm: type[SequenceAlgorithm] = RecurrentPPO,
    vec_normalize: str | Path | None = None,
    custom_objects: dict[str, Any] | None = None,
) -> Path:
    """Convert an agent saved by Stable-Baselines3 or sb3-contrib to the safe format.

    **This unpickles `source` and `vec_normalize`: code in them runs.** Convert only files that
    you trust. The converted file runs no code when it is loaded.

    Args:
        source: the zip, even if it is named `.rlgates` by mistake.
        target: the file to write; by default, `source` with the suffix `.rlgates`, which replaces
            a zip of that name.
        algorithm: of the agent.
        vec_normalize: a file written by `VecNormalize.save`, whose statistics to include.
        custom_objects: replacements for objects that are not data, such as {"clip_range": 0.2} for
            a schedule that is a function.

    Returns:
        the file.

    Raises:
        ValueError: `source` is already in the safe format, is not a zip, is damaged or holds
            objects that cannot be written as data; `vec_normalize` holds something else.
        TypeError: `algorithm` is not an algorithm of rlgates.
        FileNotFoundError: a file does not exist.
    """
    given: Any = algorithm
    if not (isinstance(given, type) and issubclass(given, SequenceAlgorithm)):
        raise TypeError(f"algorithm must be a class such as RecurrentPPO, got {algorithm!r}.")
    found = archive.find(Path(source))
    model = _loaded(found, algorithm, custom_objects)
    statistics = None
    if vec_normalize is not None:
        statistics = _unpickled(Path(vec_normalize))
        if not isinstance(statistics, VecNormalize):
            raise ValueError(
                f"{vec_normalize} holds a {type(statistics).__name__}, not a VecNormalize."
            )
    target = found.with_suffix(archive.SUFFIX) if target is None else Path(target)
    with saving(str(found)):
        content = pack_model(model, vec_normalize=statistics)
    return archive.write(target, content)


def _loaded(
    path: Path, algorithm: type[SequenceAlgorithm], custom_objects: dict[str, Any] | None
) -> Any:
    """The agent in a zip, whatever its suffix."""
    settings: dict[str, Any] = {"device": "cpu", "custom_objects": custom_objects}
    if not path.is_file():
        return algorithm.load(path, **settings)  # SB3 says what is missing
    with path.open("rb") as file:
        if archive.is_safe_format(file):
            raise ValueError(f"{path} is already in the safe format.")
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not a zip written by SB3's save.")
        return algorithm.load(file if path.suffix == archive.SUFFIX else path, **settings)


def _unpickled(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return pickle.load(file)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{path} is not a pickle: {error}.") from error


def load_vec_normalize(path: str | Path, env: VecEnv, *, training: bool = True) -> VecNormalize:
    """`env` with observations and rewards normalized as they were for a saved agent.

        env = load_vec_normalize("agent.rlgates", make_vec_env("CartPole-v1", 8))
        model = RecurrentPPO.load("agent.rlgates", env)

    By default this is for further training: every step updates the statistics, and rewards are
    scaled. For evaluation, pass `training=False`.

    Args:
        path: a file in the safe format whose agent had a VecNormalize.
        env: environments with the observations of the agent.
        training: False sets `training` and `norm_reward` to False, as an evaluation needs; with
            True both are as they were saved.

    Raises:
        ValueError: the file is not in the safe format, is damaged or holds no statistics, or they
            do not fit `env`.
        FileNotFoundError: the file does not exist.
    """
    with archive.opened(path, safe=True) as (found, file), reading(found):
        assert file is not None
        wrapped = restore_normalize(*archive.unpack(file), env)
    if not check_flag("training", training):
        wrapped.training = wrapped.norm_reward = False
    return wrapped
