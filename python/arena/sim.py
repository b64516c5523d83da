"""The simulated CUDA driver: settings, planned failures, counts, races.

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
from collections.abc import Iterator, Sequence
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
    "clear_planned",
    "clear_races",
    "clock",
    "configure",
    "enable",
    "fail",
    "library",
    "peak",
    "planned",
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
    memory: int | str | Sequence[int | str] | None = None,
    granularity: int | str | None = None,
    vmm: bool | None = None,
    version: int | None = None,
    delay: int | None = None,
    other: int | str | None = None,
    prices: str | None = None,
    races: bool | str | None = None,
) -> None:
    """Change settings, all or none of them; what is not given stays as it is. In brackets the environment variable.

    Those that describe the machine can be changed until the driver is initialised, and again after :func:`reset`:

    - ``devices``: how many there are [``CUDASIM_DEVICES``, 1]
    - ``memory``: bytes of each, or a list with one for each, which sets their number: ``8 << 30``, ``"80GiB"``,
      ``["8GiB", "24GiB"]`` [``CUDASIM_MEMORY``, 8GiB]. Host memory is used only for what is written to.
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

    Failures are planned with :func:`fail` [``CUDASIM_FAIL=FUNCTION:NTH:ERROR,...``].

    >>> configure(delay=0)
    >>> configure(prices="cheap")
    Traceback (most recent call last):
        ...
    arena.errors.UsageError: prices: 'cheap' is not accepted; write a100, small or free
    """
    given: dict[str, object] = {
        "memory": memory,
        "devices": devices,
        "granularity": granularity,
        "vmm": vmm,
        "version": version,
        "delay": delay,
        "other": other,
        "prices": prices,
        "races": races,
    }
    if isinstance(memory, (list, tuple)):
        if devices is not None and devices != len(memory):
            raise UsageError(f"devices={devices}, but memory has {len(memory)} sizes; give one for each")
        given["memory"] = ",".join(_text("memory", size) for size in memory)
        given["devices"] = len(memory)
    _load().change({name: _text(name, value) for name, value in given.items() if value is not None})


def settings() -> Settings:
    """Return the settings in force."""
    get = _load().get
    return Settings(
        devices=int(get("devices")),
        memory=_each(get("memory"), int(get("devices"))),
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
    given = {"delay": delay, "other": other, "prices": prices, "races": races}
    driver = _load()
    before = {name: driver.get(name) for name, value in given.items() if value is not None}
    configure(delay=delay, other=other, prices=prices, races=races)
    try:
        yield
    finally:
        driver.change(before)


def reset(*, settings: bool = False) -> None:
    """Wait for all work, free all memory, forget counts, races and planned failures, and be as before initialisation.

    Settings are kept, unless ``settings=True`` puts them back to what they were when the library was loaded. The next
    ``cuInit`` starts the machine again, whoever calls it. Pointers, streams and contexts from before are invalid, also
    for other libraries that hold some: cuda-core and numba do, and need a process of their own instead.
    """
    driver = _load()
    driver.check(driver.lib.cudasimReset())
    if settings:
        driver.change(driver.initial)


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

    Name the function that the program really calls; :func:`call_table` tells. What has not come true yet is in
    :func:`planned`.

    >>> fail("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", nth=3)
    >>> planned()
    ['cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY']
    >>> reset()
    """
    for name, count in (("nth", nth), ("times", times)):
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << 64:
            raise UsageError(
                f"{name}={count!r} is not accepted; write a whole number from 1 up; nth=1 is the next call"
            )
    driver = _load()
    driver.check(driver.lib.cudasimFail(_name(function), nth, times, _text("error", error).encode()))


def planned() -> list[str]:
    """Return the failures that were planned and have not come true yet, as ``FUNCTION:NTH:ERROR``."""
    return [plan for plan in _load().get("fail").split(",") if plan]


def clear_planned() -> None:
    """Forget the failures that were planned and have not come true yet."""
    _load().set("fail", "")


def calls(function: str | None = None) -> int:
    """Return how often a driver function was called since the last reset; without a name, all of them together."""
    driver = _load()
    return driver.checked(driver.lib.cudasimCalls(_name(function) if function is not None else None))


def call_table() -> dict[str, int]:
    """Return how often each driver function was called, without those that were not."""
    return _load().table("cudasimCallTable")


