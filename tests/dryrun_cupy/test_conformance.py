"""The conformance suite over CuPy with an arena: see tests/clients/conformance.py."""

from __future__ import annotations

import functools
import json

import pytest

from ..clients.conformance import checks_for
from .dry_process import needs_cupy, run_dry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_cupy]  # the first of them builds


@functools.cache
def problems() -> dict[str, str]:
    done = run_dry("-W", "ignore::FutureWarning", "-m", "tests.dryrun_cupy.conformance")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", checks_for("cupy"))
def test_cupy_conforms(name: str) -> None:
    assert problems().get(name, "") == ""
