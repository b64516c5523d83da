"""Measures the cost of driver calls on this machine: many rounds, idle and while another stream is busy."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import _core, sim
from .._core import __version__
from .._pool.settings import find_device
from .._util.files import write
from .._util.sizes import format_size
from ..errors import DriverError, UsageError
from .prices import Row, Spread, text_of

__all__ = ["ROUNDS", "SECONDS", "Measured", "Progress", "measure"]

SIZES = tuple(size << 20 for size in (2, 8, 32, 64))
ROUNDS = 100  # idle; a quarter of that under load
SECONDS = 60.0
FEWEST = 3  # rounds, no matter how little time there is
WARM_UP = 2  # rounds that do not count: the first calls of a driver take longer
LOAD = 32 << 20  # bytes that the queued work writes to
LOAD_MS, MOST_LOAD_MS = 10.0, 100.0  # of queued work
LONGER = 4  # times the slowest call, so that a call that waits stands out from one that is slow
SPARE = 32 << 20  # bytes that the driver itself may need
DELAY = 1000  # microseconds per simulated operation under load, which would otherwise take no time

Progress = Callable[[str, int, int], object]
"""Called with ``"idle"`` or ``"under load"``, the number of finished rounds, and their total number."""
Key = tuple[str, int]
Sample = tuple[float, bool, bool]  # microseconds, loaded, waited


@dataclass(frozen=True)
class Measured:
    """The result of :func:`measure`."""

    facts: dict[str, str]
    """The device, driver and platform, and the date: see docs/prices.md."""
    rows: tuple[Row, ...]
    sizes: tuple[int, ...]
    virtual_memory: bool
    simulated: bool
    """Whether the times are the simulated driver's prices."""

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the price file and return its path."""
        return write(path, [text_of(self.facts, self.rows).encode()], overwrite=overwrite)


def measure(
    device: int | str = 0, *, rounds: int = ROUNDS, seconds: float = SECONDS, progress: Progress | None = None
) -> Measured:
    """Measure the cost of driver calls on a device: a number or ``"sim:8GiB"``.

    Takes at most about ``seconds``, with fewer ``rounds`` if necessary. Needs about 130 MiB of free memory, and frees
    all of it.
    """
    driver, number = find_device(device)
    info = _core.device_info(driver, number)
    sizes = tuple(size for size in SIZES if not info.granularity or size % info.granularity == 0)
    sizes = sizes or (info.granularity,)
    _check_room(info, max(sizes))
    timer = _core.CallTimer(driver, number)
    run = _Rounds(timer, sizes, info.virtual_memory, progress or (lambda phase, done, total: None))
    try:
        idle = run.play("idle", rounds, time.monotonic() + seconds / 2)
        slowest = max(_spread(samples).median for samples in idle.values()) / 1000
        with _taking_time(driver):
            timer.begin_load(LOAD, min(max(LOAD_MS, LONGER * slowest), MOST_LOAD_MS))
            load = run.play("under load", max(FEWEST, rounds // 4), time.monotonic() + seconds / 2)
            timer.end_load()
    except DriverError as error:
        raise _explained(error, info, max(sizes)) from error
    finally:
        timer.close()
    calls = list(dict.fromkeys(call for call, _ in idle))  # in the order they were made
    keys = sorted(idle, key=lambda key: (calls.index(key[0]), key[1]))
    rows = tuple(_row(key, idle[key], load[key]) for key in keys)
    return Measured(
        facts=_facts(driver, info, rows),
        rows=rows,
        sizes=sizes,
        virtual_memory=info.virtual_memory,
        simulated=timer.has_virtual_clock,
    )


class _Rounds:
    """Rounds of all calls, with each size in turn, so that drift over time affects all of them alike."""

    def __init__(self, timer: _core.CallTimer, sizes: tuple[int, ...], virtual: bool, progress: Progress) -> None:
        self._timer, self._sizes, self._virtual, self._progress = timer, sizes, virtual, progress

    def play(self, phase: str, rounds: int, until: float) -> dict[Key, list[Sample]]:
        found: dict[Key, list[Sample]] = defaultdict(list)
        for done in range(-WARM_UP, rounds):
            if done >= FEWEST and time.monotonic() > until:
                break
            self._progress(phase, max(0, done), rounds)
            for call, size, microseconds, loaded, waited in self._round(done):
                if done >= 0:
                    found[call, size].append((microseconds, loaded, waited))
        return found

    def _round(self, number: int) -> Iterator[tuple[str, int, float, bool, bool]]:
        """Start with a different size each time: the first calls after a wait take longer."""
        first = number % len(self._sizes)
        for size in self._sizes[first:] + self._sizes[:first]:
            if self._virtual:
                yield from self._timer.virtual_round(size)
            yield from self._timer.plain_round(size)
        yield from self._timer.other_round()


def _row(key: Key, idle: list[Sample], load: list[Sample]) -> Row:
    busy = [sample for sample in load if sample[1]]
    # At least half of the rounds must be busy: a few lucky ones do not show how the device behaves under load.
    under_load = _spread(busy) if len(busy) >= max(FEWEST, len(load) // 2) else None
    return Row(*key, _spread(idle), under_load, sum(waited for _, _, waited in busy) if under_load else 0)


def _spread(samples: list[Sample]) -> Spread:
    times = sorted(sample[0] for sample in samples)

    def at(share: float) -> float:
        place = share * (len(times) - 1)
        low = int(place)
        high = min(low + 1, len(times) - 1)
        return times[low] + (times[high] - times[low]) * (place - low)

    return Spread(at(0.5), at(0.25), at(0.75), len(times))


def _needed(largest: int) -> int:
    return largest + LOAD + SPARE


def _check_room(info: _core.DeviceInfo, largest: int) -> None:
    if info.free is None:
        raise UsageError(f"device {info.number} ({info.name}) is unavailable: {info.problem}")
    if info.free < _needed(largest):
        raise UsageError(
            f"device {info.number} ({info.name}) has {format_size(info.free)} free, but measuring needs "
            f"{format_size(_needed(largest))}; stop other programs on it, or choose another device"
        )


def _explained(error: DriverError, info: _core.DeviceInfo, largest: int) -> DriverError:
    """The driver's error, with what it means for the measurement."""
    text = f"the measurement stopped, and nothing was written: {str(error).partition(chr(10))[0]}"
    if error.call == "cuMemAddressReserve":
        text += "; each round reserves 1 GiB of addresses, but no memory"
    elif error.name == "CUDA_ERROR_OUT_OF_MEMORY":
        text += f"; {format_size(_needed(largest))} must stay free on device {info.number} the whole time"
    return DriverError(text, call=error.call, code=error.code, name=error.name)


