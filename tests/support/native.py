"""The mark of tests that need native code."""

from __future__ import annotations

import pytest

from rlgates.kernels.cpu import abi

needs_native = pytest.mark.skipif(
    not abi.built(), reason="rlgates.kernels.cpu._native was not built (it needs a C++ compiler)"
)
