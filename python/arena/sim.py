"""The simulated CUDA driver: settings, planned failures, counts, findings.

The driver is the library ``libcudasim.so`` in this package. It behaves like NVIDIA's ``libcuda.so.1``, without a GPU,
for this process. :func:`enable` makes it the driver of every CUDA program that is imported afterwards:

>>> from arena import sim
>>> sim.configure(memory="80GiB", races=True)
>>> sim.enable()
>>> sim.used(0)
0

Every setting also has an environment variable (``CUDASIM_MEMORY=80GiB``); :func:`configure` lists them.
Importing this module loads nothing. docs/simulated-driver.md describes what is simulated and what is not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from . import _core
from ._cards import Card, find_card, read_cards
from ._sim.library import library, load, name_of, number_of, size_of_each, text_of, texts_of
from ._sim.types import Access, Census, Finding, PriceTable, Race, Settings, Stalls
from ._util.sizes import Size, parse_size
from .errors import UsageError

__all__ = [
    "Access",
    "Card",
    "Census",
    "Finding",
    "PriceTable",
    "Race",
    "Settings",
    "Stalls",
    "add_device",
    "call_table",
    "calls",
    "card",
    "cards",
    "census",
    "clear_findings",
    "clear_planned",
    "clear_races",
    "clock",
    "configure",
    "dryrun",
    "enable",
    "fail",
    "finding_count",
    "findings",
    "library",
    "peak",
    "planned",
    "price",
    "prices",
    "race_count",
    "races",
    "reset",
    "reset_counts",
    "restart",
    "settings",
    "stalled",
    "temporarily",
    "used",
]


def enable() -> None:
    """Make the simulated driver the ``libcuda.so.1`` of this process.

    Call it before importing libraries that use CUDA (cuda-bindings, cuda-core, numba): they look for a driver of that
    name, and get the one that was loaded first. Raises :class:`ArenaError` if another driver is already loaded.
    """
    load().enable()


def configure(
    *,
    card: str | os.PathLike[str] | None = None,
    devices: int | None = None,
    memory: int | str | Sequence[int | str] | None = None,
    granularity: int | str | None = None,
    vmm: bool | None = None,
    version: int | None = None,
    delay: int | None = None,
    seed: int | None = None,
    other: int | str | None = None,
    prices: str | os.PathLike[str] | None = None,
    races: bool | str | None = None,
    values: bool | None = None,
    peers: str | Sequence[tuple[int, int]] | None = None,
    integrated: bool | None = None,
    rdma: bool | str | None = None,
    page_cache: int | str | None = None,
    address_space: int | str | None = None,
    exclusive: str | Sequence[int] | None = None,
    sync_unmap: bool | None = None,
    reuse: bool | None = None,
    dead: str | None = None,
) -> None:
    """Change settings. If one of them is refused, none changes. Brackets show the environment variable and the default.

    These describe the machine. They can be changed until the driver is initialised, and again after :func:`reset`:

    - ``card``: the card that the devices pretend to be: a name, such as ``"rtx4090"`` (``arena cards`` lists them), the
      path of a profile, or ``""`` for the built-in one. Also sets ``memory`` and ``integrated``, unless they are given
      [``CUDASIM_CARD``, a path]
    - ``devices``: the number of devices [``CUDASIM_DEVICES``, 1]
    - ``memory``: bytes per device, or a list with one size for each, which also sets their number: ``8 << 30``,
      ``"80GiB"``, ``["8GiB", "24GiB"]`` [``CUDASIM_MEMORY``, 8GiB]. Only memory that is written to takes host memory.
    - ``granularity``: the unit of physical memory [``CUDASIM_GRANULARITY``, 2MiB]
    - ``vmm``: whether devices have virtual memory management [``CUDASIM_VMM``, 1]
    - ``version``: the version that the driver reports [``CUDASIM_VERSION``, 13000]
    - ``peers``: which devices can access each other's memory: ``"all"``, ``"none"``, or pairs: ``[(0, 1), (2, 3)]``,
      ``"0-1,2-3"`` [``CUDASIM_PEERS``, all]
    - ``integrated``: whether devices share the host's memory [``CUDASIM_INTEGRATED``, 0]
    - ``rdma``: whether memory can be created for GPUDirect RDMA; ``"broken"`` if the device claims so but
      ``cuMemSetAccess`` then fails, as on WSL2 [``CUDASIM_RDMA``, 1]

    These can be changed at any time:

    - ``delay``: microseconds that each operation in a stream takes [``CUDASIM_DELAY``, 0]
    - ``seed``: if set, each operation takes a random time up to ``delay``, reproducible in every run that queues the
      same operations [``CUDASIM_SEED``, 0: none]
    - ``other``: bytes that another process holds on each device [``CUDASIM_OTHER``, 0]
    - ``page_cache``: bytes of an integrated device that hold cached files: ``cuMemGetInfo`` does not count them as
      free, but they can be allocated [``CUDASIM_PAGE_CACHE``, 0]
    - ``address_space``: bytes of addresses that can be reserved with ``cuMemAddressReserve`` at any one time; 0 for no
      limit [``CUDASIM_ADDRESS_SPACE``, 0]
    - ``exclusive``: numbers of devices in exclusive mode that another process uses: no context can be created there
      [``CUDASIM_EXCLUSIVE``, none]
    - ``sync_unmap``: whether ``cuMemUnmap`` and ``cuMemSetAccess`` wait for the queued work of their device, as they
      may; :func:`stalled` returns for how long [``CUDASIM_SYNC_UNMAP``, 0]
    - ``reuse``: whether a new stream, event, graph or pool gets the handle of the last one destroyed, as on hardware.
      A stale handle then refers to the new object. Without reuse, :func:`findings` lists every use of a stale handle
      [``CUDASIM_REUSE``, 1]
    - ``dead``: what to do when a call uses a handle that is not live: ``"report"`` it in :func:`findings`, ``"print"``
      it to standard error as well, or print it and ``"abort"`` [``CUDASIM_DEAD``, report]
    - ``prices``: the price table of the virtual :func:`clock`: ``"a100"``, ``"small"``, ``"free"``, or the path of a
      file that ``arena measure`` wrote, which is read now [``CUDASIM_PRICES``, a100]
    - ``races``: the race checker: on, off, or ``"print"`` to write each race to standard error as well
      [``CUDASIM_RACES``, 0]
    - ``values``: whether to track which bytes of device memory are known: copies to the host then deliver zeros in
      place of what a kernel should have written. The time between two events of a stream is then a microsecond for each
      of its operations, the same in every run [``CUDASIM_VALUES``, 0]

    Plan failures with :func:`fail` [``CUDASIM_FAIL=FUNCTION:NTH:ERROR[:TIMES],...``].

    >>> configure(delay=0)
    >>> configure(prices="cheap")
    Traceback (most recent call last):
        ...
    arena.errors.UsageError: prices: 'cheap' is not accepted; write a100, small, free, or the path of a file ...
    """
    given: dict[str, object] = {
        "card": card,
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
        "values": values,
        "peers": peers,
        "integrated": integrated,
        "rdma": rdma,
        "page_cache": page_cache,
        "address_space": address_space,
        "exclusive": exclusive,
        "sync_unmap": sync_unmap,
        "reuse": reuse,
        "dead": dead,
    }
    if isinstance(memory, (list, tuple)) and devices is not None and devices != len(memory):
        raise UsageError(f"devices={devices}, but memory has {len(memory)} sizes; give one size per device")
    load().change(texts_of(given))
    _core.want_simulation()  # who configures the simulated machine wants it


def settings() -> Settings:
    """Return the current settings."""
    get = load().get
    return Settings(
        card=get("card"),
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
        peers=get("peers"),
        integrated=get("integrated") == "1",
        rdma=get("rdma"),
        page_cache=int(get("page_cache")),
        address_space=int(get("address_space")),
        exclusive=tuple(int(device) for device in get("exclusive").split(",") if device),
        sync_unmap=get("sync_unmap") == "1",
        reuse=get("reuse") == "1",
        dead=get("dead"),
        values=get("values") == "1",
    )


@contextlib.contextmanager
def temporarily(
    *,
    delay: int | None = None,
    seed: int | None = None,
    other: int | str | None = None,
    prices: str | os.PathLike[str] | None = None,
    races: bool | str | None = None,
    values: bool | None = None,
    page_cache: int | str | None = None,
    address_space: int | str | None = None,
    exclusive: str | Sequence[int] | None = None,
    sync_unmap: bool | None = None,
    reuse: bool | None = None,
    dead: str | None = None,
) -> Iterator[None]:
    """Change settings like :func:`configure`, and restore them at the end of the ``with`` block."""
    given: dict[str, object] = {
        "delay": delay,
        "seed": seed,
        "other": other,
        "prices": prices,
        "races": races,
        "values": values,
        "page_cache": page_cache,
        "address_space": address_space,
        "exclusive": exclusive,
        "sync_unmap": sync_unmap,
        "reuse": reuse,
        "dead": dead,
    }
    driver, texts = load(), texts_of(given)
    before = {name: driver.get(name) for name in texts}
    driver.change(texts)
    try:
        yield
    finally:
        driver.change(before)


def reset(*, settings: bool = False) -> None:
    """Return to the state before ``cuInit``: wait for all work, free all memory, and clear counts, findings and plans.

    Settings are kept, unless ``settings=True`` restores those from when the library was loaded. The next ``cuInit``
    starts the machine again. All pointers, streams and contexts become invalid, including those that other libraries
    hold. cuda-core and numba hold some: run tests that use them in processes of their own instead.
    """
    driver = load()
    driver.check(driver.lib.cudasimReset())
    if settings:
        driver.change(driver.initial)


def restart() -> None:
    """Reset like :func:`reset` and initialise the driver again, for libraries that expect it to be initialised."""
    reset()
    load().initialise()


def add_device(memory: int | str) -> int:
    """Add a device with ``memory`` bytes to the running machine and return its number."""
    driver = load()
    number = int(driver.lib.cudasimAddDevice(text_of("memory", memory).encode()))
    driver.check(number < 0)
    return number


def fail(function: str, error: str | int = "CUDA_ERROR_OUT_OF_MEMORY", *, nth: int = 1, times: int = 1) -> None:
    """Make ``times`` calls of a driver function fail, starting with the ``nth`` call from now.

    Name the function that the program actually calls: :func:`call_table` lists them. :func:`planned` returns the
    failures still to come.

    >>> fail("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", nth=3)
    >>> planned()
    ['cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY']
    >>> reset()
    """
    for name, count in (("nth", nth), ("times", times)):
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << 64:
            raise UsageError(
                f"{name}={count!r} is not accepted; write a whole number from 1 up (nth=1 is the next call)"
            )
    driver = load()
    driver.check(driver.lib.cudasimFail(name_of(function), nth, times, text_of("error", error).encode()))


def planned() -> list[str]:
    """Return the planned failures that have not happened yet, as ``FUNCTION:NTH:ERROR[:TIMES]``."""
    return [plan for plan in load().get("fail").split(",") if plan]


def clear_planned() -> None:
    """Cancel the planned failures that have not happened yet."""
    load().set("fail", "")


def calls(function: str | None = None) -> int:
    """Return how often a driver function was called since the last reset; without a name, the total of all."""
    driver = load()
    return driver.checked(driver.lib.cudasimCalls(name_of(function) if function is not None else None))


def call_table() -> dict[str, int]:
    """Return the number of calls of each driver function that was called at all."""
    return load().table("cudasimCallTable")


def reset_counts() -> None:
    """Reset the call counts and the virtual clock to zero."""
    load().lib.cudasimResetCounts()


def clock() -> float:
    """Return the virtual clock: microseconds that all calls so far would have taken, by the price table."""
    driver = load()
    microseconds = float(driver.lib.cudasimClock())
    driver.check(bool(driver.error()))
    return microseconds


def price(function: str, size: int | str = 0) -> float:
    """Return the microseconds that a call for ``size`` bytes adds to the :func:`clock`.

    >>> price("cuMemCreate", 8 << 20) == price("cuMemCreate", "8MiB")
    True
    """
    bytes_ = parse_size(size, None, "size")
    driver = load()
    microseconds = float(driver.lib.cudasimPrice(name_of(function), bytes_))
    driver.check(bool(driver.error()))
    return microseconds


def prices() -> PriceTable:
    """Return the current price table.

    >>> prices().calls["cuMemCreate"]
    ((2097152, 193.0), (67108864, 217.8))
    """
    driver = load()
    text = driver.text("cudasimPrices")
    driver.check(bool(driver.error()))
    found = json.loads(text)
    calls = {name: tuple((int(size), float(time)) for size, time in points) for name, points in found["calls"].items()}
    return PriceTable(found["name"], found["facts"], calls)


def used(device: int = 0) -> int:
    """Return the bytes in use on a device, by the driver's own count."""
    driver = load()
    return driver.checked(driver.lib.cudasimUsed(number_of("device", device)))


