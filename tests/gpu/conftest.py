"""The same tests on NVIDIA's driver, where there is one with a device, and on the simulated one.

``make test-gpu`` runs those on NVIDIA's. They use device 0, some 300 MiB of it, and only what is documented: nothing
that would leave an error with the context, such as a stray access. docs/hardware.md says what was seen where.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import arena
from arena import ArenaError, sim

from ..simulated.conftest import fresh
from ..simulated.cu import Cu

MIB = 1 << 20


@functools.cache
def real_driver() -> arena.Driver | str:
    """NVIDIA's driver, or why not."""
    try:
        driver = arena.Driver.open("cuda")
        driver.devices()
        return driver
    except ArenaError as error:
        return str(error).split(". ")[0]


def pytest_report_header() -> str:
    driver = real_driver()
    devices = driver if isinstance(driver, str) else f"{driver!r}: {driver.devices()}"
    return f"NVIDIA's driver: {devices}"


class Gpu:
    """A driver, its device 0, and what a program does with it."""

    def __init__(self, driver: arena.Driver) -> None:
        self.driver = driver
        self.info = driver.devices()[0]
        self.cu = Cu(driver.path)
        self.cu.start()
        self.streams: list[int] = []
        self.pools: list[arena.Arena] = []

    def arena(self, **settings: Any) -> arena.Arena:
        self.pools.append(arena.Arena(**settings))
        return self.pools[-1]

    def stream(self) -> int:
        self.streams.append(self.cu.stream())
        return self.streams[-1]

    def free(self) -> int:
        """What the driver says is free on the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cu.ok("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def fill(self, address: int, value: int, size: int, stream: int = 0) -> None:
        self.cu.ok("cuMemsetD8Async", address, value, size, stream)

    def holds(self, address: int, value: int, size: int, stream: int = 0) -> bool:
        self.cu.ok("cuStreamSynchronize", stream)
        return self.cu.read(address, size) == bytes([value]) * size

    def end(self) -> None:
        for stream in self.streams:
            self.cu.ok("cuStreamSynchronize", stream)
        while self.pools:
            self.pools.pop().close()
        gc.collect()
        for stream in self.streams:
            self.cu.ok("cuStreamDestroy", stream)
        self.cu.ok("cuCtxSetCurrent", 0)
        self.cu.ok("cuDevicePrimaryCtxRelease", 0)


@pytest.fixture(params=["cuda", "sim"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    for name in ("CAP", "RESERVE", "HEADROOM", "GROWTH"):
        monkeypatch.delenv(f"ARENA_{name}", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    driver: arena.Driver | str = real_driver()
    if request.param == "sim":
        fresh()
        driver = arena.Driver.open("sim")
    elif isinstance(driver, str):
        pytest.skip(f"no GPU: {driver}")
    assert isinstance(driver, arena.Driver)
    chosen = driver
    monkeypatch.setattr(arena._core, "default_driver", lambda: chosen)
    gpu = Gpu(driver)
    yield gpu
    gpu.end()
    if request.param == "sim":
        left, races = (sim.used(), sim.census().handles, sim.census().reservations), sim.races()
        fresh()
        assert (left, races) == ((0, 0, 0), [])
