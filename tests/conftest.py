"""For all tests: what is there before a module of them is no garbage, and is not looked at again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _spare_the_collector() -> Iterator[None]:
    """Every request that fails collects garbage, and so does the end of most tests; pytest keeps a lot that is none."""
    if gc.get_freeze_count():  # by a process that becomes a new one for each test, and ends with it
        yield
        return
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