def reset_counts() -> None:
    """Set the counts of calls and the virtual clock back to zero."""
    _load().lib.cudasimResetCounts()


def clock() -> float:
    """Return what the calls so far would have cost on a device, in microseconds, by the price table."""
    driver = _load()
    microseconds = float(driver.lib.cudasimClock())
    driver.check(bool(driver.error()))
    return microseconds


def used(device: int = 0) -> int:
    """Return the driver's own count of bytes taken on a device."""
    driver = _load()
    return driver.checked(driver.lib.cudasimUsed(_number("device", device)))


def peak(device: int = 0) -> int:
    """Return the highest value that :func:`used` has had since the last reset."""
    driver = _load()
    return driver.checked(driver.lib.cudasimPeak(_number("device", device)))


def census() -> Census:
    """Return how many objects of each kind are alive."""
    return Census(**_load().table("cudasimCensus"))


def race_count() -> int:
    """Return how many races were found, those included that :func:`races` did not keep (it keeps 1,000)."""
    driver = _load()
    count = driver.checked(driver.lib.cudasimRaceCount())
    if count == 0 and driver.get("races") == "0":
        raise UsageError("the race checker is off, so it could find none; switch it on first: configure(races=True)")
    return count


def races() -> list[Race]:
    """Return the races found so far. An error if the checker was off: ``configure(races=True)`` switches it on."""
    if race_count() == 0:
        return []
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
    also = ", or a list of them," if name == "memory" else ""
    raise UsageError(f"{name}: {value!r} is a {type(value).__name__}; a number or a text{also} is accepted")


def _name(function: object) -> bytes:
    if not isinstance(function, str):
        raise UsageError(f"{function!r} is not the name of a function of the driver; write one, such as 'cuMemCreate'")
    return _bytes(function)


def _number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise UsageError(f"{name}={value!r} is not accepted; write a number from 0 up")
    return value


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise UsageError(f"{text!r} has a NUL in it, which no name or value has")
    return text.encode()


def _each(memory: str, devices: int) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in memory.split(","))
    return sizes if len(sizes) > 1 else sizes * devices


# Modules that look for the driver when they are imported, and not again.
_LOOKS_ONCE = {"numba.cuda.cudadrv.driver", "numba_cuda.numba.cuda.cudadrv.driver"}
# Memory before devices: a list of sizes sets their number, and the number is checked against the list.
_SETTABLE = ("memory", "devices", "granularity", "vmm", "version", "delay", "other", "prices", "races")


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
        self.enabled = False
        # What the environment says; nothing if that is bad, which every call then tells.
        with contextlib.suppress(UsageError):
            self.initial = {name: self.get(name) for name in _SETTABLE}

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

    def checked(self, value: int) -> int:
        self.check(bool(self.error()))
        return int(value)

    def set(self, name: str, value: str) -> None:
        self.check(self.lib.cudasimSet(_bytes(name), _bytes(value)))

    def change(self, values: dict[str, str]) -> None:
        """Set several settings; if one is refused, put back those that were set before it."""
        before = {name: self.get(name) for name in values}
        done: list[str] = []
        try:
            for name, value in values.items():
                self.set(name, value)
                done.append(name)
        except UsageError:
            for name in done:
                self.set(name, before[name])
            raise

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
        lines = [line.split() for line in self.text(function).splitlines()]
        self.check(bool(self.error()))
        return {name: int(count) for name, count in lines}

    def initialise(self) -> None:
        code, name = self.lib.cuInit(0), ctypes.c_char_p()
        if code:
            self.lib.cuGetErrorName(code, ctypes.byref(name))
            raise UsageError(self.error() or f"cuInit failed with {(name.value or b'?').decode()}")

    def enable(self) -> None:
        if not self.enabled and (late := _LOOKS_ONCE & sys.modules.keys()):
            raise ArenaError(
                f"{min(late)} is imported already, and looks for a driver only once; call arena.sim.enable() before"
            )
        ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        found = ctypes.CDLL("libcuda.so.1")
        if not hasattr(found, "cudasimError"):
            raise ArenaError(
                "another libcuda.so.1 is loaded in this process already, so other programs would not find the "
                "simulated one; call arena.sim.enable() before importing anything that uses CUDA"
            )
        self.enabled = True


@functools.cache
def _load() -> _Library:
    if sys.platform != "linux":
        raise ArenaError(f"the simulated driver runs on Linux only, not on {sys.platform}")
    return _Library(library())
