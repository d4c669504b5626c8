"""Settings as JSON data and back: numbers, schedules, spaces, and classes by their names."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import stable_baselines3.common.sb2_compat.rmsprop_tf_like as tf_like
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn

from rlgates.agents.compilation import check_compile
from rlgates.agents.encoders import GridEncoder, LinearEncoder, MixedEncoder
from rlgates.agents.tvt import TVT
from rlgates.errors import suggestion, unknown_choice

MAX_SPACE = 2**26
"""The most numbers of an observation or action, all parts together."""
MAX_LAYERS = 256
_MAX_INTEGER = 2**64


def _by_name(*classes: type[Any]) -> dict[str, type[Any]]:
    return {cls.__name__: cls for cls in classes}


CLASSES: dict[str, dict[str, type[Any]]] = {
    "activation_fn": _by_name(
        *(nn.Tanh, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU),
        *(nn.Mish, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Identity),
    ),
    "features_extractor_class": _by_name(
        *(FlattenExtractor, NatureCNN, CombinedExtractor),
        *(GridEncoder, LinearEncoder, MixedEncoder),
    ),
    "optimizer_class": _by_name(
        *(torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam),
        *(torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop),
        *(torch.optim.SGD, tf_like.RMSpropTFLike),
    ),
}
"""The classes that a file may name, by the argument of a policy that they are given as."""


class Codec(NamedTuple):
    """A setting in a file: `encode` makes it JSON data, `decode` checks that and takes it back.

    Both raise ValueError for what they do not take.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def both(check: Callable[[Any], Any]) -> Codec:
    return Codec(check, check)


def optional(codec: Codec) -> Codec:
    """`codec`, or None."""
    return Codec(
        lambda value: None if value is None else codec.encode(value),
        lambda data: None if data is None else codec.decode(data),
    )


def integer(minimum: int = -_MAX_INTEGER) -> Codec:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"it must be a whole number, got {short(value)}")
        if not minimum <= value < _MAX_INTEGER:
            bound = "below 2**64" if value >= _MAX_INTEGER else f"at least {minimum}"
            raise ValueError(f"it must be {bound}, got {short(value)}")
        return int(value)

    return both(check)


def choice(*names: str) -> Codec:
    def check(value: Any) -> str:
        if value not in names:
            raise unknown_choice("value", value, names)
        return str(value)

    return both(check)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"it must be true or false, got {short(value)}")
    return bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _encode_number(value: Any) -> Any:
    if not _is_number(value):
        raise ValueError(f"it must be a number, got {short(value)}")
    return encode(value)


def _decode_number(data: Any) -> Any:
    value = decode(data)
    if not _is_number(value):
        raise ValueError(f"it must be a number, got {short(data)}")
    return value


def _compile(value: Any) -> bool | str:
    try:
        return check_compile(value)
    except TypeError as error:
        raise ValueError(str(error)) from error


COMPILE = both(_compile)
FLAG, NUMBER = both(_flag), Codec(_encode_number, _decode_number)


def _decode_count(data: Any) -> Any:
    value = _decode_number(data)
    if not value >= 0:
        raise ValueError(f"it must be at least 0, got {short(data)}")
    return value


COUNT = Codec(_encode_number, _decode_count)
"""A number that is at least 0 and may be infinite, as the steps of `learn`."""


def encode(value: Any) -> Any:
    """Plain data as JSON data: tuples and numbers that are not finite get a tag.

    Numbers of NumPy become those of Python.

    Raises:
        ValueError: it is, or holds, anything else.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return integer().encode(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else {"!float": repr(float(value))}
    if type(value) is tuple:
        return {"!tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key.startswith("!"):
                raise ValueError(f"the key {short(key)} is not text")
        return {key: encode(item) for key, item in value.items()}
    raise ValueError(f"{short(value)} is not data: only numbers, text, lists and dictionaries are")


def decode(data: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return integer().decode(data) if type(data) is int else data
    if not any(key.startswith("!") for key in data):
        return {key: decode(item) for key, item in data.items()}
    ((tag, content), *others) = data.items()
    if not others and tag == "!float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if not others and tag == "!tuple" and isinstance(content, list):
        return tuple(decode(item) for item in content)
    raise ValueError(f"unknown tag {short(data)}")


def encode_fields(owner: Any, fields: Mapping[str, Codec]) -> dict[str, Any]:
    """Attributes of `owner` as JSON data.

    Raises:
        ValueError: one is not data; the message names it.
    """
    encoded = {}
    for name, codec in fields.items():
        try:
            encoded[name] = codec.encode(getattr(owner, name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return encoded


def decode_fields(data: Any, fields: Mapping[str, Codec]) -> dict[str, Any]:
    """The inverse of `encode_fields`."""
    take(data, *fields)
    decoded = {}
    for name, codec in fields.items():
        try:
            decoded[name] = codec.decode(data[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return decoded


def take(data: Any, *names: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """`data`, if it is a dictionary with exactly these keys, and perhaps some of `extra`.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it must be a table of {', '.join(names)}, got {short(data)}")
    for name in data:
        if name not in (*names, *extra):
            raise ValueError(f"unknown key {short(name)}{suggestion(name, (*names, *extra))}")
    if missing := [name for name in names if name not in data]:
        raise ValueError(f"the key {missing[0]!r} is missing")
    return data


