"""The native extension; all else is in pyproject.toml.

It is optional: without a compiler the package installs all the same, and the plain loop runs.
The environment variable RLGATES_NATIVE=1 makes it a condition, and RLGATES_NATIVE=0 leaves it out.
"""

from __future__ import annotations

import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

CSRC = "rlgates/kernels/cpu/csrc"
# No -ffast-math, which would break the rounding of exp, and no -march: chosen at run time.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno"]
FLAGS += ["-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-g0", "-Werror=switch"]
NATIVE = os.environ.get("RLGATES_NATIVE", "")
if NATIVE not in ("", "0", "1"):
    raise SystemExit(f"RLGATES_NATIVE must be 0 or 1, got {NATIVE!r}.")


def packages() -> list[str]:
    """`rlgates` and all below it, from the four folders that make it up."""
    folders = {name: f"rlgates.{name}" for name in ("agents", "envs", "experiments")}
    folders["rlgates"] = "rlgates"
    below = [f"{name}.{sub}" for folder, name in folders.items() for sub in find_packages(folder)]
    return sorted({*folders.values(), *below})  # rlgates/ has links to the other folders


class BuildNative(build_ext):
    """With threads where the compiler has OpenMP, else without; the files beside each other."""

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile_beside(sources: list[str], *args: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_all([source], *args, **options), sources)
                return list(chain.from_iterable(made))

        self.compiler.compile = compile_beside
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        table = runpy.run_path("rlgates/kernels/layout.py")
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        for name, write in (("layout.h", table["header"]), ("kernels.h", table["kernels"])):
            Path(self.build_temp, name).write_text(write(), encoding="utf-8")
        ext.include_dirs.append(self.build_temp)
        plain = list(ext.extra_compile_args), list(ext.extra_link_args)
        try:
            ext.extra_compile_args = [*plain[0], "-fopenmp"]
            ext.extra_link_args = [*plain[1], "-fopenmp"]
            super().build_extension(ext)
        except (CompileError, LinkError):
            ext.extra_compile_args, ext.extra_link_args = plain
            super().build_extension(ext)


setup(
    packages=packages(),
    cmdclass={"build_ext": BuildNative},
    ext_modules=[
        Extension(
            "rlgates.kernels.cpu._native",
            [f"{CSRC}/{name}.cpp" for name in ("module", "plain", "avx2", "avx512")],
            depends=[
                "rlgates/kernels/layout.py",
                *sorted(map(str, Path(CSRC).rglob("*.h"))),
            ],
            include_dirs=[CSRC],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],  # one binary from Python 3.11 on
            py_limited_api=True,
            extra_compile_args=FLAGS,
            optional=NATIVE != "1",
        )
    ][: NATIVE != "0"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
