"""The arena that people make and call; the work is done by the compiled core."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn, SupportsIndex

from . import _core, sim
from ._poolapi import PoolMethods
from ._sizes import Size, parse_size
from .errors import ArenaError, OutOfMemoryError, UsageError

__all__ = ["Arena", "Buffer", "configure", "default_arena"]

_LARGEST = (1 << 63) - 1
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
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        parse_size(value, 1 << 40, name)
    _configured.update(chosen)


class Buffer:
    """A piece of device memory. It is freed by :meth:`free`, at the end of a ``with`` block, or when dropped."""

    __slots__ = ("__weakref__", "_device", "_owner", "nbytes", "ptr")

    ptr: int
    """The address, a multiple of 512."""
    nbytes: int
    """The bytes that were asked for."""

    def __init__(self, arena: _core.Arena, ptr: int, nbytes: int, device: int) -> None:
        self._owner = [arena]  # emptied by whoever frees it: one thread only can pop it
        self._device = device
        self.ptr = ptr
        self.nbytes = nbytes

    def free(self) -> None:
        """Give the memory back. A second call does nothing."""
        try:
            arena = self._owner.pop()
        except IndexError:
            return
        arena.free(self.ptr)

    def _disown(self) -> _core.Arena:
        """Let somebody else free the memory."""
        return self._owner.pop()

    @property
    def size(self) -> int:
        """The bytes that are there: ``nbytes`` rounded up to a multiple of 512."""
        return max(512, -(-self.nbytes // 512) * 512)

    def record_stream(self, stream: int) -> None:
        """Say that another stream uses this memory: it is not reused before that stream has passed its free."""
        if not self._owner:
            raise UsageError("this buffer was freed: no stream can use it")
        self._owner[0].record_stream(self.ptr, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self._owner:
            raise UsageError("this buffer was freed: its memory is no longer its own")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __del__(self) -> None:
        # Nobody could catch an error here. There is one only when the driver is gone, and the memory with it.
        if getattr(self, "_owner", None) and not sys.is_finalizing():
            with contextlib.suppress(ArenaError):
                self.free()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Buffer owns its memory, so it can be neither copied nor pickled")

    def __repr__(self) -> str:
        state = "" if self._owner else ", freed"
        return f"<arena.Buffer of {self.nbytes} bytes at {self.ptr:#x} on device {self._device}{state}>"


class Arena(PoolMethods, _core.Allocator):
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
        self._driver = driver
        self._core: _core.Arena | None = _core.Arena(driver, number, **sizes)
        self._on_oom: list[Callable[[OutOfMemoryError], object]] = []
        self._on_pressure: list[tuple[float, Callable[[], object]]] = []
        self._calling = threading.local()  # whether this thread is in a callback
        self._give_core(self._core, number, driver.is_simulated)

    @property
    def device(self) -> int:
        """The number of the device that the memory is on."""
        return self._device

    @property
    def is_simulated(self) -> bool:
        """Whether that device is a simulated one."""
        return self._driver.is_simulated

    def allocate(self, size: int, stream: int = 0) -> Buffer:
        """Return a buffer of ``size`` bytes for use on a stream. Raises :class:`OutOfMemoryError`."""
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"a size in bytes is an int, not {size!r}")
        if size < 0:
            raise UsageError(f"size={size} is negative; a size is 0 or more bytes")
        core = self._open
        try:
            ptr = core.allocate(min(size, _LARGEST), stream, False)
        except OutOfMemoryError as error:
            ptr = self._allocate_after_all(core, min(size, _LARGEST), stream, error)
        buffer = Buffer(core, ptr, size, self._device)  # owned before anybody is told
        if self._on_pressure:
            self._tell_pressure(core)
        return buffer

    def on_oom(self, function: Callable[[OutOfMemoryError], object]) -> None:
        """Call a function when a request would fail, with the error; the request is tried again after it.

        The last thing that is tried. An exception in it is shown by :func:`sys.unraisablehook`, and changes nothing.
        """
        self._on_oom.append(function)

    def on_pressure(self, share: float, function: Callable[[], object]) -> None:
        """Call a function when what is reserved first passes that share of the cap, so that work can be saved."""
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise UsageError(f"share={share!r} is not accepted; write a share of the cap above 0 and up to 1 (0.9)")
        self._on_pressure.append((share, function))

    def reserve(self, size: Size) -> None:
        """Have at least so much reserved from now on, by taking what is missing in advance."""
        self._open.reserve(parse_size(size, self._total, "size"))

    def trim(self, *, compact: bool = False) -> None:
        """Give every wholly free handle that no stream uses back to the device, down to what ``reserve=`` keeps.

        With ``compact=True`` every granule goes back that no live block touches: data is moved under its pointers, for
        which the conditions of the arena's own ``compact=`` must hold. Does nothing while a stream is being captured.
        """
        if not compact:
            self._open.trim()
        elif self._may_compact():
            self._open.compact()
        else:
            raise UsageError(
                f"trim(compact=True) would move live data, which compact={self._compact!r} does not allow now: "
                "other threads are alive, or it was switched off"
            )

    def set_cap(self, cap: Size) -> None:
        """Change the cap. Free memory above it is given back at once; what is live stays, and nothing is added."""
        size = parse_size(cap, self._total, "cap")
        if size > self._total:
            raise UsageError(f"cap={size} is more than the device's {self._total} bytes; give at most that")
        self._open.set_cap(size)

    def stats(self) -> _core.Stats:
        """Return the account and the counts. Cheap: running counts, but for ``largest``, which is looked for."""
        return self._open.stats()

    def validate(self) -> None:
        """Check every invariant of the arena; slow. Raises :class:`ArenaError` that says what is wrong."""
        self._open.validate()

    def close(self) -> None:
        """Allocate no more, and give back what is free. Live buffers stay valid, and are given back when freed.

        A second call does nothing; all others are errors from now on.
        """
        self._take_core()
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._core is None:
            return f"<arena.Arena on device {self._device}, closed>"
        stats = self.stats()
        return (
            f"<arena.Arena on device {self._device}: {stats.live} bytes live, {stats.reserved} of {stats.cap} reserved>"
        )

    def _malloc_slowly(self, size: SupportsIndex) -> Any:
        """Do what malloc() does, where that is more than to hand out a block that is there already."""
        from . import _cupy

        return _cupy.malloc(self, size)

    @property
    def _open(self) -> _core.Arena:
        if self._core is None:
            raise UsageError("the arena is closed: make another one")
        return self._core

    def _allocate_after_all(self, core: _core.Arena, size: int, stream: int, error: OutOfMemoryError) -> int:
        """Make room in ways that cost more and more: garbage, moving live data, the user's functions."""
        gc.collect()  # cycles keep arrays alive that nobody can reach
        # What a callback asks for itself may fail: nobody is called for that.
        functions = [] if getattr(self._calling, "now", False) else self._on_oom
        for function in (None, *functions):
            if function is not None:
                self._calling.now = True
                try:
                    _call(functools.partial(function, error))
                finally:
                    self._calling.now = False
            try:
                return core.allocate(size, stream, self._may_compact())
            except OutOfMemoryError as again:
                error = again
        raise error

    def _tell_pressure(self, core: _core.Arena) -> None:
        stats = core.stats()
        due = [entry for entry in self._on_pressure if stats.reserved > entry[0] * stats.cap]
        for entry in due:
            if entry in self._on_pressure:  # once each, also when one of them allocates
                self._on_pressure.remove(entry)
                _call(entry[1])

    def _may_compact(self) -> bool:
        if self._compact != "auto":
            return bool(self._compact)
        has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
        return has_gil() and threading.active_count() == 1


