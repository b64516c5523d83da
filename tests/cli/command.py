"""Run ``arena`` as a command, in a new process or in one whose imports are done."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from .. import forked
from ..programs import ROOT, clean_environment

TRACE = ROOT / "benchmarks/traces/science.csv.gz"


DEFAULTS = {"ARENA_DRIVER": "sim", "COLUMNS": "100"}
IMPORTED = ("tests.cli.preloaded",)


def start_arena(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a new process, as a user would start it."""
    command = [sys.executable, "-m", "arena", *map(str, arguments)]
    env = {**clean_environment(), **DEFAULTS, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, env=env)


def run_arena(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a process that has done its imports."""
    code = "import arena._cli; arena._cli.main()"  # as arena/__main__.py does
    return forked.run(code, *map(str, arguments), imported=IMPORTED, timeout=100, **{**DEFAULTS, **environment})


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The facts that ``arena run --json`` prints last, on standard error."""
    facts: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return facts


ALLOCATES = """
import cupy
array = cupy.empty(10 << 20, dtype="u1")
del array
kept = cupy.empty(3 << 20, dtype="u1")
print("from the program")
"""
