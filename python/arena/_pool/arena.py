"""The arena that programs create and call; the compiled core does the work."""

from __future__ import annotations

import functools
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, SupportsIndex

from .. import _core
from .._export import prometheus
from .._inspect.lines import from_environment
from .._inspect.snapshot import Snapshot, _figures, no_collection
from .._inspect.timeline import Timeline
from .._report import Report
from .._report.build import build
from .._report.failure import failure_of
from .._trace.record import Recording, record_by_environment
from .._util.arguments import as_size, as_stream
from .._util.durations import BUDGET, parse_duration
from .._util.environment import warn_of_unknown
from .._util.late import late_import
from .._util.shown import Shown
from .._util.sizes import Size, parse_size
from .._words.plain import plain
from ..errors import OutOfMemoryError, UsageError
from .buffer import address_of
from .graph import GraphMemory
from .moving import forbids_safe_point, may_move, mode_now, mode_of, refused, would_move
from .oom import build_error
from .pool_methods import PoolMethods
from .pressure import Pressure, call
from .registry import remember
from .scope import Scope
from .settings import SETTINGS, check, check_peers, find_device, limit_of, resolve, validates
from .threads import note_driver_threads, thread_ids
from .upstream import ResourceSource, is_resource
from .watch import watch_if_enabled

__all__ = ["Arena", "metrics_of"]


