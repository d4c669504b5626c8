"""Triton's interpreter, for tests of its kernels without a GPU; to be imported before Triton is."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch

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
