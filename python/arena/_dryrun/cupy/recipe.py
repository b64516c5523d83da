"""What is built of CuPy for dry runs, and from what."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "FLAGS",
    "INCLUDE",
    "MODULES",
    "Module",
    "cython_options",
    "cython_requirement",
    "digest",
    "headers",
    "macros",
]

INCLUDE = Path(__file__).parent / "include"


@dataclass(frozen=True)
class Module:
    """A module of CuPy. Its source is not changed; some of the headers that it includes are ours."""

    name: str
    links_runtime: bool = False

    @property
    def source(self) -> Path:
        return Path(*self.name.split(".")).with_suffix(".pyx")


# All modules with a runtime of their own, except for cupy.cuda.jitify, which few use. The last three launch kernels
# that nvcc compiled; with our headers they only take the memory for it.
MODULES = (
    Module("cupy_backends.cuda.api.runtime", links_runtime=True),
    Module("cupy.random._generator_api"),
    Module("cupy.cuda.cub"),
    Module("cupy.cuda.thrust"),
)

# Packages with NVIDIA's headers. Structs do not change within a major version, and these are the headers that our
# runtime is checked against. Those in `crt/` are for both: for CUDA 12 they come with a compiler of 40 MB.
_RUNTIME = {12: "nvidia-cuda-runtime-cu12>=12.9,<12.10", 13: "nvidia-cuda-runtime>=13,<14"}
_CRT = "nvidia-cuda-crt>=13,<14"

# As CuPy is compiled, but optimised less: nothing is computed here.
FLAGS = ("-std=c++17", "-O1", "-DNDEBUG", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing", "-w")


def headers(cuda: int) -> list[str]:
    """The packages with NVIDIA's headers, as pip is asked for them."""
    return [_RUNTIME[cuda], _CRT]


def cython_requirement(source: Path) -> str:
    """The Cython that this CuPy is built with, as its source package says."""
    text = (source / "pyproject.toml").read_text()
    found = re.search(r"""["'](cython\b[^"']*)["']""", text, re.IGNORECASE)
    return found[1] if found else "Cython>=3,<4"


def cython_options(source: Path, cuda_version: int, cython: str) -> list[str]:
    """The command line for Cython: CuPy's own directives and compile-time constants."""
    directives = _directives(source / "install" / "cupy_builder" / "_command.py")
    constants = {
        "CUPY_USE_CUDA_PYTHON": False,
        "CUPY_CUFFT_STATIC": False,
        "CUPY_CYTHON_VERSION": cython,
        "CUPY_CUDA_VERSION": cuda_version,
        "CUPY_HIP_VERSION": 0,
    }
    options = ["--cplus", "-3"]
    for name, value in directives.items():
        options += ["-X", f"{name}={value}"]
    for name, value in constants.items():
        options += ["-E", f"{name}={value}"]
    return options


def _directives(file: Path) -> dict[str, Any]:
    """The dictionary ``compiler_directives`` of CuPy's build. Values that it computes are about profiling: off."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if [target.id for target in node.targets if isinstance(target, ast.Name)] == ["compiler_directives"]:
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {
                str(key.value): value.value if isinstance(value, ast.Constant) else False
                for key, value in pairs
                if isinstance(key, ast.Constant)
            }
    raise ValueError(f"{file} has no compiler_directives")


def macros(source: Path) -> list[str]:
    """Macros of CuPy's build that the modules need. The versions are those of the Thrust and CUB in its package."""
    bundled = source / "cupy" / "_core" / "include" / "cupy" / "_cccl"
    thrust = _defined(bundled / "thrust" / "thrust" / "version.h", "THRUST_VERSION")
    cub = _defined(bundled / "cub" / "cub" / "version.cuh", "CUB_VERSION")
    return ['-DCYTHON_EXTERN_C=extern "C"', f"-DTHRUST_VERSION={thrust}", f"-DCUPY_CUB_VERSION_CODE={cub}"]


def _defined(file: Path, macro: str) -> int:
    try:
        found = re.search(rf"^#define\s+{macro}\s+(\d+)", file.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) if found else 0


def digest() -> str:
    """Changes whenever something changes that the result depends on, apart from versions."""
    found = hashlib.sha256()
    for file in sorted([*INCLUDE.iterdir(), Path(__file__)]):
        if file.is_file():
            found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:8]
