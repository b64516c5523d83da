"""The half of the suite that is for NVIDIA's driver, on a library that it takes for one: so that it is known to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from arena import sim

from ..programs import ROOT, clean_environment

TELLS = b"\0cudasimError\0"  # the function by which arena knows the simulated driver


def test_the_half_for_nvidias_driver_runs_on_a_library_that_passes_for_it(tmp_path: Path) -> None:
    library = Path(sim.library()).read_bytes()
    assert library.count(TELLS) == 1
    (tmp_path / "libcuda.so.1").write_bytes(library.replace(TELLS, TELLS.upper()))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(
        [*command, "-k", "cuda and not cupys_arrays"],  # they need NVIDIA's runtime too, which knows the real one
        cwd=ROOT,
        env={**clean_environment(), "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    assert "NVIDIA's driver: <arena.Driver" in done.stdout
    assert "19 passed" in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1]
