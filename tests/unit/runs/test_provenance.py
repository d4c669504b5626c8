"""What a run notes of the machine."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import pytest

import rlgates
from rlgates.experiments.runs.provenance import cpu_model, versions


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\n"
            "processor\t: 1\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n",
            "AMD EPYC (family 25, model 17)",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "aarch64"),
    ],
    ids=["x86", "arm"],
)
def test_the_processor(cpuinfo: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_: cpuinfo)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_model() == expected


def test_a_checkout_on_the_path_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(package: str) -> str:
        if package == "rlgates":
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert versions()["rlgates"] == rlgates.__version__
