"""The fixture that writes a program and runs it with ``arena run``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from .command import run_arena


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Write a program, and run it with ``arena run``: options before it, arguments after it."""

    def make(
        code: str, *arguments: object, options: tuple[object, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(code)
        return run_arena("run", *options, path, *arguments, **environment)

    return make
