"""An arena beside CuPy's own pool, which runs dry: the same calls have the same outcome."""

from __future__ import annotations

import json

import pytest

from .dry_process import needs_cupy, run_dry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_cupy]  # the first of them builds


def test_an_arena_does_what_cupys_own_pool_does() -> None:
    done = run_dry("-m", "tests.dryrun_cupy.pool_methods")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["arena"] == seen["cupy"]
    assert seen["cupy"]["freed"] == [1024, 0, 0, 1]
    assert seen["cupy"]["free_all_free"] == [[None, ["DeprecationWarning"]], 0, 0, 0]
