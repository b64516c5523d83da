"""The driver API, called directly: no client library between the tests and the simulated driver.

>>> cu = Cu()
>>> cu.cuInit(0)
'CUDA_SUCCESS'
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from arena import sim

MIB = 1 << 20
GIB = 1 << 30
SUCCESS = "CUDA_SUCCESS"
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"
NOT_READY = "CUDA_ERROR_NOT_READY"
LEGACY, PER_THREAD = 1, 2


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint), ("id", ctypes.c_int)]


class Prop(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint),
        ("handle_types", ctypes.c_uint),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_uint)]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint),
        ("handle_types", ctypes.c_uint),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    ]


def prop(device: int = 0, *, kind: int = 1, where: int = 1, handle_types: int = 0) -> Prop:
    return Prop(kind, handle_types, Location(where, device))


READ_WRITE, READ_ONLY, NO_ACCESS = 3, 1, 0


class RefusedError(AssertionError):
    """A call that should have succeeded did not."""


class Cu:
    """Every `cu*` function, by its API name; returns the name of the result code.

    Integers are passed as 64-bit words, which is what the calling convention does with narrower ones too.
    """

    def __init__(self, library: str | None = None) -> None:
        self.lib = ctypes.CDLL(library or str(sim.library()))
        self.names: dict[int, str] = {}

    def __getattr__(self, name: str) -> Callable[..., str]:
        """Look a function up once; it is then an attribute and found without this."""
        for symbol in (name + "_v2", name):
            if hasattr(self.lib, symbol):
                function = getattr(self.lib, symbol)
                break
        else:
            raise AttributeError(name)

        def call(*arguments: Any) -> str:
            return self.name(function(*[ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]))

        setattr(self, name, call)
        return call

    def name(self, code: int) -> str:
        if code not in self.names:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            assert text.value is not None, code
            self.names[code] = text.value.decode()
        return self.names[code]

    def ok(self, name: str, *arguments: Any) -> None:
        result = getattr(self, name)(*arguments)
        if result != SUCCESS:
            raise RefusedError(f"{name}: {result}")

    def out(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint64) -> int:
        """Call a function whose first parameter is a pointer to its result, and return that."""
        value = kind()
        self.ok(name, ctypes.byref(value), *arguments)
        return int(value.value)

    # What most tests need first.

    def start(self, device: int = 0) -> int:
        self.ok("cuInit", 0)
        context = self.out("cuDevicePrimaryCtxRetain", device)
        self.ok("cuCtxSetCurrent", context)
        return context

    def alloc(self, size: int) -> int:
        return self.out("cuMemAlloc", size)

    def stream(self, *, non_blocking: bool = True) -> int:
        return self.out("cuStreamCreate", 1 if non_blocking else 0)

    def owned_stream(self, *, non_blocking: bool = True) -> OwnedStream:
        return OwnedStream(self, non_blocking=non_blocking)

    def event(self) -> int:
        return self.out("cuEventCreate", 0)

    def reserve(self, size: int, alignment: int = 0, hint: int = 0) -> int:
        return self.out("cuMemAddressReserve", size, alignment, hint, 0)

    def create(self, size: int = 2 * MIB, device: int = 0) -> int:
        return self.out("cuMemCreate", size, ctypes.byref(prop(device)), 0)

    def map(self, address: int, handle: int, size: int = 2 * MIB) -> None:
        self.ok("cuMemMap", address, size, 0, handle, 0)

    def allow(self, address: int, size: int = 2 * MIB, device: int = 0, flags: int = READ_WRITE) -> str:
        desc = Access(Location(1, device), flags)
        return self.cuMemSetAccess(address, size, ctypes.byref(desc), 1)

    def mapped(self, size: int = 2 * MIB) -> tuple[int, int]:
        """An address and the handle mapped there, ready to use."""
        address, handle = self.reserve(size), self.create(size)
        self.map(address, handle, size)
        assert self.allow(address, size) == SUCCESS
        return address, handle

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.ok("cuMemcpyDtoH", buffer, address, size)
        return buffer.raw

    def write(self, address: int, data: bytes) -> None:
        self.ok("cuMemcpyHtoD", address, data, len(data))


class OwnedStream:
    """A stream that is destroyed with its object, as in CuPy and cuda-core."""

    def __init__(self, cu: Cu, *, non_blocking: bool = True) -> None:
        self.cu, self.ptr = cu, cu.stream(non_blocking=non_blocking)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __del__(self) -> None:
        self.cu.cuStreamDestroy(self.ptr)