def _encode_schedule(value: Any) -> Any:
    while isinstance(value, FloatSchedule):
        value = value.value_schedule
    if type(value) is LinearSchedule:
        numbers = {name: getattr(value, name) for name in ("start", "end", "end_fraction")}
        return {"schedule": "linear", **{k: NUMBER.encode(v) for k, v in numbers.items()}}
    if type(value) is ConstantSchedule:
        return {"schedule": "constant", "val": NUMBER.encode(value.val)}
    if _is_number(value):
        return NUMBER.encode(value)
    raise ValueError(
        f"{short(value)} is a function: a number, or a ConstantSchedule or LinearSchedule of "
        "stable_baselines3.common.utils, is data"
    )


def _decode_schedule(data: Any) -> Any:
    if not isinstance(data, dict) or "schedule" not in data:
        return NUMBER.decode(data)
    kind = data["schedule"]
    if kind == "constant":
        return ConstantSchedule(NUMBER.decode(take(data, "schedule", "val")["val"]))
    if kind != "linear":
        raise unknown_choice("schedule", kind, ("constant", "linear"))
    take(data, "schedule", "start", "end", "end_fraction")
    return LinearSchedule(*(NUMBER.decode(data[k]) for k in ("start", "end", "end_fraction")))


SCHEDULE = Codec(_encode_schedule, _decode_schedule)


def _encode_tvt(value: Any) -> Any:
    if type(value) is not TVT:
        raise ValueError(f"it must be a TVT, got {short(value)}")
    return {name: encode(getattr(value, name)) for name in ("alpha", "threshold", "window")}


def _decode_tvt(data: Any) -> TVT:
    take(data, "alpha", "threshold", "window")
    return TVT(**{name: decode(value) for name, value in data.items()})


VALUE_TRANSPORT = Codec(_encode_tvt, _decode_tvt)


def encode_options(policy: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a policy as JSON data, classes by their names in `CLASSES`.

    Raises:
        ValueError: one is not data; the message names it.
    """
    encoded = {}
    for name, value in options.items():
        try:
            encoded[name] = _encode_option(name, value)
        except ValueError as error:
            raise ValueError(f"policy_kwargs[{name!r}]: {error}") from error
    check_options(policy, options)
    return encoded


def _encode_option(name: str, value: Any) -> Any:
    if name not in CLASSES or value is None:
        return encode(value)
    known = {cls: key for key, cls in CLASSES[name].items()}
    if value not in known:
        raise ValueError(f"{short(value)} has no name: {', '.join(CLASSES[name])} have")
    return known[value]


def decode_options(policy: type[Any], data: Any) -> dict[str, Any]:
    """The inverse of `encode_options`."""
    if not isinstance(data, dict):
        raise ValueError(f"policy_kwargs must be a table, got {short(data)}")
    options = {}
    for name, value in data.items():
        if name not in CLASSES or value is None:
            options[name] = decode(value)
        elif not isinstance(value, str) or value not in CLASSES[name]:
            raise unknown_choice(name, value, CLASSES[name])
        else:
            options[name] = CLASSES[name][value]
    check_options(policy, options)
    return options


def check_options(policy: type[Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError for options that the policy lacks, and for too many layers."""
    allowed = [name for name in inspect.signature(policy).parameters if name not in _GIVEN_APART]
    for name in options:
        if name not in allowed:
            raise unknown_choice(f"option of {policy.__name__}", name, allowed)
    layers = [_leaves(options.get("net_arch"))]
    for table in (options, options.get("core_kwargs"), options.get("lstm_kwargs")):
        for name in ("n_lstm_layers", "num_layers"):
            if isinstance(table, dict) and isinstance(count := table.get(name), int | float):
                layers.append(int(count))
    if max(layers) > MAX_LAYERS:
        raise ValueError(f"a policy in a file has at most {MAX_LAYERS} layers, got {max(layers)}")


_GIVEN_APART = ("observation_space", "action_space", "lr_schedule")


def _leaves(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_leaves, value.values()))
    return sum(map(_leaves, value)) if isinstance(value, list | tuple) else 1


