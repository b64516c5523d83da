"""The simulated CUDA driver: settings, faults, counts, races.

The driver is the library ``libcudasim.so`` in this package. It behaves like NVIDIA's ``libcuda.so.1``, without a GPU,
for this process. :func:`enable` makes it the driver of every CUDA program that is imported afterwards:

>>> from arena import sim
>>> sim.configure(memory="80GiB", races=True)
>>> sim.enable()
>>> sim.used(0)
0

Each setting can also be given by an environment variable (``CUDASIM_MEMORY=80GiB``); :func:`configure` lists them.
Importing this module loads nothing. docs/simulated-driver.md says what is simulated and what is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import _core
from .errors import ArenaError, UsageError

__all__ = [
    "Access",
    "Census",
    "Race",
    "Settings",
    "add_device",
    "call_table",
    "calls",
    "census",
    "clear_faults",
    "clear_races",
    "clock",
    "configure",
    "enable",
    "fail",
    "library",
    "peak",
    "race_count",
    "races",
    "reset",
    "reset_counts",
    "restart",
    "settings",
    "temporarily",
    "used",
]


@dataclass(frozen=True)
class Settings:
    """What the simulated machine is like, and how it behaves. See :func:`configure`."""

    devices: int
    memory: tuple[int, ...]
    granularity: int
    vmm: bool
    version: int
    delay: int
    other: int
    prices: str
    races: bool


@dataclass(frozen=True)
class Access:
    """One side of a :class:`Race`: what an operation did to the bytes from ``begin`` to ``end``."""

    operation: str
    number: int
    stream: int
    access: str
    begin: int
    end: int

    def __str__(self) -> str:
        where = f"{self.access} of [{self.begin:#x}, {self.end:#x})"
        return f"{self.operation} ({where}, stream {self.stream:#x})" if self.number else f"{self.operation} ({where})"


@dataclass(frozen=True)
class Race:
    """Two operations that nothing orders, on the same bytes, at least one of them writing.

    ``kind`` is ``"race"`` for two operations in streams, ``"removed"`` when the second is a call of the host that
    takes the memory away (``cuMemUnmap``) while the first may still be running.
    """

    kind: str
    first: Access
    second: Access

    def __str__(self) -> str:
        return f"{self.kind}: {self.second} is not ordered after {self.first}"


@dataclass(frozen=True)
class Census:
    """How many objects of each kind are alive in the driver. No devices: it is not initialised."""

    devices: int
    handles: int
    mappings: int
    reservations: int
    allocations: int
    streams: int
    events: int
    contexts: int


def library() -> Path:
    """Return the path of the simulated driver's library.

    >>> library().name
    'libcudasim.so'
    """
    return Path(_core.__file__).with_name("libcudasim.so")


def enable() -> None:
    """Make the simulated driver the ``libcuda.so.1`` of this process.

    Call it before importing what uses CUDA (cuda-bindings, cuda-core, numba): they find a driver by that name, and the
    one that was loaded first is the one they get. Raises :class:`ArenaError` if another one already is.
    """
    _load().enable()


def configure(
    *,
    devices: int | None = None,
    memory: int | str | list[int | str] | None = None,
    granularity: int | str | None = None,
    vmm: bool | None = None,
    version: int | None = None,
    delay: int | None = None,
    other: int | str | None = None,
    prices: str | None = None,
    races: bool | str | None = None,
) -> None:
    """Change settings; what is not given stays as it is. In brackets the environment variable.

    Those that describe the machine can be changed until the driver is initialised, and again after :func:`reset`:

    - ``devices``: how many there are [``CUDASIM_DEVICES``, 1]
    - ``memory``: bytes of each, or a list with one for each: ``8 << 30``, ``"80GiB"``, ``["8GiB", "24GiB"]``
      [``CUDASIM_MEMORY``, 8GiB]. Host memory is used only for what is written to.
    - ``granularity``: the unit of physical memory [``CUDASIM_GRANULARITY``, 2MiB]
    - ``vmm``: whether devices have virtual memory management [``CUDASIM_VMM``, 1]
    - ``version``: what the driver says its version is [``CUDASIM_VERSION``, 13000]

    The others can be changed at any time:

    - ``delay``: microseconds that each operation in a stream takes [``CUDASIM_DELAY``, 0]
    - ``other``: bytes that another process holds on each device [``CUDASIM_OTHER``, 0]
    - ``prices``: the price table of the virtual :func:`clock`: ``"a100"``, ``"small"``, ``"free"``
      [``CUDASIM_PRICES``, a100]
    - ``races``: the race checker: on, off, or ``"print"`` to write each report to standard error as well
      [``CUDASIM_RACES``, 0]

    >>> configure(delay=0)
    >>> configure(prices="cheap")
    Traceback (most recent call last):
        ...
    arena.errors.UsageError: prices: 'cheap' is not accepted; write a100, small or free
    """
    driver = _load()
    sizes = memory if isinstance(memory, list) else [] if memory is None else [memory]
    # Memory before devices: a list of sizes sets their number, and the number is checked against the list.
    given = {
        "memory": ",".join(_text("memory", size) for size in sizes) or None,
        "devices": devices,
        "granularity": granularity,
        "vmm": vmm,
        "version": version,
        "delay": delay,
        "other": other,
        "prices": prices,
        "races": races,
    }
    for name, value in given.items():
        if value is not None:
            driver.set(name, _text(name, value))


def settings() -> Settings:
    """Return the settings in force."""
    get = _load().get
    return Settings(
        devices=int(get("devices")),
        memory=tuple(int(size) for size in get("memory").split(",")),
        granularity=int(get("granularity")),
        vmm=get("vmm") == "1",
        version=int(get("version")),
        delay=int(get("delay")),
        other=int(get("other")),
        prices=get("prices"),
        races=get("races") != "0",
    )


@contextlib.contextmanager
def temporarily(
    *,
    delay: int | None = None,
    other: int | str | None = None,
    prices: str | None = None,
    races: bool | str | None = None,
) -> Iterator[None]:
    """Change settings as :func:`configure` does, and put them back at the end of the ``with`` block."""
    driver = _load()
    names = ("delay", "other", "prices", "races")
    before = {name: driver.get(name) for name in names}
    configure(delay=delay, other=other, prices=prices, races=races)
    try:
        yield
    finally:
        for name in names:
            driver.set(name, before[name])


def reset() -> None:
    """End all work, free all memory, forget counts, races and faults, and go back to before initialisation.

    Settings are kept, and those that describe the machine can be changed. The next ``cuInit`` starts it again, whoever
    calls it. Pointers, streams and contexts from before are invalid, also for other libraries that hold some.
    """
    driver = _load()
    driver.check(driver.lib.cudasimReset())


def restart() -> None:
    """Do what :func:`reset` does, and initialise the driver again, for those who think that it still is."""
    reset()
    _load().initialise()


def add_device(memory: int | str) -> int:
    """Add a device with that much memory to the running machine, and return its number."""
    driver = _load()
    number = int(driver.lib.cudasimAddDevice(_text("memory", memory).encode()))
    driver.check(number < 0)
    return number


def fail(function: str, error: str | int = "CUDA_ERROR_OUT_OF_MEMORY", *, nth: int = 1, times: int = 1) -> None:
    """Make calls of a driver function fail: ``times`` of them, beginning with the ``nth`` from now.

    >>> fail("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", nth=3)
    >>> reset()
    """
    if nth < 1 or times < 1:
        raise UsageError(f"nth={nth}, times={times}: counts from 1 up; nth=1 is the next call")
    driver = _load()
    driver.check(driver.lib.cudasimFail(function.encode(), nth, times, str(error).encode()))


def clear_faults() -> None:
    """Forget the failures that were planned and have not happened yet."""
    _load().set("fail", "")


def calls(function: str | None = None) -> int:
    """Return how often a driver function was called since the last reset; without a name, all of them together."""
    driver = _load()
    count = int(driver.lib.cudasimCalls(function.encode() if function is not None else None))
    driver.check(bool(driver.error()))
    return count


def call_table() -> dict[str, int]:
    """Return how often each driver function was called, without those that were not."""
    return _load().table("cudasimCallTable")


def reset_counts() -> None:
    """Set the counts of calls and the virtual clock back to zero."""
    _load().lib.cudasimResetCounts()


def clock() -> float:
    """Return what the calls so far would have cost on a device, in microseconds, by the price table."""
    return float(_load().lib.cudasimClock())


def used(device: int = 0) -> int:
    """Return the driver's own count of bytes taken on a device."""
    return int(_load().lib.cudasimUsed(device))


