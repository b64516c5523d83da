"""A driver that is fresh for every test, with the race checker on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arena import sim

from .cu import Cu

DEFAULTS = {
    "memory": "8GiB",
    "devices": 1,
    "granularity": "2MiB",
    "vmm": True,
    "version": 13000,
    "delay": 0,
    "seed": 0,
    "other": 0,
    "prices": "a100",
    "races": True,
}


def fresh(**settings: object) -> None:
    sim.reset()
    sim.configure(**{**DEFAULTS, **settings})  # type: ignore[arg-type]


@pytest.fixture
def machine() -> Iterator[None]:
    """Before cuInit, with default settings. A test that causes races on purpose clears them."""
    fresh()
    yield
    sim.configure(races=True)  # a test may have switched it off
    found = sim.races()
    fresh()
    assert found == [], "\n".join(map(str, found))


@pytest.fixture
def cu(machine: None) -> Cu:
    """The driver, with the primary context of device 0 current."""
    driver = Cu()
    driver.start()
    return driver


@pytest.fixture
def two_devices(machine: None) -> tuple[Cu, int, int]:
    """The driver and the primary contexts of two devices; the first is current."""
    sim.configure(devices=2)
    driver = Cu()
    second = driver.start(1)
    first = driver.start(0)
    return driver, first, second
