"""Run code in a new process, for tests that end their process or need a fresh one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def clean_environment() -> dict[str, str]:
    """This process's environment without the variables that would change the driver, an arena or a client.

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
    return run_command("-c", code, *arguments, timeout=timeout, check=check, **environment)


def run_command(
    *arguments: str, timeout: float = 60, check: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter with these arguments."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=check,
        close_fds=False,
        timeout=timeout,
        cwd=ROOT,
        env={**clean_environment(), **environment},
    )
