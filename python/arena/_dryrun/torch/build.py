"""Compiles the extension for the installed PyTorch, once, and keeps it in a cache: ``$XDG_CACHE_HOME/arena/torch``."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..._core import __version__
from ...errors import ArenaError
from .. import tools

__all__ = ["SOURCES", "built_extension", "cache_folder"]

SOURCES = Path(__file__).parent / "cpp"
MAIN = "everything.cpp"
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
LINKED = ("c10", "c10_cuda", "torch_cpu")
WHAT = "the part of arena that computes values for PyTorch"
NEEDED = "torch/csrc/profiler/unwind/unwind.h"  # PyTorch 2.1's wheel lacks it


def cache_folder() -> Path:
    """Where the extensions are kept."""
    return tools.cache() / "torch"


def built_extension(torch: Any) -> Path:
    """The extension for this PyTorch. Compiles it if it is not there."""
    file = cache_folder() / f"values-{torch.__version__}-arena-{__version__}-{digest()}.so"
    if file.exists():
        return file
    if not (Path(torch.__file__).parent / "include" / NEEDED).exists():
        raise ArenaError(f"{WHAT} cannot be built for PyTorch {torch.__version__}, which does not bring {NEEDED}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with (file.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():  # another process may have compiled it by now
                compile_into(file, torch)
    except OSError as error:
        place = error.filename or file.parent
        raise ArenaError(f"{WHAT} cannot be kept: {place}: {error.strerror}") from None
    return file


def compile_into(file: Path, torch: Any) -> None:
    """Under another name first: a file is there whole, or not at all."""
    root = Path(torch.__file__).parent
    includes = [SOURCES / "include", root / "include", root / "include/torch/csrc/api/include"]
    print(f"Compiling {WHAT} {torch.__version__}, once: about ten seconds", file=sys.stderr)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="building-", dir=file.parent) as name:
        draft = Path(name) / file.name
        command = [
            tools.compiler(WHAT),
            *FLAGS,
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-I{folder}" for folder in includes),
            str(SOURCES / MAIN),
            "-o",
            str(draft),
            f"-L{root / 'lib'}",
            *(f"-l{library}" for library in LINKED),
        ]
        tools.run(command, "compiling it", what=WHAT)
        os.replace(draft, file)
    print(f"Compiled it in {time.monotonic() - began:.0f} s: {file}", file=sys.stderr)


@functools.cache
def digest() -> str:
    """Of what is compiled, and how."""
    state = hashlib.sha256(repr((FLAGS, LINKED)).encode())
    for source in sorted(SOURCES.rglob("*.?pp")) + sorted(SOURCES.rglob("*.h")):
        state.update(source.read_bytes())
    return state.hexdigest()[:12]
