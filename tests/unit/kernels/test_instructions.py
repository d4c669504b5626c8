"""The instruction set of the native code: which one is used, and that a variable chooses it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from support.native import needs_native

from rlgates.experiments.runs.provenance import session
from rlgates.kernels.cpu import abi

pytestmark = needs_native


def imported(name: str) -> subprocess.CompletedProcess[str]:
    """A process with `RLGATES_ISA=name` that says what the kernels use."""
    code = "from rlgates.kernels.cpu import abi; print(abi.instruction_set())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, abi.ISA: name},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_variable_chooses_it(instructions: str) -> None:
    assert imported(instructions).stdout == f"{instructions}\n"


def test_without_the_variable_it_is_the_best() -> None:
    before = abi._native.use()
    assert imported("").stdout == f"{abi._native.use('')}\n"
    abi._native.use(before)


def test_unknown_names_are_refused() -> None:
    done = imported("avx51")
    assert done.returncode
    assert "unknown RLGATES_ISA 'avx51'. Did you mean 'avx512'? Allowed:" in done.stderr


def test_a_processor_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = abi._native.use()
    monkeypatch.setenv(abi.ISA, "avx512")

    class Older:
        @staticmethod
        def use(name: str) -> str:
            raise ValueError(f"no kernels for {name!r} here")

    monkeypatch.setattr(abi, "_native", Older)
    with pytest.raises(ValueError, match="RLGATES_ISA: no kernels for 'avx512' here"):
        abi._use_named()
    monkeypatch.undo()
    assert abi._native.use() == before


def test_a_run_names_it_and_leaves_it_as_it_is(instructions: str) -> None:
    assert session(0, 1, torch.device("cpu"))["isa"] == instructions
    assert abi._native.use() == instructions
