"""Whether live data may be moved with ``compact="auto"``: the rule.

Live data is moved only while the requesting thread holds the GIL and every other thread sleeps where it cannot reach
the device without the GIL: waiting inside the Python interpreter or for the GIL, as a thread of the driver or of the
arena, idle in a worker pool of a math library or of ZeroMQ, or waiting until PyTorch gives it work. A thread whose
state cannot be read, or is not understood, counts as one that could launch work.

Inspecting threads takes system calls, and other threads get the GIL during some of them. So a standstill remembers
where each thread slept, and the core checks it again, with the GIL held, right before data is moved: none may have run
since.

Nothing is moved while a library that registers pages is in use, whatever the threads do (``registered.py``).
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import _core
from .._inspect.timeline import Sampler
from .._trace.record import Writer
from .registered import NCCL, is_of_nccl, libraries_in_use, recent_libraries_in_use
from .stacks import Code

__all__ = ["find_standstill", "note_driver_threads", "registering_libraries", "seems_alone", "thread_ids"]

_TASKS = Path("/proc/self/task")
# Threads of the driver, NVIDIA's or the simulated one, launch no work by themselves; nor do those of the arena.
_HARMLESS_NAMES = ("cuda", "arena-signals")
_driver_threads: dict[int, str] = {}  # with the start time of each: thread ids are reused
# Seconds to wait before a request fails: a worker of a math library spins before it sleeps; a Python thread may be
# about to sleep; a thread that sleeps elsewhere is likely to stay there.
_PATIENCE, _WITH_PYTHON, _WITH_SLEEPERS = 0.1, 0.02, 0.003
_GLANCE = 0.02  # seconds that seems_alone() waits for new threads, once: an ended thread may still be listed
_RECHECK = 0.5  # seconds: a busy thread may sleep by then
_PAUSE = 0.001  # seconds between two inspections
_IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class _Inspection(NamedTuple):
    """Where all other threads sleep, if all are harmless; otherwise those that are not, and where they sleep."""

    standstill: _core.Standstill | None
    suspects: dict[int, _core.Sleep | None]

    def patience(self) -> float:
        running = {thread for thread, sleep in self.suspects.items() if sleep is None}
        if not running:
            return _WITH_SLEEPERS
        return _WITH_PYTHON if running & _python_threads() else _PATIENCE


class _Cached(NamedTuple):
    """The last standstill, and the threads there were; None if not all were harmless, which holds for a moment.

    Threads that run Python sleep and wake up all the time, so whether they sleep is checked each time.
    """

    threads: int
    only_one_runs_python: bool
    standstill: _core.Standstill | None
    until: float


_cached = _Cached(threads=0, only_one_runs_python=False, standstill=None, until=0.0)


def find_standstill(wait: Callable[[], None]) -> _core.Standstill | None:
    """Find a moment at which no other thread could launch work without the GIL; None if there is none for a while.

    ``wait`` is called if another thread seems active: it may be waiting for the device, whose work is done then.
    """
    if not _has_gil() or libraries_in_use():
        return None
    found = _inspect().standstill
    if found is None:
        wait()
        found = _wait_for_standstill(_PATIENCE)
    # Once more: another thread may have begun to use one until then. If one does so from now on, it has run since.
    return None if libraries_in_use() else found


def seems_alone(*, recheck: bool = False) -> bool:
    """Whether :func:`find_standstill` would succeed now, from the last result if that still holds.

    Takes about a microsecond in single-threaded programs, and some 20 for each other sleeping thread. ``recheck``
    inspects all threads again.
    """
    if not _has_gil() or (libraries_in_use() if recheck else recent_libraries_in_use()):
        return False
    global _cached
    only_one = _core.is_only_thread()
    is_new = _cached.threads != _count_threads() or _cached.only_one_runs_python != only_one
    if not is_new and not recheck:
        if _cached.standstill is None and time.monotonic() <= _cached.until:
            return False
        if _cached.standstill is not None and (only_one or _cached.standstill.holds()):
            return True
    found = _wait_for_standstill(_GLANCE if is_new and only_one else 0)
    _cached = _Cached(_count_threads(), only_one, found, time.monotonic() + _RECHECK)
    return found is not None


def registering_libraries() -> tuple[str, ...]:
    """The libraries in use that may have registered pages of live data: why it may not be moved, whatever threads do.

    A thread of NCCL belongs to a communicator. It counts as active in any case; here it is given its name.
    """
    found = set(libraries_in_use())
    if NCCL not in found and _is_in_any_thread(is_of_nccl):
        found.add(NCCL)
    return tuple(sorted(found))


def _is_in_any_thread(is_library: Callable[[str], bool]) -> bool:
    try:
        code = Code()
        sleeps = _core.Standstill(set()).threads.values()
        return any(sleep is not None and code.is_in(sleep, is_library) for sleep in sleeps)
    except (OSError, ValueError):
        return False


def thread_ids() -> set[int]:
    """The ids of all threads of this process; empty where the system does not list them."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(_TASKS)}
    return set()


