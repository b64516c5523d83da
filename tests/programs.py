"""Programs of their own, for tests of what ends a process or must not share one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(
    code: str, *arguments: str, timeout: float = 60, check: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter that can import `tests`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDASIM_", "ARENA_"))}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=check,
        close_fds=False,
        timeout=timeout,
        cwd=ROOT,
        env={**clean, **environment},
    )
