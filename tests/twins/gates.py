"""Every gate in NumPy, written from the papers' equations; nothing is shared with the package.

All functions are analytic in their real inputs and take complex ones, so that derivatives
come from a complex step: f'(x) = Im f(x + ih) / h, without subtraction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.inexact]


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(-z)), without the exponential of a large number."""
    return (1 + np.tanh(z / 2)) / 2


def fast(z: Array) -> Array:
    """Ohno et al. 2022, equation 20."""
    return sigmoid(np.sinh(z))


def iterated_fast(z: Array) -> Array:
    """Ohno et al. 2022, appendix D."""
    return sigmoid(np.sinh(np.sinh(z)))


def softsign(z: Array) -> Array:
    """Ohno et al. 2022, section 4.3; |y| continued analytically from either side."""
    y = z / 2
    size = np.where(y.real < 0, -y, y)
    return (y / (1 + size) + 1) / 2


def cumax(z: Array) -> Array:
    """cumsum(softmax(z)) over the units (Shen et al. 2018)."""
    weights = np.exp(z - z.real.max(axis=-1, keepdims=True))
    return np.cumsum(weights / weights.sum(axis=-1, keepdims=True), axis=-1)


_SIGMOID = ("", "c", "u", "r", "ur", "um")
_CUMAX = ("o", "om", "or")
MAIN: dict[str, Callable[[Array], Array]] = {
    **dict.fromkeys(_SIGMOID, sigmoid),
    **dict.fromkeys(_CUMAX, cumax),
    "f": fast,
    "uf": fast,
    "ff": iterated_fast,
    "s": softsign,
}


def pair(gate: str, z: dict[str, Array], chunk: int = 1) -> tuple[Array, Array]:
    """The effective forget and input gate from the pre-activations of the maps."""
    main = MAIN[gate]

    def main_input(y: Array) -> Array:
        return 1 - cumax(y) if main is cumax else sigmoid(y)

    if "r" in z:  # Gu et al. 2020, equations 10 to 13
        f, r = main(z["f"]), sigmoid(z["r"])
        g = r * (1 - (1 - f) ** 2) + (1 - r) * f**2
        return g, 1 - g
    if "mf" in z:  # Gu et al. 2020, equations 19 to 23
        f_master = np.repeat(main(z["mf"]), chunk, axis=-1)
        i_master = np.repeat(main_input(z["mi"]), chunk, axis=-1)
        both = f_master * i_master
        f = sigmoid(z["f"]) * both + (f_master - both)
        i = sigmoid(z["i"]) * both + (i_master - both)
        return f, i
    f = main(z["f"])
    return f, main_input(z["i"]) if "i" in z else 1 - f


def gradients(
    function: Callable[[dict[str, Array]], Array], inputs: dict[str, Array]
) -> dict[str, Array]:
    """The gradient of a scalar function in each named array, by a complex step.

    All coordinates of an array are stepped at once, each at its index of a new leading
    axis, which the function must carry through.
    """
    h, result = 1e-30, {}
    for name, value in inputs.items():
        directions = np.eye(value.size).reshape(value.size, *value.shape)
        stepped = function({**inputs, name: value + 1j * h * directions})
        result[name] = (stepped.imag / h).reshape(value.shape)
    return result
