"""The settings of an arena: where each one comes from, and whether it is valid."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterable

from .. import _core, sim
from .._util.arguments import as_device
from .._util.sizes import Size, parse_size
from .._words.format import counted
from ..errors import UsageError

__all__ = [
    "SETTINGS",
    "check",
    "check_peers",
    "configure",
    "find_device",
    "process_setting",
    "resolve",
    "source_of",
    "validates",
]

SETTINGS = ("cap", "reserve", "headroom", "growth")
_configured: dict[str, Size] = {}


def configure(
    *, cap: Size | None = None, reserve: Size | None = None, headroom: Size | None = None, growth: Size | None = None
) -> None:
    """Set defaults for arenas created from now on. ``None`` leaves a setting as it is.

    They override the environment variables ``ARENA_CAP``, ``ARENA_RESERVE``, ``ARENA_HEADROOM`` and ``ARENA_GROWTH``.
    The arguments of :class:`Arena` override them.

    >>> configure(growth="64MiB")
    """
    given = {"cap": cap, "reserve": reserve, "headroom": headroom, "growth": growth}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        parse_size(value, 1 << 40, name)
    _configured.update(chosen)


def resolve(name: str, argument: Size | None, total: int) -> int:
    """The value of a setting: from the argument, :func:`configure`, the environment, or the default, in this order."""
    if argument is not None:
        return parse_size(argument, total, name)
    if name in _configured:
        return parse_size(_configured[name], total, name)
    variables = [f"ARENA_{name.upper()}", *(["CUPY_GPU_MEMORY_LIMIT"] if name == "cap" else [])]
    for variable in variables:
        text = os.environ.get(variable)
        if not text:
            continue
        size = parse_size(text, total, variable)
        if variable == "CUPY_GPU_MEMORY_LIMIT":  # as in CuPy: 0 is no limit, and too large is accepted
            return min(size, total) or total
        return size
    return {"cap": total, "reserve": 0, "headroom": 0, "growth": 64 << 20}[name]


def source_of(name: str) -> str:
    """Where :func:`resolve` finds a setting without an argument."""
    if name in _configured:
        return "arena.configure()"
    variables = [f"ARENA_{name.upper()}", *(["CUPY_GPU_MEMORY_LIMIT"] if name == "cap" else [])]
    return next((variable for variable in variables if os.environ.get(variable)), "default")


def process_setting(name: str) -> Size | None:
    """The value that the process has for a setting, as it was written; None for the built-in default."""
    source = source_of(name)
    if source == "default":
        return None
    if source == "CUPY_GPU_MEMORY_LIMIT" and not parse_size(os.environ[source], 1 << 40, source):
        return None
    return _configured[name] if name in _configured else os.environ[source]


def limit_of(cap: Size | None, total: int) -> int:
    """The value of CuPy's ``get_limit()``: the cap, or 0 if none was set."""
    source = source_of("cap")
    is_off = source == "CUPY_GPU_MEMORY_LIMIT" and not parse_size(os.environ[source], total, source)
    return 0 if cap is None and (source == "default" or is_off) else resolve("cap", cap, total)


def validates() -> bool:
    """Whether ``ARENA_VALIDATE=1`` makes arenas check themselves after every operation."""
    text = os.environ.get("ARENA_VALIDATE", "").strip()
    if text not in ("", "0", "1"):
        raise UsageError(f"ARENA_VALIDATE={text!r} is not accepted; write 1 or 0")
    return text == "1"


def check(sizes: dict[str, int], total: int) -> None:
    if sizes["cap"] > total:
        raise UsageError(f"cap={sizes['cap']} is more than the device's {total} bytes; give at most that")
    if sizes["reserve"] > sizes["cap"]:
        raise UsageError(f"reserve={sizes['reserve']} is more than cap={sizes['cap']}: it could never be reserved")
    if sizes["headroom"] >= total:
        raise UsageError(f"headroom={sizes['headroom']} leaves nothing of the device's {total} bytes")


def check_peers(peers: Iterable[int] | None, device: int, count: int) -> list[int] | None:
    """The devices that get access; None for all that can."""
    if peers is None:
        return None
    try:
        numbers = list(peers)
    except TypeError:
        raise UsageError(f"peers={peers!r} is not accepted; write numbers of other devices: [1, 2], or []") from None
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count or number == device:
            raise UsageError(
                f"peers={peers!r}: {number!r} is not the number of another device; there are {count}, counted from 0, "
                f"and the memory is on device {device}"
            )
    return sorted(set(numbers))


DEVICES = 'a number from 0 up, "sim", or "sim:8GiB"'


def simulated_size(device: str) -> int | None:
    """The size in ``"sim:8GiB"``; None for ``"sim"``, the existing simulated device."""
    if device == "sim":
        return None
    size = parse_size(device.removeprefix("sim:"), None, f"device={device!r}: size")
    if size == 0:
        raise UsageError(f'device={device!r} has no memory; write the size of a simulated device, "sim:8GiB"')
    return size


def is_simulated(device: int | str) -> bool:
    """Whether a ``device=`` argument names a simulated device."""
    return isinstance(device, str) and (device == "sim" or device.startswith("sim:"))


def find_device(device: int | str) -> tuple[_core.Driver, int]:
    """The driver of an existing device and its number there: ``0``, ``"0"``, ``"sim"`` or ``"sim:8GiB"``."""
    given, device = device, as_device(device) if isinstance(device, str) else device
    if isinstance(device, str) and is_simulated(device):
        size, driver = simulated_size(device), _core.Driver.open("sim")
        number = 0 if size is None else _simulated(driver, size)
    elif isinstance(device, (bool, str)) or not hasattr(device, "__index__") or operator.index(device) < 0:
        raise UsageError(f"device={given!r} is not accepted; write {DEVICES}")
    else:
        driver, number = _core.default_driver(), operator.index(device)
    count = _core.device_count(driver)
    if number >= count:
        raise UsageError(f"device={given!r} does not exist; this machine has {counted(count, 'device')}")
    return driver, number


_simulated_devices: dict[int, int] = {}
_simulated_lock = threading.Lock()


def _forget_lock() -> None:
    """In a forked child: a thread of the parent may have held it."""
    global _simulated_lock
    _simulated_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _simulated(driver: _core.Driver, memory: int) -> int:
    """The number of the simulated device of that size: one per size, created at the first use."""
    with _simulated_lock:
        number = _simulated_devices.get(memory)
        # After a reset of the simulator another device may have the number.
        is_there = number is not None and number < _core.device_count(driver)
        total = _core.describe_device(driver, number).total if number is not None and is_there else None
        if number is None or total != memory:
            number = _simulated_devices[memory] = sim.add_device(memory)
        return number
