"""The arena that people make and call; the work is done by the compiled core."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import _core, sim
from ._sizes import Size, parse_size
from .errors import ArenaError, OutOfMemoryError, UsageError

__all__ = ["Arena", "Buffer", "configure"]

_SETTINGS = ("cap", "reserve", "headroom", "growth")
_configured: dict[str, Size] = {}


def configure(
    *, cap: Size | None = None, reserve: Size | None = None, headroom: Size | None = None, growth: Size | None = None
) -> None:
    """Set what arenas use that are made from now on and not told otherwise. ``None`` leaves a setting as it is.

    Stronger than the environment variables ``ARENA_CAP``, ``ARENA_RESERVE``, ``ARENA_HEADROOM`` and
    ``ARENA_GROWTH``, weaker than the arguments of :class:`Arena`.

    >>> configure(growth="64MiB")
    """
    given = {"cap": cap, "reserve": reserve, "headroom": headroom, "growth": growth}
    for name, value in given.items():
        if value is not None:
            parse_size(value, 1 << 40, name)
            _configured[name] = value


class Buffer:
    """A piece of device memory. It is freed by :meth:`free`, at the end of a ``with`` block, or when dropped."""

    __slots__ = ("__weakref__", "_arena", "_device", "nbytes", "ptr")

    def __init__(self, arena: _core.Arena, ptr: int, nbytes: int, device: int) -> None:
        self._arena: _core.Arena | None = arena
        self._device = device
        self.ptr = ptr
        self.nbytes = nbytes

    def free(self) -> None:
        """Give the memory back. A second call does nothing."""
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.free(self.ptr)

    def record_stream(self, stream: int) -> None:
        """Say that another stream uses this memory: it is not reused before that stream has passed its free."""
        if self._arena is None:
            raise UsageError("this buffer was freed: no stream can use it")
        self._arena.record_stream(self.ptr, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._arena is None:
            raise UsageError("this buffer was freed: its memory is no longer its own")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __del__(self) -> None:
        # Nobody could catch an error here. There is one only when the driver is gone, and the memory with it.
        if self._arena is not None and not sys.is_finalizing():
            with contextlib.suppress(ArenaError):
                self.free()

    def __repr__(self) -> str:
        state = "" if self._arena is not None else ", freed"
        return f"<arena.Buffer of {self.nbytes} bytes at {self.ptr:#x} on device {self._device}{state}>"


class Arena:
    """Device memory under a cap.

    :param cap: the most that is ever reserved (default: all of the device)
    :param reserve: what is reserved at once, and kept by :meth:`trim` (default: nothing)
    :param headroom: what is left free on the device, whoever uses it (default: nothing)
    :param growth: the largest piece taken from the driver at a time (default: 64 MiB)
    :param device: the number of a device, or ``"sim:8GiB"`` for a simulated one of that size
    :param compact: whether live data may be moved under its pointers when nothing else makes room: ``"auto"`` while
        this is the only Python thread and there is a GIL, ``True`` if you vouch that nobody gives the device work
        meanwhile, ``False`` never

    >>> with Arena(cap="64MiB", device="sim:1GiB") as pool:
    ...     buffer = pool.allocate(1000)
    ...     (buffer.nbytes, pool.stats().live)
    (1000, 1024)
    """

    def __init__(
        self,
        cap: Size | None = None,
        reserve: Size | None = None,
        headroom: Size | None = None,
        growth: Size | None = None,
        device: int | str = 0,
        compact: bool | str = "auto",
    ) -> None:
        if compact not in ("auto", True, False):
            raise UsageError(f'compact={compact!r} is not accepted; write "auto", True or False')
        self._compact = compact
        driver, number = _device(device)
        info = next((d for d in driver.devices() if d.number == number), None)
        if info is None:
            count = len(driver.devices())
            raise UsageError(f"device={device!r}: there is no such device; there are {count}, counted from 0")
        if not info.virtual_memory:
            raise UsageError(f"device={device!r} has no virtual memory management, which the arena needs")
        given = {"cap": cap, "reserve": reserve, "headroom": headroom, "growth": growth}
        sizes = {name: _resolve(name, given[name], info.total) for name in _SETTINGS}
        _check(sizes, info.total)
        self._total = info.total
        self._device = number
        self._core = _core.Arena(driver, number, **sizes)

    def allocate(self, size: int, stream: int = 0) -> Buffer:
        """Return a buffer of ``size`` bytes for use on a stream. Raises :class:`OutOfMemoryError`."""
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"a size in bytes is an int, not {size!r}")
        if size < 0:
            raise UsageError(f"size={size} is negative; a size is 0 or more bytes")
        size_for_core = min(size, (1 << 63) - 1)
        try:
            ptr = self._core.allocate(size_for_core, stream, False)
        except OutOfMemoryError as error:
            if error.verdict != "re-backing not allowed" or not self._may_compact():
                raise
            ptr = self._core.allocate(size_for_core, stream, True)
        return Buffer(self._core, ptr, size, self._device)

    def reserve(self, size: Size) -> None:
        """Have at least so much reserved from now on, by taking what is missing in advance."""
        self._core.reserve(parse_size(size, self._total, "size"))

    def trim(self) -> None:
        """Give every wholly free handle that no stream uses back to the device, down to what ``reserve=`` keeps."""
        self._core.trim()

    def set_cap(self, cap: Size) -> None:
        """Change the cap. Free memory above it is given back at once; what is live stays, and nothing is added."""
        self._core.set_cap(parse_size(cap, self._total, "cap"))

    def stats(self) -> _core.Stats:
        """Return the account and the counts. Cheap: safe to call in a loop."""
        return self._core.stats()

    def validate(self) -> None:
        """Check every invariant of the arena; slow. Raises :class:`ArenaError` that says what is wrong."""
        self._core.validate()

    def close(self) -> None:
        """Allocate no more, and give back what is free. Live buffers stay valid, and are given back when freed."""
        self._core.close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"<arena.Arena on device {self._device}: {stats.live} bytes live, {stats.reserved} of {stats.cap} reserved>"
        )

    def _may_compact(self) -> bool:
        if self._compact != "auto":
            return bool(self._compact)
        has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
        return has_gil() and threading.active_count() == 1


def _resolve(name: str, argument: Size | None, total: int) -> int:
    """What a setting is: by argument, :func:`configure`, environment, default, in this order."""
    if argument is not None:
        return parse_size(argument, total, name)
    if name in _configured:
        return parse_size(_configured[name], total, name)
    variables = [f"ARENA_{name.upper()}", *(["CUPY_GPU_MEMORY_LIMIT"] if name == "cap" else [])]
    for variable in variables:
        text = os.environ.get(variable)
        if text:
            return parse_size(text, total, variable)
    return {"cap": total, "reserve": 0, "headroom": 0, "growth": 64 << 20}[name]


def _check(sizes: dict[str, int], total: int) -> None:
    if sizes["cap"] > total:
        raise UsageError(f"cap={sizes['cap']} is more than the device's {total} bytes; give at most that")
    if sizes["reserve"] > sizes["cap"]:
        raise UsageError(f"reserve={sizes['reserve']} is more than cap={sizes['cap']}: it could never be reserved")
    if sizes["headroom"] >= total:
        raise UsageError(f"headroom={sizes['headroom']} leaves nothing of the device's {total} bytes")


def _device(device: int | str) -> tuple[_core.Driver, int]:
    if isinstance(device, str) and device.startswith("sim:"):
        return _core.Driver.open("sim"), _simulated(device.removeprefix("sim:"))
    if isinstance(device, bool) or not isinstance(device, int) or device < 0:
        raise UsageError(f'device={device!r} is not accepted; write a number from 0 up, or "sim:8GiB"')
    return _core.default_driver(), device


_simulated_devices: dict[str, int] = {}


def _simulated(memory: str) -> int:
    """The number of the simulated device of that size: one for each size, made when it is first asked for."""
    number = _simulated_devices.get(memory)
    if number is None or number >= sim.census().devices:
        number = _simulated_devices[memory] = sim.add_device(memory)
    return number
