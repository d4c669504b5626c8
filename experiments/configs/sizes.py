"""Sizes of cores that have about as many parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

import torch

from rlgates.experiments.configs.modules import naming_module
from rlgates.registry import make_core


def largest_size(
    core: str, count: Callable[[int], int], parameters: int, step: int = 1, least: int = 1
) -> int:
    """The largest multiple of `step` within a budget of parameters, and at least `least * step`.

    Args:
        core: its name.
        count: the parameters of a size, which grow with it.
        parameters: the budget.
        step: of the sizes.
        least: the multiple to begin with.

    Raises:
        ValueError: the parameters do not grow with the size.
    """
    low, used, high = least, count(least * step), 0
    if count(2 * least * step) <= used:
        raise ValueError(
            f"core {core!r} has {used:,} parameters at its sizes {least * step} and "
            f"{2 * least * step}, so that no size has {parameters:,}."
        )
    while high != low + 1:
        if high:
            size = (low + high) // 2
        else:  # within the budget if the count grows at most with the square of the size
            size = max(low + 1, int(low * math.sqrt(parameters / used)))
        if (counted := count(size * step)) <= parameters:
            low, used = size, counted
        else:
            high = size
    return low * step


def equal_size(core: str, input_size: int, parameters: int, options: Mapping[str, Any]) -> int:
    """The largest even `hidden_size` with which a core has at most so many parameters.

    With `num_heads` among the options it is a multiple of that, too, and a head has two units.

    Args:
        core: its name.
        input_size: width of its input.
        parameters: the budget.
        options: of the core.

    Raises:
        ValueError: an unknown core or option, a core of the user that cannot be made, or one that
            has more parameters at every size, or the same number.
    """
    return _equal_size(core, input_size, parameters, json.dumps(dict(options), sort_keys=True))


@lru_cache(maxsize=1024)
def _equal_size(core: str, input_size: int, parameters: int, options: str) -> int:
    values = json.loads(options)

    @cache
    def count(hidden_size: int) -> int:
        # Not on the meta device, whose first use imports torch's compiler: seconds.
        with naming_module(core):
            made = make_core(core, input_size, hidden_size, generator=torch.Generator(), **values)
        return sum(parameter.numel() for parameter in made.parameters())

    heads = values.get("num_heads", 1)
    step = math.lcm(2, heads)
    least = 2 * heads // step
    if (fewest := count(least * step)) > parameters:
        raise ValueError(
            f"core {core!r} has {fewest:,} parameters at its smallest size, {least * step}; the "
            f"budget is {parameters:,}."
        )
    return largest_size(core, count, parameters, step, least)