def _call(function: Callable[[], object]) -> None:
    """Call a function of the user's, whose errors are shown and then over."""
    try:
        function()
    except Exception as error:
        # What the interpreter does for errors that nobody can catch, such as those in __del__.
        shown: Any = SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg="Exception ignored in a callback of arena",
            object=function,
        )
        sys.unraisablehook(shown)


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
        driver = _core.Driver.open("sim")
        return driver, _simulated(driver, device.removeprefix("sim:"))
    if isinstance(device, bool) or not isinstance(device, int) or device < 0:
        raise UsageError(f'device={device!r} is not accepted; write a number from 0 up, or "sim:8GiB"')
    return _core.default_driver(), device


_simulated_devices: dict[str, int] = {}


def _simulated(driver: _core.Driver, memory: str) -> int:
    """The number of the simulated device of that size: one for each size, made when it is first asked for."""
    totals = [info.total for info in driver.devices()]
    number = _simulated_devices.get(memory)
    # After a reset of the machine the number may be another device's.
    if number is None or number >= len(totals) or totals[number] != parse_size(memory, 0, "device"):
        number = _simulated_devices[memory] = sim.add_device(memory)
    return number


_defaults: dict[int, Arena] = {}
_defaults_lock = threading.RLock()  # an array that is collected meanwhile may come here


def default_arena(device: int = 0) -> Arena:
    """Return the process's own arena of a device, made at the first call with the settings in force then."""
    with _defaults_lock:
        if device not in _defaults or _defaults[device]._core is None:  # none yet, or closed
            _defaults[device] = Arena(device=device)
            _core.set_default(device, _defaults[device])
        return _defaults[device]


def malloc_slowly(size: SupportsIndex) -> Any:
    """Do what arena.malloc does, where that is more than to hand out a block that is there already."""
    from . import _cupy

    return _cupy.malloc(default_arena(_cupy.current_device()), size)
