"""Networks that are steps of a differential equation: coRNN and LEM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, fill_buffers, named_rows, widened
from rlgates.errors import check_nonnegative, check_number, check_size
from rlgates.kernels import CellSpec


class CoRNN(Cell):
    """The coupled oscillatory network (Rusch and Mishra 2021), damped and driven oscillators.

        z' = z + dt (tanh(W_x x + W_z z + W_y y + b) - gamma y - epsilon z)
        y' = y + dt z'                    the output

    y are positions and z velocities; the damping is explicit, as in the authors' code. Where dt is
    small, gradients neither vanish nor explode; where dt^2 gamma or dt epsilon comes near 2, steps
    overshoot, and nothing bounds y.

    All weights and b are initialized from U[-1/sqrt(n), 1/sqrt(n)] for n = I + 2 d inputs, as in
    the authors' code. Weights: `weight_ih` (d, I), `weight_hh` (d, 2 d), which is W_z beside W_y,
    `bias` (d).

    The state is (y, z), initially zero, in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of oscillators d.
        dt: length of a step, above 0.
        gamma: frequency, above 0; epsilon: damping, at least 0. All three defaults are the authors'
            values for sequential MNIST (784 steps); for other tasks they tuned them.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a number out of range.
    """

    rates: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        dt: float = 0.042,
        gamma: float = 2.7,
        epsilon: float = 4.7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.dt = check_number("dt", dt, above=0)
        self.gamma = check_number("gamma", gamma, above=0)
        self.epsilon = check_nonnegative("epsilon", epsilon)
        self.state_shapes = {"y": (d,), "z": (d,)}
        factory = factory_kwargs(device, dtype)
        self.weight_ih = nn.Parameter(torch.empty(d, input_size, **factory))
        self.weight_hh = nn.Parameter(torch.empty(d, 2 * d, **factory))
        self.bias = nn.Parameter(torch.empty(d, **factory))
        self.register_buffer("rates", torch.empty(3, **factory), persistent=False)
        self.register_load_state_dict_post_hook(CoRNN.reset_buffers)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = (self.input_size + 2 * self.hidden_size) ** -0.5
        for parameter in self.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
        self.reset_buffers()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Native code reads them from a buffer.
        if name in ("dt", "gamma", "epsilon") and "rates" in self._buffers:
            self.reset_buffers()

    def reset_buffers(self, _: object = None) -> None:
        """Compute what native code reads."""
        rates = [self.dt * rate for rate in (1.0, self.gamma, self.epsilon)]
        fill_buffers(self, rates=torch.tensor(rates, dtype=torch.float64, device="cpu"))

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_x`, `W_z`, `W_y`, `b`."""
        W_z, W_y = self.weight_hh.detach().chunk(2, dim=1)
        return {"W_x": self.weight_ih.detach(), "W_z": W_z, "W_y": W_y, "b": self.bias.detach()}

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        y, z = state
        both = torch.cat([z, y], dim=-1)
        force = torch.tanh(widened(torch.addmm(projected, both, self.weight_hh.t())))
        z = z + self.dt * (force - self.gamma * y - self.epsilon * z)
        y = y + self.dt * z
        return y, (y, z)

    def recurrence(self) -> CellSpec:
        weights = self.weight_ih, self.bias, self.weight_hh, self.rates
        return CellSpec("cornn", (self.hidden_size,), weights)


class LEM(Cell):
    """Long expressive memory (Rusch et al. 2022): two states, each with its own step lengths.

    With L_k(x, y) = V_k x + W_k y + b_k:

        dt_z = dt sigmoid(L_1(x, y)),  dt_y = dt sigmoid(L_2(x, y))
        z' = (1 - dt_z) z + dt_z tanh(L_z(x, y))
        y' = (1 - dt_y) y + dt_y tanh(V_y x + W_y z' + b_y)      the output

    All weights and biases are initialized from U[-1/sqrt(d), 1/sqrt(d)], as in the authors' code. A
    map has one bias, as in the paper, not two as in that code. Weights: `weight_ih` (4 d, I) and
    `bias` (4 d), stacked 2, 1, y, z, `weight_hh` (3 d, d), stacked 2, 1, z, and `W_y` (d, d).

    The state is (y, z), initially zero, in float32 under autocast. The traced forget gate is
    1 - dt_z, or 0 where a dt above 1 makes it negative.

    Args:
        input_size: width of the input.
        hidden_size: number of units d of each state.
        dt: the longest step, above 0. At 1, the default, states stay within [-1, 1]; with shorter
            steps they last longer.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a dt that is not positive.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        dt: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.dt = check_number("dt", dt, above=0)
        self.state_shapes = {"y": (d,), "z": (d,)}
        factory = factory_kwargs(device, dtype)
        self.weight_ih = nn.Parameter(torch.empty(4 * d, input_size, **factory))
        self.weight_hh = nn.Parameter(torch.empty(3 * d, d, **factory))
        self.W_y = nn.Parameter(torch.empty(d, d, **factory))
        self.bias = nn.Parameter(torch.empty(4 * d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        for parameter in self.parameters():
            parameter.uniform_(-bound, bound, generator=generator)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `V_k`, `b_k` of the maps 2, 1, y, z, and `W_k`."""
        maps = dict.fromkeys("21yz", self.hidden_size)
        of_y = dict.fromkeys("21z", self.hidden_size)
        named = named_rows(maps, V=self.weight_ih, b=self.bias)
        return {**named, **named_rows(of_y, W=self.weight_hh), "W_y": self.W_y.detach()}

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def _maps(self, projected: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """dt_y, dt_z, L_z, and what L_y has of the input."""
        to_2, to_1, of_y, to_z = projected.chunk(4, dim=-1)
        of_2, of_1, of_z = nn.functional.linear(y, self.weight_hh).chunk(3, dim=-1)
        dt_y, dt_z = (self.dt * torch.sigmoid(widened(z)) for z in (to_2 + of_2, to_1 + of_1))
        return dt_y, dt_z, widened(to_z + of_z), of_y

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        y, z = state
        dt_y, dt_z, candidate, of_y = self._maps(projected, y)
        z = (1 - dt_z) * z + dt_z * torch.tanh(candidate)
        above = widened(torch.addmm(of_y, z, self.W_y.t()))
        y = (1 - dt_y) * y + dt_y * torch.tanh(above)
        return y, (y, z)

    def recurrence(self) -> CellSpec:
        weights = self.weight_ih, self.bias, self.weight_hh, self.W_y
        return CellSpec("lem", (self.hidden_size,), weights, constant=self.dt)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return (1 - self._maps(projected, state[0])[1]).clamp(min=0)
