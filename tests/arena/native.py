"""Native code that launches work on the simulated driver without Python's knowledge."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from arena import sim


def compile_with_driver(code: str, folder: Path) -> Path:
    """Compile C code into a library that is linked with the simulated driver."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, built = folder / "native.c", folder / "native.so"
    source.write_text(code)
    driver = str(sim.library())
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", str(source), driver, "-o", str(built)], check=True)
    return built
