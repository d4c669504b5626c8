"""Triton's interpreter, to test its kernels without a GPU; import this before Triton."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from support import equivalence
from torch import Tensor

from rlgates import Core

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MISSING = importlib.util.find_spec("triton") is None
REASON = "needs Triton, which comes with PyTorch for CUDA"

if DEVICE == "cpu" and not MISSING:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, some by Triton itself
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patched(tensor: Any, *scope: Any) -> None:
        """It counts loops to arrays of one number, which NumPy takes for no index since 2.4."""
        _patch(tensor, *scope)
        setter = scope[0].set_attr if scope else setattr
        setter(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patched


def run_in_one_launch(monkeypatch: pytest.MonkeyPatch, one: bool) -> None:
    """Use one launch of a kernel for all steps, or several launches per step."""
    from rlgates.kernels.triton import launch  # which reads the variable

    monkeypatch.setattr(launch, "MAX_FUSED_UNITS", 256 if one else 0)
    monkeypatch.setattr(launch, "MAX_PERSISTENT_BYTES", 2**30 if one else 0)


def seeded_core(name: str, hidden_size: int, num_layers: int = 1, **options: Any) -> Core:
    """A core on the device under test that runs Triton kernels."""
    options = {"backend": "triton", **options}
    return equivalence.seeded_core(name, hidden_size, num_layers, **options).to(DEVICE)


def random_sequence(core: Core, batch_size: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    x, state, episode_starts = equivalence.random_sequence(core, batch_size, steps)
    return x.to(DEVICE), state.to(DEVICE), episode_starts.to(DEVICE)


def check_against_loop(
    core: Core, x: Tensor, state: Tensor, episode_starts: Tensor | None, tolerance: float = 1e-5
) -> None:
    equivalence.check_against_loop(core, x, state, episode_starts, tolerance, "triton")
