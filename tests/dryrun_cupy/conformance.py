"""Runs the conformance suite over CuPy in a process with the libraries for dry runs, and prints what failed as JSON.

Started by test_conformance.py: ``python -m tests.dryrun_cupy.conformance``.
"""

from __future__ import annotations

import json

import arena
from arena import sim

from ..clients.conformance import run_checks

if __name__ == "__main__":
    sim.configure(races=True)
    print(json.dumps(run_checks("cupy", arena.Arena(cap="64MiB"))))