class Arena(Shown, PoolMethods, _core.Allocator):
    """Device memory under a cap.

    :param cap: the most that is ever reserved (default: the whole device)
    :param reserve: what is reserved at once, and kept by :meth:`trim` (default: nothing)
    :param headroom: what must stay free on the device for other users (default: nothing)
    :param growth: the largest piece taken from the driver at a time (default: 64 MiB)
    :param device: the number of a device, ``"sim"`` for the simulated one, or ``"sim:8GiB"`` for one of that size
    :param vmm: whether to use the driver's virtual memory management, if the device has it. Without it, memory is
        taken in plain segments, which can neither be moved nor given back in parts
    :param upstream: a function that takes a size in bytes and returns an object with the address in ``.ptr``, such as
        ``cupy.get_default_memory_pool().malloc``. All memory then comes from it, in plain segments. The object is
        dropped to give the memory back. Or a memory resource of RMM, such as ``rmm.mr.CudaMemoryResource()``
    :param peers: the numbers of the other devices that may access the memory (default: all that can). Kernels of any
        other device fault when they touch it, even if peer access was enabled by other means
    :param compact: whether live data may be moved under its pointers when nothing else makes room: ``"auto"`` while
        the GIL is held, every other thread sleeps where it cannot reach the device without the GIL, and no library
        that registers pages is in use; ``True`` if you guarantee that no other thread launches work, and pin what is
        registered; ``False`` never

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
        vmm: bool = True,
        upstream: Callable[[int], Any] | Any = None,
        compact: bool | str = "auto",
        peers: Iterable[int] | None = None,
    ) -> None:
        if not isinstance(vmm, bool):
            raise UsageError(f"vmm={vmm!r} is not accepted; write True or False")
        if upstream is not None and not callable(upstream) and not is_resource(upstream):
            raise UsageError(
                f"upstream={upstream!r} cannot be called; give a function that takes a size, or an RMM memory resource"
            )
        if not isinstance(compact, bool) and compact != "auto":  # 0 equals False, but is not accepted
            raise UsageError(f'compact={compact!r} is not accepted; write "auto", True or False')
        warn_of_unknown()
        from_environment()
        self._compact = compact
        driver, number = find_device(device)
        info = _core.describe_device(driver, number)
        given = {"cap": cap, "reserve": reserve, "headroom": headroom, "growth": growth}
        sizes = {name: resolve(name, given[name], info.total) for name in SETTINGS}
        check(sizes, info.total)
        self._total = info.total
        self._limit = limit_of(cap, info.total)
        self._name = info.name
        self._device = number
        is_named = isinstance(device, str) and not device.strip().isdigit()  # "sim:8GiB", and not "0"
        self._label = str(device).strip() if is_named else f"device {number}"  # as it was asked for
        self._driver = driver
        threads = thread_ids()
        core = _core.Arena(
            driver,
            number,
            **sizes,
            vmm=vmm,
            moves=compact is True,
            peers=check_peers(peers, number, _core.device_count(driver)),
            upstream=upstream if upstream is None or callable(upstream) else ResourceSource(upstream, driver, number),
            validates=validates(),
        )
        note_driver_threads(threads)
        self._core: _core.Arena | None = core
        self._on_oom: list[Callable[[OutOfMemoryError], object]] = []
        self._on_pressure: list[Pressure] = []
        self._calling = threading.local()  # whether this thread runs an on_oom() function
        self._recording: Recording | None = None  # the one that the environment requested
        self._recorded: dict[str, Recording] = {}  # the recording in progress, if there is one
        self._number = core.id  # in order of creation
        self._state: _core.PoolState | None = _core.PoolState(
            core,
            is_simulated=driver.is_simulated,
            is_auto_compact=compact == "auto",
            expects_virtual_memory=vmm and upstream is None and info.virtual_memory,
        )
        self._warn_of_platform(stacklevel=3)
        self._attach(self._state)
        self._watched = watch_if_enabled(self)
        remember(self)  # last: other threads may report it from now on
        record_by_environment(self)

    @property
    def device(self) -> int:
        """The number of the device."""
        return self._device

    @property
    def is_simulated(self) -> bool:
        """Whether the device is simulated."""
        return self._driver.is_simulated

    @property
    def vmm(self) -> bool:
        """Whether memory is virtual, so that free memory is usable even in pieces."""
        return not self._open.is_plain

    @property
    def peers(self) -> list[int]:
        """The numbers of the other devices that may access the memory."""
        return self._open.peers

    def _parse_request(self, size: int | str, stream: Any = 0) -> tuple[int, int, Any]:
        """Read arguments of allocate() that the core leaves to Python: unusual ones, and wrong ones."""
        size = parse_size(size, self._total, "size") if isinstance(size, str) else as_size(size)
        return size, as_stream(stream), None if hasattr(stream, "__index__") else stream

    def _warn_of_platform(self, *, stacklevel: int = 2) -> None:
        """Warn once about what the platform refuses although the device has it: addresses, or all virtual memory."""
        core, state = self._core, self._state
        if core is None or state is None or not state.expects_virtual_memory or not core.remark:
            return
        if core.is_plain and not state.stop_expecting_virtual_memory():
            return  # another thread warns
        remark = plain(f"arena on device {self._device}: {core.remark}")
        warnings.warn(remark, RuntimeWarning, stacklevel=stacklevel)

    def on_oom(self, function: Callable[[OutOfMemoryError], object]) -> None:
        """Call a function with the error before a request fails; the request is tried again afterwards.

        Functions are called in turn, as the last resort. An exception in one is shown by :func:`sys.unraisablehook`,
        and changes nothing.
        """
        if not callable(function):
            raise UsageError(f"{function!r} cannot be called")
        self._on_oom.append(function)

    def on_pressure(
        self, share: float, function: Callable[[], object], *, of: str = "reserved", rearm: float | None = None
    ) -> None:
        """Call a function when memory first passes that share of the cap, so that work can be shed or saved.

        ``of="live"`` counts what is allocated instead of what is reserved. Then every request is checked, cache hits
        included, which takes a few microseconds. With ``rearm=0.7`` the function is called again each time the share
        is passed after memory was below 0.7 of the cap.

        >>> pool = Arena(cap="64MiB", device="sim:1GiB")
        >>> pool.on_pressure(0.9, lambda: print("shed load"), of="live", rearm=0.7)
        >>> for _ in range(2):
        ...     pool.allocate(60 << 20).free()
        shed load
        shed load
        """
        pressure = Pressure(share, function, of, rearm)
        self._on_pressure.append(pressure)
        state = self._state
        if state is not None:
            state.add_gauge(pressure.gauge)

    def scope(self, name: str, budget: Size | None = None) -> Scope:
        """Name a part of the program: ``with pool.scope("preprocess", budget="1GiB") as s: ...``.

        A scope counts what this thread allocates inside it, and refuses what would exceed the budget. Scopes nest: an
        allocation counts in all scopes around it.

        >>> pool = Arena(device="sim:1GiB")
        >>> with pool.scope("load", budget="1MiB") as s:
        ...     buffer = pool.allocate(1000)
        >>> s.peak, s.leaked
        (1024, 1024)
        """
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(f"a scope needs a printable name, not {name!r}")
        return Scope(self._open, name, None if budget is None else parse_size(budget, self._total, "budget"))

    def graph(self) -> GraphMemory:
        """Keep memory for a captured graph: ``with pool.graph() as memory:`` around the capture.

        A graph uses the same addresses at every launch. Everything this thread allocates in the block, temporaries
        included, stays reserved for the graph until ``memory.release()``, or until ``memory`` is dropped. Within the
        capture it is reused. A capture without this is safe too: its memory is kept until :meth:`release_graphs`.
        """
        return GraphMemory(self._open)

    def release_graphs(self) -> None:
        """Release the memory of graphs captured outside of :meth:`graph`. Do not launch any of them again."""
        self._open.release_graphs()

    def pin(self, buffer: Any) -> None:
        """Keep the physical memory of a buffer until :meth:`unpin`, or until it is freed.

        Pin memory that others know by its pages: registered with RDMA or NCCL, or shared with another process. Takes
        a :class:`Buffer`, CuPy's ``array.data``, or an address. While it is pinned, live data beside it cannot be moved
        either, so free memory around it may be stranded.
        """
        self._open.pin(address_of(buffer))

    def unpin(self, buffer: Any) -> None:
        """Undo one :meth:`pin`."""
        self._open.unpin(address_of(buffer))

    def reserve(self, size: Size) -> None:
        """Reserve at least ``size`` from now on, taking what is missing from the device now."""
        core, bytes_ = self._open, parse_size(size, self._total, "size")
        for pressure in self._on_pressure:
            pressure.gauge.rearm_if_low(core)
        failure = core.reserve(bytes_, may_move=would_move(self._compact))
        if failure is not None:
            raise build_error(self, failure, mode_of(self._compact, core, failure))
        if core.is_plain:
            self._warn_of_platform(stacklevel=3)
        self._fire_pressure()

    def trim(self, *, compact: bool = False) -> None:
        """Return entirely free handles that no stream uses to the device, down to what ``reserve=`` keeps.

        With ``compact=True``, every granule that no live block touches is given back: data is moved under its pointers,
        if the arena's own ``compact=`` allows that now. While a stream is being captured nothing is given back; with
        ``compact=True`` that is a :class:`UsageError`.
        """
        if not compact:
            self._open.trim()
        elif not self._open.compact(may_move(self._compact, self._open)):
            raise refused(self._compact, self._open)

    def safe_point(self, *, budget: str | float = BUDGET) -> int:
        """Declare that no work is being launched now: between batches, between requests, after a cell.

        If memory is scarce and much of it is stranded, or a request failed because live data could not be moved, live
        data is moved under its pointers until ``budget`` is used up (``"5ms"``, or seconds), so that later requests
        find room. The next safe point continues from there. Work in flight is waited for within the budget. With
        nothing to gain it takes less than a microsecond and calls no driver. Returns the bytes freed; 0 with
        ``compact=False``, and with ``"auto"`` while a library that registers pages is in use, such as NCCL.

        >>> with Arena(cap="64MiB", device="sim:1GiB") as pool:
        ...     pool.safe_point(budget="5ms")
        0
        """
        core = self._core or self._open
        if self._compact is False or not core.needs_safe_point() or forbids_safe_point(self._compact):
            if budget is not BUDGET:
                parse_duration(budget, "budget")
            return 0
        return core.safe_point(parse_duration(budget, "budget"))

    def set_cap(self, cap: Size) -> None:
        """Change the cap. Free memory above it is given back at once; live memory stays."""
        size = parse_size(cap, self._total, "cap")
        if size > self._total:
            raise UsageError(f"cap={size} is more than the device's {self._total} bytes; give at most that")
        self._open.set_cap(size)
        self._limit = size

    def stats(self) -> _core.Stats:
        """Return the account and the counts, in constant time: you can call it in a loop.

        Does not call the driver. ``device_free`` is what was free at the last query (by :meth:`snapshot`,
        :meth:`report`, :meth:`metrics`, a request that failed, or with ``headroom=`` one that took more memory), less
        what the arena took since.

        ``largest`` is what would pass under the current rules: ``largest_with_moving`` if live data may be moved
        (``compact=``), otherwise ``largest_without_moving``.
        """
        core = self._core  # not _open, which takes longer
        return core.stats(would_move(self._compact, recheck=False)) if core is not None else self._open.stats()

    def reset_peaks(self) -> None:
        """Start the peaks of :meth:`stats` again, from what is live and reserved now: to see what one step needs.

        The peaks count all threads, such as those of PyTorch's backward pass. Reports show the same peaks. What
        ``arena run`` and ``arena dryrun`` print at the end is about the whole run.

        >>> with Arena(device="sim:1GiB") as pool:
        ...     pool.allocate(4096).free()
        ...     pool.reset_peaks()
        ...     pool.allocate(1024).free()
        ...     pool.stats().peak_live
        1024
        """
        self._open.reset_peaks()

    def snapshot(self) -> Snapshot:
        """Return everything there is: segments, handles, and every piece of memory with its reason.

        >>> with Arena(device="sim:1GiB") as pool, pool.allocate(1000) as buffer:
        ...     [(piece.state, piece.size) for piece in pool.snapshot().pieces]
        [('live', 1024), ('stranded', 67107840)]
        """
        core = self._open
        with no_collection():
            is_allowed = would_move(self._compact)
            moving = mode_now(self._compact, core, is_allowed=is_allowed)
            return Snapshot._of(self._device, core.id, core.snapshot(is_allowed), may_move=is_allowed, moving=moving)

    def report(self, *, verdict: str = "", request: int = 0, timeline: Timeline | None = None) -> Report:
        """Return what is held and why, to print, to show in a notebook, or to ``save("report.html")``.

        ``verdict`` and ``request`` name the request that failed, if the report is about one. With a ``timeline`` of
        this arena it also shows how memory developed.
        """
        if timeline is not None and (not isinstance(timeline, Timeline) or timeline._pool is not self):
            raise UsageError(f"timeline={timeline!r} is not accepted; give an arena.Timeline of this arena")
        if not isinstance(verdict, str):
            raise UsageError(f"verdict={verdict!r} is not accepted; give the verdict of an OutOfMemoryError, a text")
        request = as_size(request)
        if timeline is None and self._watched is not None:
            self._open.update_watch()
        snapshot = self.snapshot()
        drawn = timeline._drawn(snapshot) if timeline is not None else None
        if timeline is None and self._watched is not None:
            drawn = self._watched.timeline(snapshot)
        return build(
            snapshot,
            **self._device_facts,
            failure=failure_of(snapshot, verdict, request) if verdict else None,
            timeline=drawn,
        )

    def metrics(self, /, **labels: str | int) -> str:
        """Return the account in Prometheus's text format, with your labels on every line: ``metrics(pool="a")``.

        First asks the driver for the device's free memory and polls the streams (some 10 µs). So the account is the
        one of a :meth:`report`.

        >>> with Arena(cap="64MiB", device="sim:1GiB") as pool:
        ...     print(pool.metrics(pool="train"))  # doctest: +ELLIPSIS
        # HELP ...
        # TYPE arena_cap_bytes gauge
        arena_cap_bytes{device="...",pool="train"} 67108864
        ...
        """
        return metrics_of([self], labels)

    def record(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Recording:
        """Record all requests from now on: ``with pool.record("run.arena"): ...``. Read it with :class:`Trace`.

        Refuses to overwrite a file without ``overwrite=True``, and to start a second recording. A full disk ends the
        recording with a warning, not the program.
        """
        return Recording(self, path, overwrite=overwrite)

    def validate(self) -> None:
        """Check every invariant of the arena; slow. Raises :class:`ArenaError` that says what is wrong.

        With ``ARENA_VALIDATE=1`` in the environment, arenas do it after every operation.
        """
        self._open.validate()

    def close(self) -> None:
        """Allocate no more, and give back what is free. Live buffers stay valid until they are freed.

        A second call does nothing; all other calls are errors from now on.
        """
        self._detach()
        recording, core = self._recording, self._core
        try:
            if recording is not None:
                recording.stop()
        finally:  # its warning may be raised as an error
            self._core = self._state = None
            if core is not None:
                core.close()  # does nothing if another thread has closed it

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.close()

    def _malloc_by_python(self, size: SupportsIndex) -> Any:
        """Do what malloc() does where the core needs Python: before CuPy is connected, and for errors."""
        with late_import("CuPy cannot be given memory"):
            from .._cupy import bridge

        return bridge.malloc(self, size)

    @property
    def _device_facts(self) -> dict[str, Any]:
        """The device, for reports."""
        return {"device_name": self._name, "simulated": self.is_simulated, "device_label": self._label}

    @property
    def _open(self) -> _core.Arena:
        core = self._core  # once: another thread may close it
        if core is None:
            raise UsageError("the arena is closed: make another one")
        return core

    def _make_room(self, request: _core.PendingRequest) -> None:
        """Collect garbage, call the on_oom() functions, and retry after each. The core calls this after a failure."""
        core = self._open
        gc.collect()  # unreachable cycles keep arrays alive
        # A request of an on_oom() function calls none of them.
        functions = [None, *([] if getattr(self._calling, "now", False) else self._on_oom)]
        for number, function in enumerate(functions, 1):
            if function is not None:
                self._call_on_oom(function, core, request.failure)
            if request.retry(may_move(self._compact, core), is_last=number == len(functions)):
                return
        failure = request.failure
        raise build_error(self, failure, mode_of(self._compact, core, failure))

    def _call_on_oom(
        self, function: Callable[[OutOfMemoryError], object], core: _core.Arena, failure: _core.Failure
    ) -> None:
        self._calling.now = True
        try:
            call(functools.partial(function, failure.error(moving=mode_of(self._compact, core, failure))))
        finally:
            self._calling.now = False

    def _fire_pressure(self) -> None:
        """Call the on_pressure() functions that are due, after a request."""
        core = self._core
        if core is not None:
            for pressure in self._on_pressure:
                pressure.fire_if_high(core)


def metrics_of(pools: list[Arena], labels: dict[str, str | int]) -> str:
    """The accounts of arenas in Prometheus's text format."""
    more = prometheus.check_labels(labels)
    facts = []
    for pool in pools:
        core = pool._open
        figures = _figures(core.stats_after_asking(would_move(pool._compact)))
        facts.append(({"device": str(pool.device), **more}, figures, core.scopes()))
    return prometheus.render(facts)
