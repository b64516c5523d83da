"""Runs a module of the tests in a process with a simulated GPU, as `arena dryrun` does."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from arena._dryrun import marks
from arena._dryrun.environment import Device, prepared
from tests.programs import ROOT

__all__ = ["CACHE", "NVRTC", "needs_cupy", "run_dry"]

CACHE = ROOT / "build" / "cache"  # what is built for CuPy outlives a run of the tests
NVRTC = ROOT / ".venv" / "nvrtc"  # NVIDIA's compiler, where `make` puts it: it must not be found by other tests

# Not imported here: this process would have NVIDIA's runtime then, which finds no GPU.
needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")


def run_dry(
    *arguments: str,
    devices: int = 1,
    folder: Path = ROOT,
    nvrtc: bool = False,
    timeout: float = 600,
    values: str = "control",
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS``. ``nvrtc``: with NVIDIA's compiler in place of the stand-in."""
    more = {"XDG_CACHE_HOME": str(CACHE), "CUDASIM_DEVICES": str(devices), marks.VARIABLE: values}
    with prepared(Device(None, 8 << 30), more) as ready:
        variables = dict(ready.variables)
        if nvrtc:
            kept = [file for file in variables["LD_PRELOAD"].split(":") if "libnvrtc" not in Path(file).name]
            variables["LD_PRELOAD"] = ":".join(kept)
            variables["LD_LIBRARY_PATH"] = str(NVRTC / "nvidia" / "cu13" / "lib")
        variables["PYTHONPATH"] += f":{ROOT}"
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=folder,
            env=variables,
        )
