"""The same tests on NVIDIA's driver and on the simulated one.

``make test-gpu`` runs them on NVIDIA's driver (run.py), each in its own process. Plain pytest runs them on the
simulated driver, unless ``ARENA_TEST_DRIVER=cuda``. They need about 300 MiB of device 0, and do only what is
documented: no test leaves an error in the context, such as a stray access, or uses a handle that was destroyed.
docs/hardware.md lists them, and says what was seen where.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

import arena
from arena import sim

from ..simulated.conftest import fresh
from ..simulated.cu import SUCCESS, Cu, prop

MIB = 1 << 20
VIRTUAL_MEMORY = 102  # a device attribute
DRIVER = os.environ.get("ARENA_TEST_DRIVER", "sim")
DEVICES = int(os.environ.get("CUDASIM_DEVICES", "2"))  # of the simulated driver

KINDS = pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
usleep = ctypes.CDLL(None).usleep


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds): how long the process of this test may take")


def open_driver() -> arena.Driver:
    """Open the driver to test. A simulated one is configured as the tests need it."""
    if DRIVER == "sim":
        fresh(devices=DEVICES)
    return arena.Driver.open(DRIVER)


def check(pool: arena.Arena) -> arena.Stats:
    """Check every invariant, the account and the cap."""
    pool.validate()
    s = pool.stats()
    assert (
        s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare <= s.cap
    )
    return s


class Gpu:
    """A driver, its device 0, and what a program does with it."""

    def __init__(self, driver: arena.Driver, notes: list[tuple[str, object]]) -> None:
        self.driver = driver
        self.cu = Cu(driver.path)
        self.context = self.cu.start()
        self.devices = self.cu.out("cuDeviceGetCount", kind=ctypes.c_int)
        self.total = self.cu.out("cuDeviceTotalMem", 0)
        has = self.cu.out("cuDeviceGetAttribute", VIRTUAL_MEMORY, 0, kind=ctypes.c_int)
        self.granule = self.cu.out("cuMemGetAllocationGranularity", ctypes.byref(prop()), 0) if has else 0
        self._retained = [0]
        self._notes = notes
        self.streams: list[int] = []
        self.pools: list[arena.Arena] = []

    def note(self, name: str, value: object) -> None:
        """Record a measurement. It is printed and stored in the JSON file, but does not affect the result."""
        self._notes.append((name, value))

    def needs(self, *functions: str) -> None:
        """Skip the test on a driver without one of these functions."""
        missing = [name for name in functions if not hasattr(self.cu.lib, name)]
        if missing:
            pytest.skip(f"this driver has no {', '.join(missing)}")

    def needs_virtual_memory(self) -> None:
        if not self.granule:
            pytest.skip("this device has no virtual memory management")

    def arena(self, **settings: Any) -> arena.Arena:
        self.pools.append(arena.Arena(**settings))
        return self.pools[-1]

    def stream(self, *, non_blocking: bool = True) -> int:
        """A stream of the current context that lives as long as the test."""
        self.streams.append(self.cu.stream(non_blocking=non_blocking))
        return self.streams[-1]

    def start(self, device: int) -> int:
        """Retain the primary context of another device until the end of the test, or skip the test if that fails."""
        context = ctypes.c_uint64()
        result = self.cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if result != SUCCESS:
            pytest.skip(f"device {device} cannot be used: {result}")
        self._retained.append(device)
        return context.value

    def use(self, context: int) -> None:
        self.cu.ok("cuCtxSetCurrent", context)

    def free(self) -> int:
        """What the driver reports as free on the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cu.ok("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def fill(self, address: int, value: int, size: int, stream: int = 0) -> None:
        self.cu.ok("cuMemsetD8Async", address, value, size, stream)

    def holds(self, address: int, value: int, size: int, stream: int = 0) -> bool:
        self.cu.ok("cuStreamSynchronize", stream)
        return self.cu.read(address, size) == bytes([value]) * size

    def hold(self, stream: int, seconds: float) -> None:
        """Keep a stream busy for a while. The host function is not Python's, so it never waits for the GIL."""
        self.cu.ok("cuLaunchHostFunc", stream, ctypes.cast(usleep, ctypes.c_void_p), int(seconds * 1e6))

    def synchronize(self) -> None:
        self.cu.ok(
            "cuCtxSynchronize", self.context
        )  # before CUDA 13 it takes no argument, and means the current context

    def end(self) -> None:
        self.use(self.context)
        for stream in self.streams:
            self.cu.ok("cuStreamSynchronize", stream)
        while self.pools:
            self.pools.pop().close()
        gc.collect()
        for stream in self.streams:
            self.cu.ok("cuStreamDestroy", stream)
        self.use(0)
        for device in self._retained:
            self.cu.ok("cuDevicePrimaryCtxRelease", device)


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    for name in ("CAP", "RESERVE", "HEADROOM", "GROWTH"):
        monkeypatch.delenv(f"ARENA_{name}", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    driver = open_driver()
    monkeypatch.setattr(arena._core, "default_driver", lambda: driver)
    gpu = Gpu(driver, request.node.user_properties)
    yield gpu
    gpu.end()
    if DRIVER == "sim":
        used = [sim.used(device) for device in range(DEVICES)]
        left, races = (sum(used), sim.census().handles, sim.census().reservations), sim.races()
        fresh()
        assert (left, races) == ((0, 0, 0), [])
