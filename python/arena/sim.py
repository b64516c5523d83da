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
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ._simlib import library, load, name_of, number_of, size_of_each, text_of
from .errors import UsageError

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
    seed: int
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


def enable() -> None:
    """Make the simulated driver the ``libcuda.so.1`` of this process.

    Call it before importing what uses CUDA (cuda-bindings, cuda-core, numba): they find a driver by that name, and the
    one that was loaded first is the one they get. Raises :class:`ArenaError` if another one already is.
    """
    load().enable()


def configure(
    *,
    devices: int | None = None,
    memory: int | str | Sequence[int | str] | None = None,
    granularity: int | str | None = None,
    vmm: bool | None = None,
    version: int | None = None,
    delay: int | None = None,
    seed: int | None = None,
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
    - ``seed``: with one, each operation takes a random time up to ``delay`` instead, the same times in every run that
      queues the same operations [``CUDASIM_SEED``, 0: none]
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
        "seed": seed,
        "other": other,
        "prices": prices,
        "races": races,
    }
    if isinstance(memory, (list, tuple)):
        if devices is not None and devices != len(memory):
            raise UsageError(f"devices={devices}, but memory has {len(memory)} sizes; give one for each")
        given["memory"] = ",".join(text_of("memory", size) for size in memory)
        given["devices"] = len(memory)
    load().change({name: text_of(name, value) for name, value in given.items() if value is not None})


def settings() -> Settings:
    """Return the settings in force."""
    get = load().get
    return Settings(
        devices=int(get("devices")),
        memory=size_of_each(get("memory"), int(get("devices"))),
        granularity=int(get("granularity")),
        vmm=get("vmm") == "1",
        version=int(get("version")),
        delay=int(get("delay")),
        seed=int(get("seed")),
        other=int(get("other")),
        prices=get("prices"),
        races=get("races") != "0",
    )


@contextlib.contextmanager
def temporarily(
    *,
    delay: int | None = None,
    seed: int | None = None,
    other: int | str | None = None,
    prices: str | None = None,
    races: bool | str | None = None,
) -> Iterator[None]:
    """Change settings as :func:`configure` does, and put them back at the end of the ``with`` block."""
    given = {"delay": delay, "seed": seed, "other": other, "prices": prices, "races": races}
    driver = load()
    before = {name: driver.get(name) for name, value in given.items() if value is not None}
    configure(delay=delay, seed=seed, other=other, prices=prices, races=races)
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
    driver = load()
    driver.check(driver.lib.cudasimReset())
    if settings:
        driver.change(driver.initial)


def restart() -> None:
    """Do what :func:`reset` does, and initialise the driver again, for those who think that it still is."""
    reset()
    load().initialise()


def add_device(memory: int | str) -> int:
    """Add a device with that much memory to the running machine, and return its number."""
    driver = load()
    number = int(driver.lib.cudasimAddDevice(text_of("memory", memory).encode()))
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
    driver = load()
    driver.check(driver.lib.cudasimFail(name_of(function), nth, times, text_of("error", error).encode()))


def planned() -> list[str]:
    """Return the failures that were planned and have not come true yet, as ``FUNCTION:NTH:ERROR``."""
    return [plan for plan in load().get("fail").split(",") if plan]


def clear_planned() -> None:
    """Forget the failures that were planned and have not come true yet."""
    load().set("fail", "")


def calls(function: str | None = None) -> int:
    """Return how often a driver function was called since the last reset; without a name, all of them together."""
    driver = load()
    return driver.checked(driver.lib.cudasimCalls(name_of(function) if function is not None else None))


def call_table() -> dict[str, int]:
    """Return how often each driver function was called, without those that were not."""
    return load().table("cudasimCallTable")


def reset_counts() -> None:
    """Set the counts of calls and the virtual clock back to zero."""
    load().lib.cudasimResetCounts()


def clock() -> float:
    """Return what the calls so far would have cost on a device, in microseconds, by the price table."""
    driver = load()
    microseconds = float(driver.lib.cudasimClock())
    driver.check(bool(driver.error()))
    return microseconds


def used(device: int = 0) -> int:
    """Return the driver's own count of bytes taken on a device."""
    driver = load()
    return driver.checked(driver.lib.cudasimUsed(number_of("device", device)))


def peak(device: int = 0) -> int:
    """Return the highest value that :func:`used` has had since the last reset."""
    driver = load()
    return driver.checked(driver.lib.cudasimPeak(number_of("device", device)))


def census() -> Census:
    """Return how many objects of each kind are alive."""
    return Census(**load().table("cudasimCensus"))


def race_count() -> int:
    """Return how many races were found, those included that :func:`races` did not keep (it keeps 1,000)."""
    driver = load()
    count = driver.checked(driver.lib.cudasimRaceCount())
    if count == 0 and driver.get("races") == "0":
        raise UsageError("the race checker is off, so it could find none; switch it on first: configure(races=True)")
    return count


def races() -> list[Race]:
    """Return the races found so far. An error if the checker was off: ``configure(races=True)`` switches it on."""
    if race_count() == 0:
        return []
    reports = (json.loads(line) for line in load().text("cudasimRaces").splitlines())
    return [Race(r["kind"], Access(**r["first"]), Access(**r["second"])) for r in reports]


def clear_races() -> None:
    """Forget the races found so far."""
    load().lib.cudasimClearRaces()