def peak(device: int = 0) -> int:
    """Return the highest value of :func:`used` since the last reset."""
    driver = load()
    return driver.checked(driver.lib.cudasimPeak(number_of("device", device)))


def census() -> Census:
    """Return how many objects of each kind are alive."""
    return Census(**load().table("cudasimCensus"))


def stalled() -> Stalls:
    """Return how long ``cuMemUnmap`` and ``cuMemSetAccess`` have waited for queued work; see ``sync_unmap``."""
    driver = load()
    count = driver.checked(driver.lib.cudasimStalls())
    return Stalls(count, float(driver.lib.cudasimStalled()))


def finding_count() -> int:
    """Return how many findings there were, including those that :func:`findings` did not keep."""
    driver = load()
    return driver.checked(driver.lib.cudasimFindingCount())


def findings() -> list[Finding]:
    """Return what the program did so far that is undefined behaviour on hardware, in order.

    This includes races if the race checker is on. The first 1,000 races and the first 1,000 other findings are kept.

    >>> findings()
    []
    """
    if finding_count() == 0:
        return []
    reports = (json.loads(line) for line in load().text("cudasimFindings").split("\n") if line)
    return [Finding(**{**report, "race": _race(report["race"])}) for report in reports]


def clear_findings() -> None:
    """Clear the findings so far, including races."""
    load().lib.cudasimClearFindings()


