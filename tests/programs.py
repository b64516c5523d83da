"""Programs of their own, for tests of what ends a process or must not share one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def clean_environment() -> dict[str, str]:
    """The variables of this process, without those that would change the driver, an arena or a client.

    A program that uses a dead handle aborts, as it may on a card.
    """
    foreign = ("ARENA_", "CUDASIM_", "CUDA_", "NUMBA_")
    kept = ("ARENA_VALIDATE",)
    variables = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(foreign)}
    return {**variables, "CUDASIM_DEAD": "abort"}


def run(
    code: str, *arguments: str, timeout: float = 60, check: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter that can import `tests`."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=check,
        close_fds=False,
        timeout=timeout,
        cwd=ROOT,
        env={**clean_environment(), **environment},
    )
