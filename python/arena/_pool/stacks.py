"""Where a thread sleeps: below Python, in the worker pool of a math library, waiting for PyTorch, or in unknown code.

The core walks the stack exactly where it can. Elsewhere every word of the stack that may be a return address counts.
Earlier calls leave some behind, so this errs on the side of caution.
"""

from __future__ import annotations

import bisect
import os
import platform
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .. import _core
from .torch_threads import MOST_FRAMES, Function, waits_for_work

__all__ = ["Code"]

_POOLS = ("openblas", "libgomp", "libiomp", "libomp", "libmkl", "libtsan")  # and a sanitizer's thread
_MESSAGES = ("libzmq", "libsodium")  # ZeroMQ: Jupyter's kernels
_MESSAGES_MODULE = "/zmq/backend/cython/_zmq."  # of pyzmq, which releases the GIL only around calls of libzmq
_SANITIZERS = ("libasan", "libtsan", "libubsan", "libclang_rt")  # wrap system functions
_SYSTEM = ("libc.", "libc-", "libm.", "libm-", "libpthread", "libgcc_s", "libstdc++", "ld-", "[vdso]", *_SANITIZERS)
_PYTHON = ("python", "libpython")  # not a program that embeds Python beside other code
# Modules of the standard library that release the GIL only to wait, and call no other code without it.
_WAITING_MODULES = ("_multiprocessing", "_queue", "_socket", "select", "time")
_MOST_STACK = 1 << 18  # bytes to search; larger stacks are given up on
_HAS_PLAIN_RETURNS = platform.machine() == "x86_64"  # other processors may sign return addresses


class Code:
    """The code that this process has loaded, at one moment."""

    def __init__(self) -> None:
        with open("/proc/self/maps") as lines:
            self._ranges = [_Range.of(line) for line in lines]
        self._begins = [r.begin for r in self._ranges]
        self._entries = set(_core.entries_of_python())
        found = {r for entry in self._entries if (r := self._at(entry)) is not None}
        self._python = {r.path for r in found if r.name.startswith(_PYTHON)}
        self._modules = str(Path(os.__file__).resolve().parent / "lib-dynload")

    def is_below_python(self, sleep: _core.Sleep, *, is_known: bool) -> bool:
        """Whether a thread waits inside the interpreter, called by Python code: it needs the GIL to continue.

        Between the wait and the Python code there may be only functions that take the GIL back before they return.
        Where the stack has to be searched, the thread must be known to run Python, and no other code may have left
        return addresses there.
        """
        if not sleep.is_wait:
            return False
        frames, is_all = sleep.walk()
        for address, function in frames:
            if function in self._entries:
                return True
            if not self._gets_gil_back(self._at(address)):
                return False
        if is_all or not is_known or not _HAS_PLAIN_RETURNS:
            return False
        found = self._search(sleep)
        return bool(found) and all(map(self._gets_gil_back, found))

    def is_idle_worker(self, sleep: _core.Sleep) -> bool:
        """Whether a thread waits in a worker pool: its stack has only code of the library and of the system.

        NumPy starts such threads at import, and only its callers wake them. ZeroMQ's threads move messages.
        """
        if not sleep.is_wait:
            return False
        frames, is_all = sleep.walk()
        found = {self._at(address) for address, _ in frames} if is_all else self._search(sleep)
        names = {"" if r is None else r.name for r in found}
        workers = {name for name in names if any(pool in name for pool in _POOLS) or name.startswith(_MESSAGES)}
        return bool(workers) and all(name.startswith(_SYSTEM) for name in names - workers)

    def waits_for_pytorch(self, sleep: _core.Sleep) -> bool:
        """Whether a thread waits until PyTorch gives it work: idle in autograd, or for the end of a backward pass."""
        if not sleep.is_wait:
            return False
        frames, _ = sleep.walk()
        return waits_for_work([self._function(*frame) for frame in frames[:MOST_FRAMES]])

    def is_in(self, sleep: _core.Sleep, is_library: Callable[[str], bool]) -> bool:
        """Whether a thread sleeps below a function of such a library, as far as its stack can be walked."""
        frames, _ = sleep.walk()
        return any((code := self._at(address)) is not None and is_library(code.path) for address, _ in frames)

    def _function(self, address: int, function: int) -> Function:
        code = self._at(address)
        return Function(_core.exported_name(function), code.path if code is not None else "")

    def _gets_gil_back(self, code: _Range | None) -> bool:
        if code is None:
            return False
        if code.path in self._python or code.name.startswith((*_SYSTEM, *_MESSAGES)) or _MESSAGES_MODULE in code.path:
            return True
        return os.path.dirname(code.path) == self._modules and code.name.partition(".")[0] in _WAITING_MODULES

    def _at(self, address: int) -> _Range | None:
        found = self._ranges[bisect.bisect_right(self._begins, address) - 1]
        return found if found.is_code and found.begin <= address < found.end else None

    def _search(self, sleep: _core.Sleep) -> set[_Range | None]:
        """All code that the words of a stack may return to; empty if the stack cannot be read."""
        top = sleep.stack_pointer
        stack = next((r for r in self._ranges if r.begin <= top < r.end), None)
        if stack is None or stack.end - top > _MOST_STACK:
            return set()
        return set(self._returns(_read(top, (stack.end - top) // 8 * 8)))

    def _returns(self, stack: bytes) -> Iterator[_Range]:
        """Yield the code of return addresses only: a stack may contain other pointers to functions."""
        for (word,) in struct.iter_unpack("=Q", stack):
            code = self._at(word)
            if code is not None and _may_be_returned_to(word, code):
                yield code


def _may_be_returned_to(address: int, code: _Range) -> bool:
    """Whether a call instruction precedes an address; True on processors whose instructions are not known here."""
    if not _HAS_PLAIN_RETURNS:
        return True
    before = _read(max(code.begin, address - 7), min(7, address - code.begin)).rjust(7, b"\0")
    return before[2] == 0xE8 or any(before[i] == 0xFF and before[i + 1] & 0x38 == 0x10 for i in (0, 1, 3, 4, 5))


def _read(address: int, size: int) -> bytes:
    """Read memory of this process. Another thread may unmap it at any moment, which raises OSError."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        found = os.pread(memory, size, address)
    finally:
        os.close(memory)
    if len(found) != size:
        raise OSError(f"{size} bytes at {address:#x} cannot be read")
    return found


class _Range(NamedTuple):
    begin: int
    end: int
    is_code: bool
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @classmethod
    def of(cls, line: str) -> _Range:
        fields = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in fields[0].split("-"))
        return cls(begin, end, "x" in fields[1], fields[5].strip() if len(fields) > 5 else "")
