"""Which threads of this process could give the device work while live data is moved."""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import _core
from ._timeline import Sampler
from ._trace._record import Writer

__all__ = ["is_alone", "note_driver_threads", "seems_alone", "thread_ids"]

_TASKS = Path("/proc/self/task")
# The driver's own threads, NVIDIA's and the simulated one's, launch nothing by themselves.
_DRIVER_NAMES = ("cuda",)
_driver_threads: set[int] = set()
_PATIENCE = 0.1  # seconds, before a request fails
_GLANCE = 0.02  # seconds that those who only look wait for new threads, once: one that has ended may still be listed
_RECHECK = 0.5  # seconds: a thread that was busy may be known to be harmless by then
_POOLS = ("openblas", "libgomp", "libiomp", "libomp", "libmkl", "libtsan")  # and the thread of a sanitizer
_SYSTEM = ("libc.", "libc-", "libm.", "libm-", "libpthread", "libgcc_s", "ld-", "[vdso]")
_MOST_STACK = 1 << 16  # bytes; a thread that waits in a pool has come through very little


class _Seen(NamedTuple):
    """Whether all threads were harmless when there were so many. That they were not holds for a moment only."""

    threads: int
    is_alone: bool
    until: float


_seen = _Seen(0, False, 0.0)


def is_alone(wait: Callable[[], None]) -> bool:
    """Whether the calling thread is the only one that could launch work, as long as it holds the GIL.

    Python threads are counted, and native ones: C++ threads of DALI or UCX launch work without Python. The threads of
    the driver, those that only write recordings or sample the account, and those that wait in the pool of a math
    library are known to be harmless. ``wait`` is called if there seem to be others: one of them may be a function in a
    stream, which ends with its work.
    """
    if not _has_gil():
        return False
    if not _is_only_python_thread():
        wait()
    return _is_only_python_thread() and not _native_threads(_PATIENCE)


def seems_alone() -> bool:
    """The same for those who only look: in about a microsecond, from what was found when there were as many threads."""
    if not _has_gil() or not _is_only_python_thread():
        return False
    global _seen
    count = _count_threads()
    is_new = _seen.threads != count
    if is_new or (not _seen.is_alone and time.monotonic() > _seen.until):
        found = _native_threads(_GLANCE if is_new else 0)
        _seen = _Seen(_count_threads(), not found, time.monotonic() + _RECHECK)
    return _seen.is_alone


def thread_ids() -> set[int]:
    """The system's numbers of all threads of this process; none where it cannot be asked."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(_TASKS)}
    return set()


def note_driver_threads(before: set[int]) -> None:
    """Remember the threads that came to be since then: the driver started them, when it made a context."""
    _driver_threads.update(thread_ids() - before - {thread.native_id for thread in threading.enumerate()})


def _has_gil() -> bool:
    is_enabled: Callable[[], bool] | None = vars(sys).get("_is_gil_enabled")  # a failing getattr takes a microsecond
    return is_enabled is None or is_enabled()


def _is_only_python_thread() -> bool:
    """Whether no other thread runs Python, except harmless ones. Threads that ``threading`` does not know count too."""
    return _core.is_only_thread() or len(sys._current_frames()) - len(_harmless()) == 1


def _count_threads() -> int:
    """How many threads this process has: a folder has two links, and one more for each folder in it."""
    try:
        return os.stat(_TASKS).st_nlink - 2
    except OSError:
        return 0


def _harmless() -> set[int | None]:
    return {thread.native_id for thread in threading.enumerate() if isinstance(thread, (Sampler, Writer))}


def _native_threads(patience: float) -> set[int]:
    """Threads that are neither this one nor known to be harmless. Where the system cannot tell, there may be some.

    One that was just started has no name yet, and a worker of a math library spins for some milliseconds before it
    waits: `patience` is how many seconds they get.
    """
    found = thread_ids()
    if not found:
        return {0}
    found -= {threading.get_native_id()} | _harmless() | _driver_threads
    end = time.monotonic() + patience
    while True:
        found = {thread for thread in found if not _is_driver_thread(thread) and not _is_idle_worker(thread)}
        if not found or time.monotonic() >= end:
            return found
        time.sleep(0.001)


def _is_driver_thread(thread: int) -> bool:
    try:
        return (_TASKS / str(thread) / "comm").read_text().startswith(_DRIVER_NAMES)
    except OSError:  # it has ended
        return True


def _is_idle_worker(thread: int) -> bool:
    """Whether a thread waits in the pool of a math library, which NumPy starts at import and only its callers wake.

    The stack tells: all code that a waiting thread has come through is the library's own and the system's. A stack may
    have been another thread's before, which leaves pointers to functions in unused places: only what a call has left
    there counts.
    """
    try:
        words = (_TASKS / str(thread) / "syscall").read_text().split()
        if len(words) < 3:  # it runs
            return False
        top = int(words[-2], 16)
        with open("/proc/self/maps") as lines:
            ranges = [_Range.of(line) for line in lines]
        stack = next(r for r in ranges if r.begin <= top < r.end)
        frames = _read(top, min(stack.end - top, _MOST_STACK) // 8 * 8)
        code = [r for r in ranges if r.is_code]
        found = ((word, r) for (word,) in struct.iter_unpack("=Q", frames) for r in code if r.begin <= word < r.end)
        names = {r.name for word, r in found if _may_be_returned_to(word, r)}
    except (OSError, ValueError, OverflowError, StopIteration, struct.error):
        return False
    pools = {name for name in names if any(pool in name for pool in _POOLS)}
    return bool(pools) and all(name.startswith(_SYSTEM) for name in names - pools)


def _may_be_returned_to(address: int, code: _Range) -> bool:
    """Whether there is a call right before an address, for processors whose instructions are known here."""
    if platform.machine() != "x86_64":
        return True
    before = _read(max(code.begin, address - 7), min(7, address - code.begin)).rjust(7, b"\0")
    return before[2] == 0xE8 or any(before[i] == 0xFF and before[i + 1] & 0x38 == 0x10 for i in (0, 1, 3, 4, 5))


def _read(address: int, size: int) -> bytes:
    """Read memory of this process that another thread may unmap at any moment: then it is an OSError."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        return os.pread(memory, size, address)
    finally:
        os.close(memory)


class _Range(NamedTuple):
    begin: int
    end: int
    is_code: bool
    name: str

    @classmethod
    def of(cls, line: str) -> _Range:
        fields = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in fields[0].split("-"))
        return cls(begin, end, "x" in fields[1], Path(fields[5].strip()).name if len(fields) > 5 else "")
