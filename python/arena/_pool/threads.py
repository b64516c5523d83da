"""Whether live data may be moved with ``compact="auto"``: the rule.

Live data is moved only while the thread that asks holds the GIL and every other thread is asleep where it cannot reach
the device without the GIL: waiting inside the Python interpreter, as a thread of the driver or of the arena, or idle in
a worker pool of a math library or of ZeroMQ. What cannot be read, or is not understood, counts as a thread that could
launch work.

Looking takes system calls, and others get the GIL during some of them. So what is found knows where each thread slept,
and the core asks it again, with the GIL in hand, right before data is moved: none may have run since.
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
from .stacks import Code

__all__ = ["find_standstill", "note_driver_threads", "seems_alone", "thread_ids"]

_TASKS = Path("/proc/self/task")
# The driver's own threads, NVIDIA's and the simulated one's, launch nothing by themselves; nor do those of the arena.
_HARMLESS_NAMES = ("cuda", "arena-signals")
_driver_threads: dict[int, str] = {}  # and when each was started: numbers are used again
# Seconds, before a request fails: a worker of a math library spins for a while before it waits; a Python thread may be
# about to wait; what sleeps elsewhere is likely to stay there.
_PATIENCE, _WITH_PYTHON, _WITH_SLEEPERS = 0.1, 0.02, 0.003
_GLANCE = 0.02  # seconds that those who only look wait for new threads, once: one that has ended may still be listed
_RECHECK = 0.5  # seconds: a thread that was busy may sleep by then
_PAUSE = 0.001  # seconds between two looks
_IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class _Look(NamedTuple):
    """Where all other threads sleep, if all are harmless; those that are not, with where they sleep, if they do."""

    standstill: _core.Standstill | None
    strangers: dict[int, _core.Sleep | None]

    def patience(self) -> float:
        running = {thread for thread, sleep in self.strangers.items() if sleep is None}
        if not running:
            return _WITH_SLEEPERS
        return _WITH_PYTHON if running & _python_threads() else _PATIENCE


class _Seen(NamedTuple):
    """Where all threads slept when there were so many; None if not all were harmless, which is believed for a moment.

    Those that run Python go to sleep and wake up all the time: that they sleep is looked at again each time.
    """

    threads: int
    only_one_runs_python: bool
    standstill: _core.Standstill | None
    until: float


_seen = _Seen(0, False, None, 0.0)


def find_standstill(wait: Callable[[], None]) -> _core.Standstill | None:
    """Find a moment in which no other thread could launch work without the GIL; None if there was none for a while.

    ``wait`` is called if there seem to be others: one of them may wait for work of the device, which ends then.
    """
    if not _has_gil():
        return None
    if found := _look().standstill:
        return found
    wait()
    return _look_for(_PATIENCE)


def seems_alone(*, afresh: bool = False) -> bool:
    """The same for those who only look, from what was found a moment ago if that is still so.

    It takes about a microsecond in programs of one thread, some 20 for each other thread that sleeps. ``afresh`` looks
    at all of them again.
    """
    if not _has_gil():
        return False
    global _seen
    only_one = _core.is_only_thread()
    is_new = _seen.threads != _count_threads() or _seen.only_one_runs_python != only_one
    if not is_new and not afresh:
        if _seen.standstill is None and time.monotonic() <= _seen.until:
            return False
        if _seen.standstill is not None and (only_one or _seen.standstill.holds()):
            return True
    found = _look_for(_GLANCE if is_new and only_one else 0)
    _seen = _Seen(_count_threads(), only_one, found, time.monotonic() + _RECHECK)
    return found is not None


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
    begin = time.monotonic()
    while True:
        look = _look()
        if look.standstill or time.monotonic() >= begin + min(seconds, look.patience()):
            return look.standstill
        time.sleep(_PAUSE)


def _look() -> _Look:
    standstill = _core.Standstill(_harmless())
    strangers = _strangers(standstill.threads)
    return _Look(None if strangers else standstill, strangers)


def _strangers(threads: dict[int, _core.Sleep | None]) -> dict[int, _core.Sleep | None]:
    """Threads that could reach the device without the GIL, as far as their stacks show."""
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
            if not is_below_python and not code.is_idle_worker(sleep):
                found[thread] = sleep
    except (OSError, ValueError, OverflowError, struct.error):  # not to be read, or of a kind that is not known here
        return threads
    return found


def _needs_gil() -> bool:
    """Whether all threads that wait in Python need the GIL that is held here to go on.

    Those of other interpreters may need another one. When the interpreter ends, those that want it end without it.
    """
    return not _IS_FREE_THREADED and _core.is_only_interpreter() and not sys.is_finalizing()


def _python_threads() -> set[int | None]:
    """Those that run Python, by the system's numbers. Some others may, which ``threading`` does not know."""
    running = set(sys._current_frames())  # not the frames: this one would keep itself, and the arrays of all callers
    return {thread.native_id for thread in threading.enumerate() if thread.ident in running}


def _harmless() -> set[int]:
    """The threads that need not sleep: those of the driver, and those that write recordings or sample the account."""
    ours: set[int] = set()
    others: set[int] = set()
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
        return (_TASKS / str(thread) / "comm").read_text().startswith(_HARMLESS_NAMES)
    except OSError:  # it has ended
        return True


def _start_of(thread: int) -> str:
    """When a thread was started, in the system's own unit; nothing if it has ended."""
    try:
        return (_TASKS / str(thread) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