@contextlib.contextmanager
def _taking_time(driver: _core.Driver) -> Iterator[None]:
    """Make simulated operations take time if they take none, because no stream would ever be busy otherwise."""
    if _is_ours(driver) and sim.settings().delay == 0:
        with sim.temporarily(delay=DELAY):
            yield
    else:
        yield


def _is_ours(driver: _core.Driver) -> bool:
    """Whether this is the simulated driver that ``arena.sim`` controls, and not a copy of it."""
    return driver.is_simulated and Path(driver.path).samefile(sim.library())


def _facts(driver: _core.Driver, info: _core.DeviceInfo, rows: tuple[Row, ...]) -> dict[str, str]:
    idle = min(row.idle.rounds for row in rows)
    load = min((row.load.rounds for row in rows if row.load), default=0)
    words = [f"CUDA {driver.version // 1000}.{driver.version % 1000 // 10}"]
    if driver.is_simulated:
        words.append("simulated")
    elif module := _kernel_module():
        words.append(f"NVIDIA {module}")
    if _is_ours(driver):
        words.append(f"prices {sim.prices().label}")
    granule = f"granules of {format_size(info.granularity)}" if info.virtual_memory else "not supported"
    return {
        "device": info.name,
        "memory": format_size(info.total),
        "virtual_memory": granule,
        "driver": ", ".join(words),
        "platform": _platform(),
        "measured": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "arena": __version__,
        "clock": "virtual" if driver.is_simulated else "monotonic",
        "rounds": f"{idle} idle, {load} under load",
    }


def _kernel_module() -> str:
    """The version of NVIDIA's kernel module, if it can be read: ``550.54.14``."""
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", Path("/proc/driver/nvidia/version").read_text())
        return found[1] if found else ""
    return ""


def _platform() -> str:
    """The platform. WSL2 is named because its driver, and so its costs, differ from Linux."""
    text = f"{platform.system()} {platform.release()} {platform.machine()}"
    return text + (", WSL2" if "microsoft" in platform.release().lower() else "")
