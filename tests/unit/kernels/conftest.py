"""Restores settings of the native code and of Triton that a test changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rlgates.kernels.cpu import abi


@pytest.fixture(params=["avx512", "avx2", "plain"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has."""
    before = abi._native.use()
    try:
        yield abi._native.use(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    finally:
        abi._native.use(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads may be changed."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