def note_driver_threads(before: set[int]) -> None:
    """Remember the threads started since then: the driver started them when it created a context."""
    for thread in thread_ids() - before - {thread.native_id for thread in threading.enumerate()}:
        _driver_threads[thread] = _start_of(thread)


def _has_gil() -> bool:
    is_enabled: Callable[[], bool] | None = vars(sys).get("_is_gil_enabled")  # a getattr that fails takes a microsecond
    return is_enabled is None or is_enabled()


def _count_threads() -> int:
    """The number of threads of this process: a folder has two links, and one more for each folder in it."""
    try:
        return os.stat(_TASKS).st_nlink - 2
    except OSError:
        return 0


def _wait_for_standstill(seconds: float) -> _core.Standstill | None:
    begin = time.monotonic()
    while True:
        inspection = _inspect()
        if inspection.standstill or time.monotonic() >= begin + min(seconds, inspection.patience()):
            return inspection.standstill
        time.sleep(_PAUSE)


def _inspect() -> _Inspection:
    standstill = _core.Standstill(_harmless())
    suspects = _suspects(standstill.threads)
    return _Inspection(None if suspects else standstill, suspects)


def _suspects(threads: dict[int, _core.Sleep | None]) -> dict[int, _core.Sleep | None]:
    """Threads that could reach the device without the GIL, judging by their stacks."""
    found: dict[int, _core.Sleep | None] = {thread: None for thread, sleep in threads.items() if sleep is None}
    if found or not threads:
        return found
    needs_gil = _needs_gil()
    known = _python_threads()
    try:
        code = Code()
        for thread, sleep in threads.items():
            assert sleep is not None
            is_below_python = needs_gil and code.is_below_python(sleep, is_known=thread in known)
            if not is_below_python and not code.is_idle_worker(sleep) and not code.waits_for_pytorch(sleep):
                found[thread] = sleep
    except (OSError, ValueError, OverflowError, struct.error):  # unreadable, or of an unknown kind
        return threads
    return found


def _needs_gil() -> bool:
    """Whether all threads that wait in Python need the GIL held here to continue.

    Threads of other interpreters may need another GIL. While the interpreter shuts down, threads end without it.
    """
    return not _IS_FREE_THREADED and _core.is_only_interpreter() and not sys.is_finalizing()


def _python_threads() -> set[int | None]:
    """Ids of the threads that run Python. There may be others, which ``threading`` does not know."""
    running = set(sys._current_frames())  # only the keys: this frame would keep itself, and the arrays of all callers
    return {thread.native_id for thread in threading.enumerate() if thread.ident in running}


def _harmless() -> set[int]:
    """Threads that need not sleep: those of the driver, and those that write recordings or sample the account."""
    ours: set[int] = set()
    others: set[int] = set()
    for thread in threading.enumerate():
        # A thread of the driver that called Python once is also listed, as a dummy.
        if thread.native_id is not None and not isinstance(thread, threading._DummyThread):
            (ours if isinstance(thread, (Sampler, Writer)) else others).add(thread.native_id)
    rest = thread_ids() - ours - others - {threading.get_native_id()}
    return ours | {thread for thread in rest if _is_driver_thread(thread)}


def _is_driver_thread(thread: int) -> bool:
    if thread in _driver_threads and _driver_threads[thread] == _start_of(thread):
        return True
    try:
        return (_TASKS / str(thread) / "comm").read_text().startswith(_HARMLESS_NAMES)
    except OSError:  # the thread has ended
        return True


def _start_of(thread: int) -> str:
    """When a thread was started, in ticks of the system; empty if it has ended."""
    try:
        return (_TASKS / str(thread) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