def peak(device: int = 0) -> int:
    """Return the highest value that :func:`used` has had since the last reset."""
    return int(_load().lib.cudasimPeak(device))


def census() -> Census:
    """Return how many objects of each kind are alive."""
    return Census(**_load().table("cudasimCensus"))


def race_count() -> int:
    """Return how many races were found, those included that :func:`races` did not keep (it keeps 1,000)."""
    return int(_load().lib.cudasimRaceCount())


def races() -> list[Race]:
    """Return the races found so far. The checker must be on: ``configure(races=True)``."""
    reports = (json.loads(line) for line in _load().text("cudasimRaces").splitlines())
    return [Race(r["kind"], Access(**r["first"]), Access(**r["second"])) for r in reports]


def clear_races() -> None:
    """Forget the races found so far."""
    _load().lib.cudasimClearRaces()


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, str)):
        return str(value)
    raise UsageError(f"{name}: {value!r} is a {type(value).__name__}; a number or a text is accepted")


class _Library:
    """The library's own functions, typed."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise ArenaError(
                f"the simulated driver is not there: {path}. It is part of the package on Linux only; "
                "reinstall cuda-arena if this is Linux"
            )
        self.path = path
        # Not RTLD_GLOBAL yet: that is what enable() is for.
        self.lib = self._typed(ctypes.CDLL(str(path)))

    @staticmethod
    def _typed(lib: ctypes.CDLL) -> ctypes.CDLL:
        text, size, count = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_ulonglong
        for name, result, arguments in (
            ("Set", ctypes.c_int, [text, text]),
            ("Get", size, [text, text, size]),
            ("Error", text, []),
            ("Reset", ctypes.c_int, []),
            ("AddDevice", ctypes.c_int, [text]),
            ("Fail", ctypes.c_int, [text, count, count, text]),
            ("Calls", count, [text]),
            ("CallTable", size, [text, size]),
            ("ResetCounts", None, []),
            ("Clock", ctypes.c_double, []),
            ("Used", count, [ctypes.c_int]),
            ("Peak", count, [ctypes.c_int]),
            ("Census", size, [text, size]),
            ("RaceCount", count, []),
            ("Races", size, [text, size]),
            ("ClearRaces", None, []),
        ):
            function = getattr(lib, "cudasim" + name)
            function.restype, function.argtypes = result, arguments
        return lib

    def error(self) -> str:
        return str((self.lib.cudasimError() or b"").decode())

    def check(self, failed: int | bool) -> None:
        if failed:
            raise UsageError(self.error())

    def set(self, name: str, value: str) -> None:
        self.check(self.lib.cudasimSet(name.encode(), value.encode()))

    def get(self, name: str) -> str:
        value = self.text("cudasimGet", name.encode())
        self.check(bool(self.error()))
        return value

    def text(self, function: str, *arguments: bytes) -> str:
        call = getattr(self.lib, function)
        size = 1 << 12
        while True:  # what is asked for may grow between two calls
            buffer = ctypes.create_string_buffer(size)
            length = int(call(*arguments, buffer, size))
            if length < size:
                return buffer.value.decode()
            size = length + 1

    def table(self, function: str) -> dict[str, int]:
        lines = (line.split() for line in self.text(function).splitlines())
        return {name: int(count) for name, count in lines}

    def initialise(self) -> None:
        code = self.lib.cuInit(0)
        if code:
            raise UsageError(self.error() or f"cuInit failed with error {code}")

    def enable(self) -> None:
        ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        found = ctypes.CDLL("libcuda.so.1")
        if not hasattr(found, "cudasimError"):
            raise ArenaError(
                "another libcuda.so.1 is loaded in this process already, so other programs would not find the "
                "simulated one; call arena.sim.enable() before importing anything that uses CUDA"
            )


@functools.cache
def _load() -> _Library:
    if sys.platform != "linux":
        raise ArenaError(f"the simulated driver runs on Linux only, not on {sys.platform}")
    return _Library(library())
