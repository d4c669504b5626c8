"""Memories of a bounded number of steps: the last inputs, or only their number."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, full_precision, widened
from rlgates.errors import MAX_LENGTH, check_number, check_size
from rlgates.kernels import AllSteps

_LONGEST = 10_000.0  # of the periods of positions, times 2 pi (Vaswani et al. 2017)


def episode_begins(episode_starts: Tensor) -> Tensor:
    """The step at which the episode of each step began, (T, B) int64; negative before the first.

    Args:
        episode_starts: (T, B) bool.
    """
    times = _times(episode_starts).squeeze(-1)
    return torch.where(episode_starts, times, -MAX_LENGTH).cummax(dim=0).values


def step_numbers(first: Tensor, steps: int, episode_starts: Tensor | None) -> Tensor:
    """How many steps of its episode there are before each step, (T, B, 1).

    Args:
        first: how many there are before the first one, (B, 1).
        steps: T.
        episode_starts: (T, B) bool, or None.
    """
    times = torch.arange(steps, device=first.device).view(-1, 1, 1)
    if episode_starts is None:
        return first + times
    since = times - episode_begins(episode_starts).unsqueeze(-1)
    return torch.where(since <= times, since.to(first.dtype), first + times)


def sinusoids(position: Tensor, width: int) -> Tensor:
    """Sines and cosines in turn of positions (..., 1), (..., width): Vaswani et al. 2017."""
    number = torch.arange(width, device=position.device)
    exponent = (number // 2).to(position.dtype) * (-2 * math.log(_LONGEST) / width)
    angle = position * torch.exp(exponent)
    return torch.where(number % 2 == 1, torch.cos(angle), torch.sin(angle))


def _times(x: Tensor) -> Tensor:
    """The steps of x (T, ...), (T, 1, 1) int64."""
    return torch.arange(len(x), device=x.device).view(-1, 1, 1)


def _where(mask: Tensor, x: Tensor) -> Tensor:
    """x where the mask is true, else 0, even where x is not a number."""
    return torch.where(mask, x, x.new_zeros(()))


def windows(rows: Tensor, before: Tensor, first: Tensor, episode_starts: Tensor | None) -> Tensor:
    """The rows that each step sees, its own and those before it: (T, B, D, K), newest last.

    Args:
        rows: of all steps, (T, B, D).
        before: those before the first step, (B, K - 1, D), oldest first.
        first: those before the first step of an episode, likewise.
        episode_starts: (T, B) bool, or None.
    """
    steps, batch_size, width = rows.shape
    old = before.shape[1]
    together = torch.cat([before.transpose(0, 1).to(rows.dtype), rows])
    if episode_starts is None:
        return together.unfold(0, old + 1, 1)
    # All rows there are, those of `first` in front; then which of them each step sees.
    together = torch.cat([first.transpose(0, 1).to(rows.dtype), together])
    steps_back = torch.arange(-old, 1, device=rows.device)
    time = _times(rows) + steps_back
    begin = episode_begins(episode_starts).unsqueeze(-1)
    place = torch.where(time >= begin, 2 * old + time, old + time - begin)
    index = place.transpose(1, 2).reshape(steps * (old + 1), batch_size, 1).expand(-1, -1, width)
    return together.gather(0, index).view(steps, old + 1, batch_size, width).permute(0, 2, 3, 1)


class FrameStack(Cell):
    """A network on the last inputs, as in POPGym (Morad et al. 2023), after Mnih et al. 2015.

        u_t = C x_t                                       narrow: d / window numbers
        y   = psi(W_2 psi(W_1 [u_(t-window+1) ... u_t] + b_1) + b_2)

    where psi is the leaky ReLU. Inputs before the episode are zero. As in POPGym each input is
    compressed, so that the state has no more numbers than d; C has no bias here: with a bias,
    missing inputs would not be zero.

    All weights are sampled from U[-1/sqrt(n), 1/sqrt(n)] for n inputs of a layer; biases are zero.
    Weights: `weight_c` (w, I) with w = max(1, d // window), `weight_1` (d, w window), `weight_2`
    (d, d), `bias_1`, `bias_2`. The state is (rows), u of the last window - 1 steps, and is in
    float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output.
        window: number of inputs, the current one included, at least 2; 4 in POPGym.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is not an integer, or too small.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        window: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.window = check_size("window", window, 2, MAX_LENGTH)
        width = max(1, d // window)
        self.state_shapes = {"rows": (window - 1, width)}
        factory = factory_kwargs(device, dtype)
        self.weight_c = nn.Parameter(torch.empty(width, input_size, **factory))
        self.weight_1 = nn.Parameter(torch.empty(d, width * window, **factory))
        self.weight_2 = nn.Parameter(torch.empty(d, d, **factory))
        self.bias_1 = nn.Parameter(torch.empty(d, **factory))
        self.bias_2 = nn.Parameter(torch.empty(d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for weight in (self.weight_c, self.weight_1, self.weight_2):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        self.bias_1.zero_()
        self.bias_2.zero_()

    def project(self, x: Tensor) -> Tensor:
        return widened(nn.functional.linear(x, self.weight_c))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        rows = torch.cat([state[0], projected.unsqueeze(1).to(state[0].dtype)], dim=1)
        return self._read(rows.transpose(1, 2)), (rows[:, 1:],)

    def _read(self, rows: Tensor) -> Tensor:
        """The outputs (..., d) of rows (..., w, window), oldest first."""
        # In half precision too many units would be on the other side of a kink.
        with full_precision(rows.device.type):
            hidden = nn.functional.linear(rows.flatten(-2), self.weight_1, self.bias_1)
            hidden = nn.functional.leaky_relu(hidden)
            out = nn.functional.linear(hidden, self.weight_2, self.bias_2)
            return nn.functional.leaky_relu(out)

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        (shape,) = self.state_shapes.values()
        rows, before = self.project(x).to(state.dtype), state.unflatten(-1, shape)
        first = torch.zeros_like(before) if initial is None else initial.unflatten(-1, shape)
        seen = windows(rows, before, first, episode_starts)
        return self._read(seen), seen[-1, :, :, 1:].transpose(1, 2).flatten(1)


class FrameConv(Cell):
    """A convolution over the last inputs, as in POPGym, after Bai et al. 2018.

        y_t = sum over k < window of W_k x_(t-k) + b

    It is linear: nonlinearities belong to the layers around it. With several layers it is a network
    of causal convolutions that sees num_layers (window - 1) + 1 inputs. Inputs before the episode
    are zero.

    Weights are sampled from U[-1/sqrt(I window), 1/sqrt(I window)] for I inputs, as in
    torch.nn.Conv1d; the bias is zero. Weights: `weight` (window, d, I), the present input's first,
    and `bias` (d). The state is (pending): what the inputs so far add to the next window - 1
    outputs, initially zero.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output.
        window: number of inputs, the current one included, at least 2; 4 in POPGym.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is not an integer, or too small.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        window: int = 4,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.window = check_size("window", window, 2, MAX_LENGTH)
        self.state_shapes = {"pending": (window - 1, hidden_size)}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(window, hidden_size, input_size, **factory))
        self.bias = nn.Parameter(torch.empty(hidden_size, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = (self.input_size * self.window) ** -0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()

    def project(self, x: Tensor) -> Tensor:
        """What each input adds to its own output and the next ones, side by side."""
        return widened(nn.functional.linear(x, self.weight.flatten(0, 1)))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        added = projected.unflatten(-1, (self.window, self.hidden_size))
        pending = nn.functional.pad(state[0], (0, 0, 0, 1)) + added
        return pending[:, 0] + self.bias, (pending[:, 1:],)

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        steps, old, sizes = len(x), self.window - 1, (self.window, self.hidden_size)
        added = self.project(x).to(state.dtype).unflatten(-1, sizes).unbind(2)
        before = state.unflatten(-1, (old, self.hidden_size)).transpose(0, 1)
        # The sums of all steps and of those that follow, whose are still pending.
        begins = None
        if episode_starts is not None:
            begins = episode_begins(episode_starts)
            begins = torch.cat([begins, begins[-1:].expand(old, -1)]).unsqueeze(-1)
            before = _where(begins[:old] < 0, before)
        sums = nn.functional.pad(before, (0, 0, 0, 0, 0, steps))
        for k, part in enumerate(added):
            if begins is not None:
                part = _where(begins[k : k + steps] <= _times(part), part)
            sums = sums + nn.functional.pad(part, (0, 0, 0, 0, k, old - k))
        if begins is not None and initial is not None:
            age = _times(sums) - begins
            first = initial.unflatten(-1, (old, self.hidden_size)).transpose(0, 1)
            index = age.clamp(0, old - 1).expand_as(sums)
            sums = sums + _where((begins >= 0) & (age < old), first.gather(0, index))
        outputs, pending = sums.split([steps, old])
        return outputs + self.bias, pending.transpose(0, 1).flatten(1)


class Positional(Cell):
    """A layer that knows the time, not the past: the positional MLP of POPGym (Morad et al. 2023).

        y = tanh(W x + U p(n) + b)

    where n is the number of steps since the start of the episode, and p(n) are the sines and
    cosines of Vaswani et al. 2017: of n / 10000^(2k / d), for k < d / 2. It is the baseline for
    environments where the time alone is informative.

    Weights: `weight` (d, I), `weight_p` (d, d), `bias` (d), initialized as those of the core
    without memory. The state is (step), which counts exactly up to 2^24 steps in float32.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output.
        input_scale: factor on the initial weights of the input, in the lowest layer.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive.
    """

    first_layer_options = ("input_scale",)
    learnable = ()  # an episode begins with step 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        input_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.input_scale = check_number("input_scale", input_scale, above=0)
        self.state_shapes = {"step": (1,)}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(d, input_size, **factory))
        self.weight_p = nn.Parameter(torch.empty(d, d, **factory))
        self.bias = nn.Parameter(torch.empty(d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.weight_p.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()

    def project(self, x: Tensor) -> Tensor:
        return widened(nn.functional.linear(x, self.weight, self.bias))

    def _read(self, projected: Tensor, step: Tensor) -> Tensor:
        """The outputs at these steps, (..., 1)."""
        position = sinusoids(step, self.hidden_size).to(self.weight_p.dtype)
        return torch.tanh(projected + widened(nn.functional.linear(position, self.weight_p)))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (step,) = state
        return self._read(projected, step), (step + 1,)

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        step = step_numbers(state, len(x), episode_starts)
        return self._read(self.project(x), step), step[-1] + 1
