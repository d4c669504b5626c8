"""When Triton kernels run, and the logged reason where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlgates import make_core
from rlgates.kernels import dispatch
from rlgates.kernels.triton import op as triton

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _clear_caches() -> Iterator[None]:
    """Clear what is cached about devices, before and after."""
    caches = triton.device_unsupported_reason, triton._launch_error
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_without_triton_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(triton, "launcher", missing)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    core = make_core("ur_lstm", 5, 4, backend="triton")
    with pytest.raises(ValueError, match="triton cannot be imported"):
        core(torch.ones(2, 3, 5))
    for device in (GPU, torch.device("cuda", 1)):
        assert "cannot be imported" in str(triton.device_unsupported_reason(device))


def test_without_triton_it_is_refused_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not tried: the compiled program would fail when it runs."""
    monkeypatch.setattr(triton, "INSTALLED", False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert "not installed" in str(triton.now_unsupported_reason(GPU))
    call: Any = SimpleNamespace(tensors=())
    assert dispatch._triton_scan_unsupported_reason(call) == "triton is not installed"
    monkeypatch.setattr(triton, "INSTALLED", True)
    assert triton.now_unsupported_reason(GPU) is None
    assert dispatch._triton_scan_unsupported_reason(call) is None


def test_on_a_cpu_only_the_interpreter_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="it runs on CUDA devices, got cpu"):
        make_core("ur_lstm", 5, 4, backend="triton")(torch.ones(2, 3, 5))
    triton.device_unsupported_reason.cache_clear()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton, "launcher", lambda: SimpleNamespace(INTERPRETED=True))
    core = make_core("ur_lstm", 5, 4)
    core.double()(torch.ones(2, 3, 5, dtype=torch.float64))
    assert core.backend_used == "plain"
    assert triton.device_unsupported_reason(torch.device("cpu")) is None


def test_kernels_that_cannot_be_built_are_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    def launch_error(problem: Any, device: torch.device) -> str:
        tried.append(problem)
        return f"triton fails on {device} (OutOfResources: shared memory)"

    launch = SimpleNamespace(INTERPRETED=False, launch_error=launch_error)
    monkeypatch.setattr(triton, "launcher", lambda: launch)
    problem: Any = ("lstm", "sigmoid")
    for _ in range(3):
        assert "shared memory" in str(triton._launch_error(problem, GPU))
    assert tried == [problem]
