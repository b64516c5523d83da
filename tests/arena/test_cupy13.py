"""The CuPy tests again, with CuPy 13 instead of the installed version. `make test-slow` installs it into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..programs import ROOT, run

FOLDER = Path(sys.prefix) / "cupy13"
FILES = ["test_cupy.py", "test_cupy_hooks.py", "test_cupy_lifetimes.py", "test_cupy_internals.py"]


@pytest.mark.slow
@pytest.mark.skipif(not (FOLDER / "cupy").exists(), reason="no CuPy 13 here: make .venv/.cupy13")
@pytest.mark.parametrize("file", FILES)
def test_all_cupy_tests_pass_with_cupy_13(file: str) -> None:
    code = "import sys, cupy, pytest; print(cupy.__version__); sys.exit(pytest.main(sys.argv[1:]))"
    # CuPy finds two versions of itself installed, and warns.
    quiet = ["-q", "-W", "ignore::UserWarning", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    done = run(
        code,
        *quiet,
        str(ROOT / "tests/arena" / file),
        timeout=120,
        PYTHONPATH=str(FOLDER),
        PYTHONWARNINGS="ignore::UserWarning",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("13.")
