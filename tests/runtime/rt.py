"""The runtime API, called directly on the simulated runtime."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from arena._dryrun.libraries import FOLDER

SUCCESS = "cudaSuccess"
H2D, D2H, D2D, DEFAULT = 1, 2, 3, 4


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class PointerAttributes(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_uint64),
        ("host_pointer", ctypes.c_uint64),
        ("reserved", ctypes.c_long * 8),  # of CUDA 13
    ]


class FatBinaryWrapper(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_int),
        ("version", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("more", ctypes.c_void_p),
    ]


class Rt:
    """Every `cuda*` function of one library; returns the name of the error."""

    def __init__(self, major: int) -> None:
        self.major = major
        self.lib = ctypes.CDLL(str(FOLDER / f"libcudart.so.{major}"))
        self.lib.cudaGetErrorName.restype = ctypes.c_char_p
        self.lib.cudaGetErrorString.restype = ctypes.c_char_p
        getattr(self.lib, "__cudaRegisterFatBinary").restype = ctypes.c_void_p

    def __getattr__(self, name: str) -> Callable[..., str]:
        function = getattr(self.lib, name)

        def call(*arguments: Any) -> str:
            return self.name(function(*[ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]))

        setattr(self, name, call)
        return call

    def name(self, code: int) -> str:
        return str(self.lib.cudaGetErrorName(code).decode())

    def ok(self, name: str, *arguments: Any) -> None:
        result = getattr(self, name)(*arguments)
        assert result == SUCCESS, f"{name}: {result}"

    def out(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint64) -> int:
        """Call a function whose first parameter is a pointer to its result, and return that."""
        value = kind()
        self.ok(name, ctypes.byref(value), *arguments)
        return int(value.value)

    def malloc(self, size: int) -> int:
        return self.out("cudaMalloc", size)

    def stream(self, flags: int = 1) -> int:
        return self.out("cudaStreamCreateWithFlags", flags)

    def event(self, flags: int = 0) -> int:
        return self.out("cudaEventCreateWithFlags", flags)

    def describe(self, address: int) -> PointerAttributes:
        found = PointerAttributes()
        self.ok("cudaPointerGetAttributes", ctypes.byref(found), address)
        return found


# What nvcc would compile: the PTX of a kernel and of a variable. The driver takes it as it takes a compressed binary.
PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .b8 table[64];
.visible .entry add_one(.param .u64 data, .param .u32 count) { ret; }
\0"""


class Program:
    """A program with one kernel and one variable, registered as compiled code does before main."""

    def __init__(self, rt: Rt, *, variable_size: int = 64) -> None:
        self.rt = rt
        self.image = ctypes.create_string_buffer(PTX)
        self.wrapper = FatBinaryWrapper(0x466243B1, 1, ctypes.addressof(self.image), None)
        self.kernel = ctypes.create_string_buffer(1)  # its address stands for the kernel
        self.variable = ctypes.create_string_buffer(variable_size)
        self.names = [ctypes.create_string_buffer(name) for name in (b"add_one", b"table")]  # kept, as in a binary
        lib = rt.lib
        register = functools.partial(getattr, lib)
        self.binary = ctypes.c_void_p(register("__cudaRegisterFatBinary")(ctypes.byref(self.wrapper)))
        none = ctypes.c_void_p(None)
        register("__cudaRegisterFunction")(
            self.binary, self.kernel, self.names[0], self.names[0], -1, none, none, none, none, none
        )
        register("__cudaRegisterVar")(
            self.binary, self.variable, self.names[1], self.names[1], 0, ctypes.c_size_t(variable_size), 0, 0
        )
        register("__cudaRegisterFatBinaryEnd")(self.binary)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.kernel)

    def launch(self, stream: int = 0, *, blocks: int = 1, threads: int = 32, shared: int = 0) -> str:
        data, count = ctypes.c_uint64(), ctypes.c_uint()
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(count))
        return self.rt.name(
            self.rt.lib.cudaLaunchKernel(
                ctypes.c_void_p(self.address),
                Dim3(blocks, 1, 1),
                Dim3(threads, 1, 1),
                arguments,
                ctypes.c_size_t(shared),
                ctypes.c_void_p(stream),
            )
        )

    def unregister(self) -> None:
        getattr(self.rt.lib, "__cudaUnregisterFatBinary")(self.binary)
