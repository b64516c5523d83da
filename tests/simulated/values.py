"""The functions of cudasim.h for known and unknown memory, and what their tests share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from arena import sim

from .cu import LEGACY, SUCCESS, Cu
from .images import Kernel, Variable, cubin
from .test_capture import begin, end

UNKNOWN, KNOWN, ZERO = 0, 1, 2
NONE, ALL, SOME = 0, 1, 2
DONE, CAPTURING, NO_STREAM = 0, 1, 2
GARBAGE = b"\xaa"
IMAGE = cubin(
    Kernel("writes", params=(8, 4)),
    Kernel("takes_struct", params=(24,)),
    Kernel("bare"),
    Variable("counter", 4, initial=b"\x07"),
    Variable("factors", 8, initial=b"\x09", constant=True),
)


class Values:
    """The functions of cudasim.h, with Python's types."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(sim.library()))
        self.reads: list[tuple[int, int, int]] = []
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_ulonglong] * 3)
        self._callback = kind(lambda *read: self.reads.append(read))
        self.lib.cudasimValuesOnRead(self._callback)

    def mark(self, address: int, size: int, state: int) -> None:
        self.lib.cudasimValuesMark(ctypes.c_uint64(address), ctypes.c_uint64(size), state)

    def query(self, address: int, size: int) -> int:
        return int(self.lib.cudasimValuesQuery(ctypes.c_uint64(address), ctypes.c_uint64(size)))

    def known(self, address: int, size: int) -> list[int]:
        found = (ctypes.c_ubyte * size)(*[9] * size)
        self.lib.cudasimValuesRead(ctypes.c_uint64(address), ctypes.c_uint64(size), found)
        return list(found)

    def write(self, address: int, *known: int) -> None:
        self.lib.cudasimValuesWrite(
            ctypes.c_uint64(address), ctypes.c_uint64(len(known)), (ctypes.c_ubyte * len(known))(*known)
        )

    def settle(self, address: int, size: int) -> None:
        self.lib.cudasimValuesSettle(ctypes.c_uint64(address), ctypes.c_uint64(size))

    def expect(self, data: bytes) -> None:
        self.lib.cudasimValuesExpect(data, ctypes.c_uint64(len(data)))

    def drain(self, stream: int) -> int:
        return int(self.lib.cudasimValuesDrain(ctypes.c_void_p(stream)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, "cudasimValues" + name.capitalize())


def dirty(cu: Cu, values: Values, size: int) -> int:
    """Memory that holds leftovers and is unknown."""
    address = cu.alloc(size)
    cu.ok("cuMemsetD8", address, GARBAGE[0], size)
    cu.ok("cuStreamSynchronize", LEGACY)
    values.mark(address, size, UNKNOWN)
    return address


def launch(cu: Cu, kernel: int, *arguments: Any, stream: int = 0) -> None:
    """Launch a kernel with these arguments, as ctypes has them."""
    pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
    cu.ok("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)


def word(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def captured(cu: Cu, work: Callable[[int], None]) -> int:
    """A graph of what was queued in the stream."""
    stream = cu.stream()
    begin(cu, stream)
    work(stream)
    result, graph = end(cu, stream)
    assert result == SUCCESS
    return cu.out("cuGraphInstantiateWithFlags", graph, 0)
