"""A fresh driver for every test, with the race checker on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arena import sim

from .. import findings
from .cu import Cu

DEFAULTS = {
    "card": "",
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
    "values": False,
    "peers": "all",
    "integrated": False,
    "rdma": True,
    "page_cache": 0,
    "address_space": 0,
    "exclusive": "",
    "sync_unmap": False,
    "reuse": True,
    "dead": "abort",
}


def fresh(**settings: object) -> None:
    """Reset the driver and its settings. Findings so far stay with the test."""
    findings.keep()
    sim.reset()
    sim.configure(**{**DEFAULTS, **settings})  # type: ignore[arg-type]


@pytest.fixture
def machine() -> Iterator[None]:
    """Before cuInit, with default settings. A test that causes findings on purpose acknowledges them: ``expect``.

    The tests of the driver itself use dead handles on purpose, so these are reported here. In other tests they abort.
    """
    fresh(dead="report")
    yield
    fresh()


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
