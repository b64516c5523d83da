"""Which bytes of simulated device memory are known, as the simulated driver keeps it.

A computed result is written into the memory itself, which is host memory; these functions only say what is there. The
library is opened when the first of them is called. The calls are short and take no lock of Python's, so all but
:func:`drain` keep the interpreter's lock: giving it up would cost more than the call.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from .._sim.library import library
from ..errors import UsageError

__all__ = [
    "KNOWN",
    "MODES",
    "UNKNOWN",
    "VARIABLE",
    "ZERO",
    "checked_mode",
    "drain",
    "enable",
    "enter",
    "expect",
    "forget",
    "leave",
    "mark",
    "mode",
    "query",
    "read",
    "settle",
    "write",
]

# What memory holds: something that was not computed, which reads as zeros; what was computed from known values; and
# what was computed from unknown values as if they were zeros.
UNKNOWN, KNOWN, ZERO = 0, 1, 2
MODES = ("none", "control", "all")
VARIABLE = "ARENA_VALUES"

_ADDRESS, _SIZE = ctypes.c_ulonglong, ctypes.c_ulonglong
_ARGUMENTS: dict[str, list[Any]] = {
    "Enable": [ctypes.c_int],
    "Mark": [_ADDRESS, _SIZE, ctypes.c_int],
    "Query": [_ADDRESS, _SIZE],
    "Read": [_ADDRESS, _SIZE, ctypes.c_void_p],
    "Write": [_ADDRESS, _SIZE, ctypes.c_void_p],
    "Settle": [_ADDRESS, _SIZE],
    "Drain": [ctypes.c_void_p],
    "Enter": [],
    "Leave": [],
    "Expect": [ctypes.c_char_p, _SIZE],
    "Forget": [],
}
_ANSWERS = frozenset({"Query", "Drain"})


def mode() -> str:
    """Which values a dry run computes: ``none``, ``control`` or ``all``. The environment says it."""
    return checked_mode(os.environ.get(VARIABLE) or MODES[1], VARIABLE)


def checked_mode(value: object, name: str) -> str:
    """The same mode, if there is one of this name."""
    if value not in MODES:
        raise UsageError(f"{name}={value!r} is not accepted; write one of {', '.join(map(repr, MODES))}")
    return str(value)


@functools.cache
def _function(name: str) -> Any:
    opened = ctypes.CDLL if name == "Drain" else ctypes.PyDLL
    function = getattr(opened(str(library())), f"cudasimValues{name}")
    function.argtypes = _ARGUMENTS[name]
    function.restype = ctypes.c_int if name in _ANSWERS else None
    return function


def enable(on: bool) -> None:
    """Have the driver track which bytes are known, or not."""
    _function("Enable")(int(on))


def mark(address: int, size: int, state: int) -> None:
    """Say what a range holds: ``KNOWN``, ``UNKNOWN`` or ``ZERO``."""
    _function("Mark")(address, size, state)


def query(address: int, size: int) -> int:
    """1 if all bytes of a range are known, 0 if none is, 2 if some are."""
    return int(_function("Query")(address, size))


def read(address: int, size: int, known: int) -> None:
    """Write one byte per byte of the range, 1 if it is known, to the host address ``known``."""
    _function("Read")(address, size, known)


def write(address: int, size: int, known: int) -> None:
    """Say of every byte of a range whether it is known, from the host address ``known``. All bytes keep their value."""
    _function("Write")(address, size, known)


def settle(address: int, size: int) -> None:
    """Make zeros of what reads as zeros in a range, for someone about to read the memory itself."""
    _function("Settle")(address, size)


def drain(stream: int) -> bool:
    """Wait for what is queued in a stream of the current context; false, without waiting, while it is captured."""
    return int(_function("Drain")(stream)) == 0


def enter() -> None:
    """Until :func:`leave`, kernels that this thread launches change no marks. May be nested."""
    _function("Enter")()


def leave() -> None:
    """See :func:`enter`."""
    _function("Leave")()


def expect(value: bytes) -> None:
    """Say what this thread's next copy of so many unknown bytes to the host shall yield. Several wait in line."""
    _function("Expect")(value, len(value))


def forget() -> None:
    """Drop what this thread expects and no copy has taken."""
    _function("Forget")()
