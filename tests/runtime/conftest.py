"""A fresh simulated driver below the runtime for every test, with the race checker on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..simulated.conftest import fresh
from .rt import Program, Rt


@pytest.fixture(params=[12, 13], scope="session")
def library(request: pytest.FixtureRequest) -> Rt:
    return Rt(request.param)


@pytest.fixture
def rt(library: Rt) -> Iterator[Rt]:
    """The runtime of either major version, with one device of 8 GiB."""
    fresh(dead="report")
    library.cudaGetLastError()
    yield library
    library.cudaGetLastError()
    fresh()


@pytest.fixture
def two(library: Rt) -> Iterator[Rt]:
    """With two devices."""
    fresh(dead="report", devices=2)
    library.cudaGetLastError()
    yield library
    library.ok("cudaSetDevice", 0)
    fresh()


@pytest.fixture
def program(rt: Rt) -> Iterator[Program]:
    one = Program(rt)
    yield one
    one.unregister()
