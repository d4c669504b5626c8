"""Optimizers: their options in the header, what they keep for each parameter in a part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlgates.agents.files import tensors
from rlgates.agents.files.values import CLASSES, decode, encode, short, take
from rlgates.errors import unknown_choice


def encode_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An optimizer as JSON data, and its tensors: those of parameter 3 as `3.exp_avg`."""
    cls, state = type(optimizer), optimizer.state_dict()
    if CLASSES["optimizer_class"].get(cls.__name__) is not cls or len(state["param_groups"]) != 1:
        raise ValueError(
            f"the optimizer {cls.__name__} with {len(state['param_groups'])} groups: it must have "
            f"one, and be one of {', '.join(CLASSES['optimizer_class'])}"
        )
    moments: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        numbers[str(index)] = {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                moments[f"{index}.{name}"] = value
            else:
                numbers[str(index)][name] = encode(value)
    group = {name: encode(x) for name, x in state["param_groups"][0].items() if name != "params"}
    return {"class": cls.__name__, "group": group, "state": numbers}, moments


def read_optimizer(
    data: Any, part: bytes, policy: nn.Module, expected: type[Any]
) -> dict[str, Any]:
    """The state dictionary of an optimizer, whose tensors fit the parameters of `policy`."""
    take(data, "class", "group", "state")
    known = CLASSES["optimizer_class"]
    if not isinstance(data["class"], str) or data["class"] not in known:
        raise unknown_choice("optimizer", data["class"], known)
    cls = known[data["class"]]
    if cls is not expected:
        raise ValueError(f"it holds the state of {cls.__name__}, not of {expected.__name__}")
    group, kept = _read_group(cls, data["group"])
    parameters = list(policy.parameters())
    if not isinstance(data["state"], dict):
        raise ValueError(f"the state of an optimizer must be a table, got {short(data['state'])}")
    spec: tensors.Spec = {}
    state: dict[int, dict[str, Any]] = {}
    for key, numbers in data["state"].items():
        if key not in map(str, range(len(parameters))) or not isinstance(numbers, dict):
            raise ValueError(
                f"there is no parameter {short(key)}, but the optimizer has a state of it"
            )
        parameter, state[int(key)] = parameters[int(key)], {}
        for name, example in kept.items():
            if name in numbers:
                value = decode(numbers[name])
                if isinstance(example, Tensor) or not isinstance(value, int | float | None):
                    raise ValueError(f"{name} of parameter {key} must not be {short(value)}")
                state[int(key)][name] = value
            elif example is None or isinstance(example, Tensor):
                scalar = isinstance(example, Tensor) and example.ndim == 0
                of: Tensor = example if scalar else parameter  # type: ignore[assignment]
                spec[f"{key}.{name}"] = tensors.dtype_name(of), tuple(of.shape)
            else:
                raise ValueError(f"{name} of parameter {key} is missing")
        if foreign := numbers.keys() - kept.keys():
            raise ValueError(f"{cls.__name__} keeps no {short(min(foreign))}")
    for name, x in tensors.unpack(part, spec).items():
        key, _, field = name.partition(".")
        state[int(key)][field] = x
    return {"state": state, "param_groups": [{**group, "params": list(range(len(parameters)))}]}


def restore_fused(optimizer: torch.optim.Optimizer) -> None:
    """Let a loaded optimizer take fused steps if it was made so; sb3-contrib's files do not say."""
    groups = optimizer.param_groups
    silent = [g for g in groups if g.get("fused") is None and not g.get("foreach")]
    if optimizer.defaults.get("fused") and silent:
        for group in silent:
            group["fused"] = True
        # A fused optimizer counts its steps on the device of its parameters.
        optimizer.load_state_dict(optimizer.state_dict())


def _read_group(cls: type[Any], data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of an optimizer, and an example of what it keeps for a parameter of shape (2,).

    The example is the state after a step of such an optimizer.
    """
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.zeros(2)
    optimizer = cls([parameter])
    defaults = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    if not isinstance(data, dict):
        raise ValueError(f"the options of an optimizer must be a table, got {short(data)}")
    if foreign := data.keys() - defaults.keys():
        raise unknown_choice(f"option of {cls.__name__}", min(foreign), defaults)
    group = {name: decode(value) for name, value in data.items()}
    for name, value in group.items():
        if not _alike(value, defaults[name]):
            raise ValueError(f"{name} of {cls.__name__} must not be {short(value)}")
    group = {**defaults, **group}
    plain = {"fused": None, "foreach": None, "capturable": False, "differentiable": False}
    tried = {**group, **{name: value for name, value in plain.items() if name in group}}
    try:
        optimizer.load_state_dict({"state": {}, "param_groups": [{**tried, "params": [0]}]})
        optimizer.step()
    except (AssertionError, KeyError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"{cls.__name__} does not take {short(group)}: {error}") from error
    return group, dict(optimizer.state[parameter])


def _alike(value: Any, default: Any) -> bool:
    """Whether an option of an optimizer has a type like that of its default."""
    if default is None or isinstance(default, bool):
        return value is None or isinstance(value, bool)
    if isinstance(default, tuple | list):
        return (
            isinstance(value, tuple | list)
            and len(value) == len(default)
            and all(_alike(x, 0.0) for x in value)
        )
    return isinstance(value, int | float) and not isinstance(value, bool)
