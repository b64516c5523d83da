"""The fixtures of the tests of cuda-bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as cu

from arena import sim

from .client import NON_BLOCKING, end, ok, start


@pytest.fixture
def context() -> Iterator[Any]:
    yield start(0)
    end(0)


@pytest.fixture
def contexts() -> Iterator[tuple[Any, Any]]:
    """The contexts of two devices; the first is current."""
    sim.configure(memory=["8GiB", "24GiB"])
    second = start(1)
    yield start(0), second
    end(0, 1)


@pytest.fixture
def stream(context: Any) -> Iterator[Any]:
    made = ok(cu.cuStreamCreate(NON_BLOCKING))
    yield made
    ok(cu.cuStreamDestroy(made))
