"""The recurrent trace unit: rotating traces of the input, each read through a nonlinearity."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, State, factory_kwargs, truncated_normal_, widened
from rlgates.cores.lru import LARGEST
from rlgates.cores.ssm import TRUNCATED
from rlgates.errors import check_choice, check_size
from rlgates.kernels import LinearStep

Nonlinearity = Literal["relu", "tanh"]


class RTU(LinearCell):
    """The linear recurrent trace unit (Elelimy et al. 2024).

    d pairs of traces, each pair a complex number that decays and turns:

        r  = exp(-exp(nu_log)),   theta = exp(theta_log),   gamma = sqrt(1 - r^2)
        c1' = r cos(theta) c1 - r sin(theta) c2 + gamma W_1 x
        c2' = r cos(theta) c2 + r sin(theta) c1 + gamma W_2 x
        h   = (f(c1'), f(c2'))                    the output, 2 d numbers

    It is an LRU without output maps. The paper's second kind, with f within the recurrence, is not
    linear in its state and is left out. The paper trains the unit online, with exact real-time
    gradients; here gradients are backpropagated through time, which gives the same within a
    sequence but is cut where the sequence begins.

    Initially r^2 is uniform in [0, 1], theta uniform in [0, 2 pi], W_1 and W_2 truncated normal
    with variance 1/I.

    Weights: `nu_log`, `theta_log` (d); `weight` (2 d, I), stacked W_1, W_2. The state is (c1, c2),
    initially zero. The traced forget gate is r, which is constant.

    Args:
        input_size: width of the input.
        hidden_size: number of pairs d; the output is twice as wide.
        nonlinearity: f, "relu" as in the published code, or "tanh".
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an unknown nonlinearity.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: Nonlinearity = "relu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = d = check_size("hidden_size", hidden_size)
        self.output_size = 2 * d
        self.nonlinearity = check_choice("nonlinearity", nonlinearity, ("relu", "tanh"))
        self.state_shapes = {"c1": (d,), "c2": (d,)}
        factory = factory_kwargs(device, dtype)
        self.nu_log = nn.Parameter(torch.empty(d, **factory))
        self.theta_log = nn.Parameter(torch.empty(d, **factory))
        self.weight = nn.Parameter(torch.empty(2 * d, self.input_size, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        tiny = torch.finfo(torch.float32).tiny  # keeps the logarithms finite
        squared = self.nu_log.uniform_(generator=generator).clamp(tiny, LARGEST)
        self.nu_log.copy_((-0.5 * squared.log()).log())
        self.theta_log.uniform_(0, math.tau, generator=generator).clamp_(min=tiny).log_()
        truncated_normal_(self.weight, self.input_size, generator).div_(TRUNCATED)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `nu_log`, `theta_log`, `W_1` and `W_2`."""
        w_1, w_2 = self.weight.detach().chunk(2)
        views = {"nu_log": self.nu_log.detach(), "theta_log": self.theta_log.detach()}
        return views | {"W_1": w_1, "W_2": w_2}

    def linear(self, x: Tensor) -> LinearStep:
        """The decay and turn, which are constant, and gamma W x."""
        rate, theta = torch.exp(self.nu_log), torch.exp(self.theta_log)
        r = torch.exp(-rate)
        gamma = torch.sqrt(-torch.expm1(-2 * rate))  # without cancellation near r = 1
        weight = gamma.repeat(2).unsqueeze(-1) * self.weight
        turn = torch.cat([r * torch.cos(theta), r * torch.sin(theta)])
        return LinearStep(turn, widened(nn.functional.linear(x, weight)))

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        return torch.tanh(h) if self.nonlinearity == "tanh" else torch.relu(h)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return torch.exp(-torch.exp(self.nu_log)).expand(len(projected), -1)
