"""Native code that gives the simulated driver work, and that Python knows nothing of."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from arena import sim


def compile_with_driver(code: str, folder: Path) -> Path:
    """A library of some C code, linked with the simulated driver."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, built = folder / "native.c", folder / "native.so"
    source.write_text(code)
    driver = str(sim.library())
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", str(source), driver, "-o", str(built)], check=True)
    return built
