"""Saving and loading agents, in SB3's format and in the safe one."""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from rlgates.agents.files import archive
from rlgates.agents.files.models import (
    NO_DAMAGE,
    load_model,
    pack_model,
    read_parameters,
    reading,
    saving,
)
from rlgates.agents.files.optimizers import restore_fused
from rlgates.errors import check_flag, suggestion

_LOAD_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    json.JSONDecodeError,
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    AttributeError,
    AssertionError,
    RuntimeError,
)


def _check_attributes(cls: type[Any], given: Iterable[str]) -> None:
    """Refuse names that no model of this class reads; `load` of SB3 takes any.

    A user's class may read names that only its own code knows, so a misspelled one is a warning.
    """
    if not given:
        return
    ours: Any = next(base for base in cls.__mro__ if base.__module__.startswith("rlgates.agents"))
    policy = next(iter(ours.policy_aliases.values()))
    makers: list[Any] = [OnPolicyAlgorithm.load, *cls.__mro__[:-1]]  # all but object
    known = vars(ours(policy, None, _init_setup_model=False)).keys() | {
        name for make in makers for name in inspect.signature(make).parameters
    }
    for name in given:
        if name in known:
            continue
        near = suggestion(name, sorted(known))
        message = f"load has no argument {name!r}.{near}"
        if cls is ours:
            raise TypeError(message)
        if near and not hasattr(cls, name):
            warnings.warn(f"{message} It becomes an attribute.", stacklevel=3)


class SavedAgent(OnPolicyAlgorithm):
    """An algorithm whose `save` and `load` take both formats."""

    def save(
        self,
        path: Any,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        *,
        format: Literal["sb3", "safe"] | None = None,
    ) -> None:
        """Save the agent.

        The default is SB3's zip, which sb3-contrib, RL Baselines3 Zoo and SB3's callbacks read and
        write. It takes any custom schedule or class, so that no training ends with an agent that
        cannot be saved. It contains pickles, which run code when they are loaded. To share agents,
        use the safe format (suffix `.rlgates`): weights, optimizer, settings and progress as data
        only, and the statistics of a VecNormalize, for `rlgates.agents.load_vec_normalize`. It
        stores no path: pass `tensorboard_log` to `load`. Training continues from either format bit
        for bit alike.

        Args:
            path: a file or stream; `.zip` or `.rlgates` is added to a name without a suffix.
            exclude: attributes to leave out.
            include: as in SB3; only for its format.
            format: "sb3" or "safe"; None for "safe" if `path` ends in `.rlgates`, else "sb3".

        Raises:
            ValueError: the agent holds something that cannot be written as data, such as a schedule
                that is a function or a custom policy class (the message names it). Format "sb3"
                with the suffix `.rlgates`.
        """
        if archive.chosen_format(path, format) == "sb3":
            super().save(path, exclude, include)
            return
        if include is not None:
            raise ValueError(f"include is for format='sb3', got {list(include)}.")
        with saving("the agent"):
            content = pack_model(self, tuple(exclude or ()))
        if isinstance(path, str | Path):
            archive.write(path, content)
        else:
            path.write(content)

    @classmethod
    def load(cls, path: Any, *args: Any, safe: bool = False, **kwargs: Any) -> Any:
        """As in SB3, for both formats of `save`, recognized by the file's content.

        A file in the safe format runs no code, and neither does any file with `safe=True` or a name
        that ends in `.rlgates`. SB3's zips run the code that is pickled in them: load only those
        you trust. They are accepted by default because this class replaces that of sb3-contrib, and
        sb3-contrib, `EvalCallback` and the Zoo write nothing else; for files from others, pass
        `safe=True`.

        Args:
            path, args, kwargs: as in SB3.
            safe: refuse files that are not in the safe format.

        Raises:
            TypeError: an argument whose name is not an attribute of the model; of a class of your
                own, a name that looks misspelled is a warning.
            ValueError: the file is damaged, holds no model of this class, or is not of the safe
                format.
            FileNotFoundError: the file does not exist.
        """
        _check_attributes(cls, kwargs)
        with archive.opened(path, check_flag("safe", safe)) as (found, file):
            if file is not None:
                with reading(found):
                    return load_model(cls, file, *args, **kwargs)
        try:
            model: Any = super().load(found, *args, **kwargs)
        except NO_DAMAGE:
            raise
        except _LOAD_ERRORS as error:
            raise ValueError(
                f"{path} is damaged, or not a model of {cls.__name__}: "
                f"{type(error).__name__}: {error}"
            ) from error
        model._reset_states()
        return model

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto"
    ) -> None:
        """As in SB3, from a file of either format; neither runs code here.

        Raises:
            ValueError: the file is damaged, or the parameters are those of another model.
        """
        if not isinstance(load_path_or_dict, dict):
            with archive.opened(load_path_or_dict) as (load_path_or_dict, file):
                if file is not None:
                    with reading(load_path_or_dict):
                        load_path_or_dict = read_parameters(self, *archive.unpack(file))
        super().set_parameters(load_path_or_dict, exact_match, device)
        restore_fused(self.policy.optimizer)
