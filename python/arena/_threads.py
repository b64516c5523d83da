"""Whether live data may be moved with ``compact="auto"``: the rule.

Data is moved only while the thread that asks holds the GIL, and every other thread is seen asleep where it cannot reach
the device without the GIL: in a wait of Python or its standard library, as a thread of the driver or of the arena, or as
an idle worker of a math library or of ZeroMQ. What cannot be seen, or is not understood, counts as a thread that could
launch work.

To look takes some system calls, in which others get the GIL. So what is returned knows where each thread slept, and the
core asks it again, with the GIL in hand, right before data is moved: nobody may have run since.
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

from . import _core
from ._stacks import Code
from ._timeline import Sampler
from ._trace._record import Writer

__all__ = ["find_standstill", "note_driver_threads", "seems_alone", "thread_ids"]

_TASKS = Path("/proc/self/task")
# The driver's own threads, NVIDIA's and the simulated one's, launch nothing by themselves.
_DRIVER_NAMES = ("cuda",)
_driver_threads: dict[int, str] = {}  # and when each was started: numbers are used again
_PATIENCE = 0.1  # seconds, before a request fails
_GLANCE = 0.02  # seconds that those who only look wait for new threads, once: one that has ended may still be listed
_RECHECK = 0.5  # seconds: a thread that was busy may sleep by then
_PAUSE = 0.001  # seconds between two looks
# There a thread that waits needs no GIL to go on, or not the one that is held here.
_IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class _Seen(NamedTuple):
    """Whether all threads were harmless when there were so many. That they were not holds for a moment only.

    So does that they were, if some of them run Python: they go to sleep and wake up all the time.
    """

    threads: int
    is_alone: bool
    until: float


_seen = _Seen(0, False, 0.0)


def find_standstill(wait: Callable[[], None]) -> _core.Standstill | None:
    """Find a moment in which no other thread could launch work without the GIL; None if there was none for a while.

    ``wait`` is called if there seem to be others: one of them may be a function in a stream, which ends with its work.
    A thread that was just started has no name yet, and a worker of a math library spins for some milliseconds before it
    waits: they get some time.
    """
    if not _has_gil():
        return None
    if found := _look():
        return found
    wait()
    return _look_for(_PATIENCE)


def seems_alone() -> bool:
    """The same for those who only look: in about a microsecond, mostly from what was found a moment ago."""
    if not _has_gil():
        return False
    global _seen
    count, is_only_thread = _count_threads(), _core.is_only_thread()
    is_new = _seen.threads != count
    holds = _seen.is_alone and is_only_thread
    if is_new or (not holds and time.monotonic() > _seen.until):
        found = _look_for(_GLANCE if is_new and is_only_thread else 0)
        _seen = _Seen(_count_threads(), found is not None, time.monotonic() + _RECHECK)
    return _seen.is_alone


def thread_ids() -> set[int]:
    """The system's numbers of all threads of this process; none where it cannot be asked."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(_TASKS)}
    return set()


def note_driver_threads(before: set[int]) -> None:
    """Remember the threads that came to be since then: the driver started them, when it made a context."""
    for thread in thread_ids() - before - {thread.native_id for thread in threading.enumerate()}:
        _driver_threads[thread] = _start_of(thread)


def _has_gil() -> bool:
    is_enabled: Callable[[], bool] | None = vars(sys).get("_is_gil_enabled")  # a failing getattr takes a microsecond
    return is_enabled is None or is_enabled()


def _count_threads() -> int:
    """How many threads this process has: a folder has two links, and one more for each folder in it."""
    try:
        return os.stat(_TASKS).st_nlink - 2
    except OSError:
        return 0


def _look_for(seconds: float) -> _core.Standstill | None:
    end = time.monotonic() + seconds
    while True:
        found = _look()
        if found or time.monotonic() >= end:
            return found
        time.sleep(_PAUSE)


def _look() -> _core.Standstill | None:
    """Where all other threads sleep, if all are harmless."""
    standstill = _core.Standstill(_harmless())
    try:
        return standstill if not standstill.threads or _are_asleep(standstill.threads) else None
    except (OSError, ValueError, OverflowError, struct.error):
        return None


def _are_asleep(threads: dict[int, _core.Sleep | None]) -> bool:
    """Whether all of them wait where they need the GIL to go on, or for somebody who would need it to wake them."""
    if None in threads.values():
        return False
    has_own_gil = _IS_FREE_THREADED or not _core.is_only_interpreter()
    known = _python_threads()
    code = Code()
    for thread, sleep in threads.items():
        assert sleep is not None
        is_below_python = not has_own_gil and code.is_below_python(sleep, is_known=thread in known)
        if not is_below_python and not code.is_idle_worker(sleep):
            return False
    return True


def _python_threads() -> set[int | None]:
    """Those that run Python, by the system's numbers. Some others may, which ``threading`` does not know."""
    frames = sys._current_frames()
    return {thread.native_id for thread in threading.enumerate() if thread.ident in frames}


def _harmless() -> set[int]:
    """The threads that need not sleep: those of the driver, and those that write recordings or sample the account."""
    ours, others = set(), set()
    for thread in threading.enumerate():
        # A thread of the driver that called Python once is listed, too, as a dummy.
        if thread.native_id is not None and not isinstance(thread, threading._DummyThread):
            (ours if isinstance(thread, (Sampler, Writer)) else others).add(thread.native_id)
    rest = thread_ids() - ours - others - {threading.get_native_id()}
    return ours | {thread for thread in rest if _is_driver_thread(thread)}


def _is_driver_thread(thread: int) -> bool:
    if thread in _driver_threads and _driver_threads[thread] == _start_of(thread):
        return True
    try:
        return (_TASKS / str(thread) / "comm").read_text().startswith(_DRIVER_NAMES)
    except OSError:  # it has ended
        return True


def _start_of(thread: int) -> str:
    """When a thread was started, in the system's own unit; nothing if it has ended."""
    try:
        return (_TASKS / str(thread) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