def encode_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as JSON data: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of them.

    Raises:
        ValueError: another space.
    """
    kind = type(space)
    if isinstance(space, spaces.Dict):
        parts = {name: encode_space(part) for name, part in space.spaces.items()}
        if any(part["space"] == "Dict" for part in parts.values()):
            raise ValueError("a Dict of spaces must not hold another Dict")
        return {"space": "Dict", "spaces": parts}
    if kind is spaces.Box:
        assert isinstance(space, spaces.Box)
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"space": "Box", "shape": list(space.shape), "dtype": _dtype(space), **bounds}
    if kind is spaces.Discrete:
        assert isinstance(space, spaces.Discrete)
        start = int(space.start)
        return {"space": "Discrete", "n": int(space.n), "start": start, "dtype": _dtype(space)}
    if kind is spaces.MultiDiscrete:
        assert isinstance(space, spaces.MultiDiscrete)
        return {
            "space": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": _dtype(space),
        }
    if kind is spaces.MultiBinary:
        assert isinstance(space, spaces.MultiBinary)
        n = int(space.n) if isinstance(space.n, int | np.integer) else list(space.shape)
        return {"space": "MultiBinary", "n": n}
    raise ValueError(f"the space {space} cannot be written, but {', '.join(_SPACES)} can")


def _dtype(space: spaces.Space[Any]) -> str:
    return np.dtype(space.dtype).name


def _bound(values: np.ndarray[Any, Any]) -> Any:
    """A bound of a Box as one number, if it is the same everywhere, or else as lists."""
    flat = values.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return encode(flat[0].item())
    return encode(values.tolist())


def decode_space(data: Any) -> spaces.Space[Any]:
    """The inverse of `encode_space`; sizes are checked before an array is made.

    Raises:
        ValueError: it is no space, or one with more than `MAX_SPACE` numbers.
    """
    if _space_size(data) > MAX_SPACE:
        raise ValueError(f"a space has at most {MAX_SPACE:,} numbers")
    try:
        with np.errstate(all="raise"):  # a bound that its dtype does not hold
            return _SPACES[data["space"]][1](data)
    except (ArithmeticError, AssertionError, TypeError) as error:
        raise ValueError(f"{short(data)} is not a space ({error})") from error


def _space_size(data: Any, *, nested: bool = False) -> int:
    """The numbers of a space, whose keys are checked."""
    kind = data.get("space") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _SPACES or (nested and kind == "Dict"):
        raise unknown_choice("space", kind, _SPACES)
    take(data, "space", *_SPACES[kind][0])
    if kind == "Dict":
        if not isinstance(data["spaces"], dict):
            raise ValueError(f"the spaces of a Dict must be a table, got {short(data['spaces'])}")
        return sum(_space_size(part, nested=True) for part in data["spaces"].values())
    if kind == "Discrete":
        return integer(1).decode(data["n"])  # type: ignore[no-any-return]
    if kind == "MultiDiscrete":
        if not isinstance(data["nvec"], list):
            raise ValueError(f"nvec must be a list, got {short(data['nvec'])}")
        # SB3 makes a one-hot code of them.
        return int(sum(np.asarray(data["nvec"], dtype=np.float64).reshape(-1)))
    shape = data["shape"] if kind == "Box" else data["n"]
    if kind == "MultiBinary" and not isinstance(shape, list):
        shape = [shape]
    if not isinstance(shape, list) or len(shape) > 8:
        raise ValueError(f"a shape must be a list of at most 8 sizes, got {short(shape)}")
    return math.prod(integer(0).decode(size) for size in shape)


def _box(data: dict[str, Any]) -> spaces.Space[Any]:
    dtype, shape = _read_dtype(data, _BOX_DTYPES), tuple(data["shape"])
    low, high = (
        np.broadcast_to(np.asarray(decode(data[name]), dtype=dtype), shape)
        for name in ("low", "high")
    )
    return spaces.Box(low.copy(), high.copy(), shape, dtype)


def _discrete(data: dict[str, Any]) -> spaces.Space[Any]:
    dtype = _read_dtype(data, _INTEGERS)
    return spaces.Discrete(data["n"], start=integer().decode(data["start"]), dtype=dtype)


def _multi_discrete(data: dict[str, Any]) -> spaces.Space[Any]:
    dtype = _read_dtype(data, _INTEGERS)
    start = np.asarray(data["start"], dtype=dtype)
    return spaces.MultiDiscrete(np.asarray(data["nvec"], dtype=dtype), dtype=dtype, start=start)


def _dict(data: dict[str, Any]) -> spaces.Space[Any]:
    # Pairs keep the order of the file; gymnasium sorts the keys of a plain dictionary.
    return spaces.Dict([(name, decode_space(part)) for name, part in data["spaces"].items()])


def _read_dtype(data: dict[str, Any], allowed: tuple[str, ...]) -> Any:
    if data["dtype"] not in allowed:
        raise unknown_choice("dtype", data["dtype"], allowed)
    return np.dtype(data["dtype"]).type


_INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_BOX_DTYPES = ("float16", "float32", "float64", "bool", *_INTEGERS)
_SPACES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], spaces.Space[Any]]]] = {
    "Box": (("shape", "dtype", "low", "high"), _box),
    "Discrete": (("n", "start", "dtype"), _discrete),
    "MultiDiscrete": (("nvec", "start", "dtype"), _multi_discrete),
    "MultiBinary": (("n",), lambda data: spaces.MultiBinary(data["n"])),
    "Dict": (("spaces",), _dict),
}


def short(value: Any, most: int = 80) -> str:
    """The value for a message, in at most `most` characters."""
    text = value if isinstance(value, Exception) else repr(value)
    return str(text) if len(str(text)) <= most else f"{str(text)[: most - 3]}..."