def _race(report: dict[str, Any] | None) -> Race | None:
    return Race(report["kind"], Access(**report["first"]), Access(**report["second"])) if report else None


def race_count() -> int:
    """Return how many races were found, including those that :func:`races` did not keep (it keeps 1,000)."""
    driver = load()
    count = driver.checked(driver.lib.cudasimRaceCount())
    if count == 0 and driver.get("races") == "0":
        raise UsageError("the race checker is off and cannot have found any; turn it on first: configure(races=True)")
    return count


def races() -> list[Race]:
    """Return the races found so far. Raises if the checker is off: ``configure(races=True)`` turns it on."""
    if race_count() == 0:
        return []
    reports = (json.loads(line) for line in load().text("cudasimRaces").split("\n") if line)
    return [race for race in map(_race, reports) if race]


def clear_races() -> None:
    """Clear the races found so far, also from :func:`findings`."""
    load().lib.cudasimClearRaces()


def cards() -> tuple[Card, ...]:
    """Return the profiles of cards that come with arena, the smallest memory first. ``arena cards`` lists them.

    >>> [card.key for card in cards() if card.memory > 100 << 30]
    ['h200-141', 'b200']
    """
    return read_cards()


def card(name: str | os.PathLike[str]) -> Card:
    """Return the profile of a card: one of :func:`cards`, or the TOML file at a path.

    >>> card("rtx4090").multiprocessors
    128
    """
    return find_card(name)


def dryrun(
    card: str | os.PathLike[str] = "rtx4090", memory: Size | None = None, values: str = "control"
) -> AbstractContextManager[Card]:
    """Give this process a simulated GPU on which PyTorch and CuPy run, for tests: kernels are skipped.

    Enter it before anything imports ``torch`` or ``cupy``, and in a test suite once, in ``conftest.py``::

        @pytest.fixture(scope="session", autouse=True)
        def gpu():
            with arena.sim.dryrun(card="t4"):
                yield

    Raises :class:`ArenaError` if NVIDIA's own libraries are loaded already. The device stays simulated afterwards: what
    a framework found it keeps. At the end of the ``with`` block memory that frameworks cached is returned. A process
    has one card; ``memory`` changes its size. ``values`` says which results are computed on the host: ``"control"``
    those of small operations, ``"all"`` all that can be, ``"none"`` none. ``docs/dryrun.md`` says what to expect.
    """
    from ._dryrun.in_process import dryrun as run  # late: _dryrun is above the simulated driver, which it uses

    return run(card, memory, values)
