"""Clipping the gradient and a step of Adam on the CPU, both in one call of native code."""

from __future__ import annotations

from array import array
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import CPU

_CALL, _NUMBERS = abi.integers(layout.ADAM_CALL), abi.numbers(layout.ADAM_NUMBERS)
_TENSORS = abi.integers(layout.ADAM_TENSORS)
_OTHER_ALGORITHMS = "amsgrad", "maximize", "capturable", "differentiable", "weight_decay"


class ClipAndStep:
    """Clips the gradient of all parameters by its norm and takes a step of Adam.

    It does what `torch.nn.utils.clip_grad_norm_` and `optimizer.step()` do, up to rounding, and
    keeps the state of the optimizer as torch has it. It remembers the tensors that it has checked.
    """

    def __init__(self) -> None:
        self._known: list[Tensor] = []
        self._addresses: list[int] = []

    def __call__(self, optimizer: Any, max_norm: float) -> Tensor | None:
        """Take a step, if native code can.

        Args:
            optimizer: one of torch.
            max_norm: above which gradients are scaled down.

        Returns:
            the norm before, or None where torch has to do it: the optimizer is not a fused
            `torch.optim.Adam` that took a step before; it has hooks, several groups or other
            options; or not all tensors are contiguous float32 on the CPU.
        """
        if not abi.built() or not _is_plain(optimizer):
            return None
        (group,) = optimizer.param_groups
        gradients, kept = list[Tensor](), list[Tensor]()
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = optimizer.state.get(weight)
            if not state:  # torch creates it at the first step
                return None
            gradients.append(weight.grad)
            kept += weight, state["exp_avg"], state["exp_avg_sq"], state["step"]
        addresses = [tensor.data_ptr() for tensor in kept]
        if not kept or (not self._knows(kept, addresses) and not self._learn(kept, addresses)):
            return None
        table = array("q")
        for i, gradient in enumerate(gradients):
            weight = kept[4 * i]
            if gradient.shape != weight.shape or not _is_writable(gradient):
                return None
            of_weight, *rest = addresses[4 * i : 4 * i + 4]
            table.extend((weight.numel(), of_weight, gradient.data_ptr(), *rest))
        norm = torch.empty((), dtype=torch.float32, device=CPU)
        numbers = group["lr"], *group["betas"], group["eps"], max_norm
        places = norm.data_ptr(), table.buffer_info()[0]
        call = _CALL.pack(abi.num_threads(), len(gradients))
        abi._native.adam_step(call + _NUMBERS.pack(*numbers) + _TENSORS.pack(*places))
        torch.autograd.graph.increment_version([*kept, *gradients])
        return norm

    def _knows(self, kept: list[Tensor], addresses: list[int]) -> bool:
        """Whether these are the tensors of the last step, in the same memory."""
        same = len(kept) == len(self._known) and all(map(is_, kept, self._known))
        return same and addresses == self._addresses

    def _learn(self, kept: list[Tensor], addresses: list[int]) -> bool:
        """Remember these tensors; False if native code cannot read and write them."""
        if not all(map(_is_writable, kept)):
            return False
        for weight, mean, square, step in zip(*(kept[i::4] for i in range(4)), strict=True):
            if not mean.shape == square.shape == weight.shape or step.ndim:
                return False
        self._known, self._addresses = kept, addresses
        return True


def _is_plain(optimizer: Any) -> bool:
    """Whether a step of it is one of fused Adam and nothing else."""
    if type(optimizer) is not torch.optim.Adam or "step" in vars(optimizer):
        return False
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    hooks = hooks or torch_optimizer._global_optimizer_pre_hooks
    if hooks or torch_optimizer._global_optimizer_post_hooks or len(optimizer.param_groups) != 1:
        return False
    (group,) = optimizer.param_groups
    if not group["fused"] or any(group[name] for name in _OTHER_ALGORITHMS):
        return False
    if any(isinstance(x, Tensor) for x in (group["lr"], group["eps"], *group["betas"])):
        return False
    # Native code takes denormal squares for 0, whose roots are up to 1e-19.
    return bool(group["eps"] >= 1e-12)


def _is_writable(tensor: Tensor) -> bool:
    """Whether native code may read and write these numbers as one row of float32."""
    return (
        (type(tensor) is Tensor or type(tensor) is torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and tensor.untyped_storage().nbytes() > 0
    )
