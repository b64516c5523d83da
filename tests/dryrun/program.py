"""Programs for dry runs, which need nothing but what comes with arena."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ..cli.test_cli import run_arena

GIB = 1 << 30
MIB = 1 << 20

# Takes what its first argument says from the arena of this process, in MiB, from two lines.
WITH_ARENA = """
import sys
import arena

pool = arena.default_arena()

def step(batch):
    weights = pool.allocate(64 << 20)
    activations = pool.allocate(batch << 20)
    return weights, activations

held = step(int(sys.argv[1]))
print("the program is done")
"""

# The same through the CUDA runtime, as frameworks with allocators of their own do.
WITH_RUNTIME = """
import ctypes, sys

cudart = ctypes.CDLL("libcudart.so.13")
held = []

def allocate(size):
    pointer = ctypes.c_void_p()
    code = cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    if code:
        raise MemoryError(f"cudaErrorMemoryAllocation ({code})")
    held.append(pointer)

allocate(64 << 20)
allocate(int(sys.argv[1]) << 20)
"""


def dry(
    tmp_path: Path, code: str, *arguments: object, options: tuple[object, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program dry, with options of arena before it and arguments of its own after it."""
    path = tmp_path / "train.py"
    path.write_text(code)
    return run_arena("dryrun", *options, path, *arguments, **environment)


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return facts
