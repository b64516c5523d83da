"""How each library gets memory of an arena, uses it on a stream, and gives it back: what the conformance suite needs.

Libraries are imported where they are used: no environment has all of them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import arena
from arena import sim

CARD = "t4"  # for PyTorch


class Held:
    """Memory that a library allocated. Nothing else refers to it."""

    def __init__(self, memory: Any, free: Callable[[Any], object] | None = None) -> None:
        self.memory = memory
        self._free = free

    def free(self) -> None:
        """Give it back by the library's function for that, or else by dropping it."""
        memory, self.memory = self.memory, None
        if self._free is not None:
            self._free(memory)

    def drop(self) -> None:
        self.memory = None


@dataclass(frozen=True)
class Adapter:
    """A library that gets its memory from an arena."""

    name: str
    framework: str  # in reports
    pool: arena.Arena
    allocate: Callable[[int, Any], Held]  # a size, and a stream or None for the library's default
    address: Callable[[Any], int]
    fill: Callable[[Any, Any], None]  # queues work on a stream that writes all of the memory
    new_stream: Callable[[], Any]
    error: type[BaseException]  # out of memory
    names_streams: bool = True  # whether it says which stream uses memory
    is_arenas_error: bool = True  # whether that is also arena's own class
    enter_thread: Callable[[], object] = lambda: None
    flush: Callable[[], object] = lambda: None  # ends what the library keeps for later
    warning_in_child: str = ""  # the library's own, at memory that is freed in a forked child


def numba(pool: arena.Arena) -> Adapter:
    import numpy as np
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError, device_memset

    arena.numba.use(pool)
    return Adapter(
        name="numba",
        framework="Numba",
        pool=pool,
        allocate=lambda size, stream: Held(
            cuda.device_array(size, dtype=np.uint8), lambda array: array.gpu_data.free()
        ),
        address=lambda array: int(array.__cuda_array_interface__["data"][0]),
        fill=lambda array, stream: device_memset(array, 1, array.size, stream=stream or 0),
        new_stream=cuda.stream,
        names_streams=False,
        flush=lambda: cuda.current_context().deallocations.clear(),
        error=CudaAPIError,
    )


def cuda_core(pool: arena.Arena) -> Adapter:
    from cuda.core import Device

    device = Device(pool.device)
    device.set_current()
    device.memory_resource = arena.cuda_core.MemoryResource(pool)
    default = device.default_stream
    return Adapter(
        name="cuda_core",
        framework="cuda.core",
        pool=pool,
        allocate=lambda size, stream: Held(
            device.allocate(size, stream=stream or default), lambda buffer: buffer.close()
        ),
        address=lambda buffer: int(buffer.handle),
        fill=lambda buffer, stream: buffer.fill(1, stream=stream or default),
        new_stream=device.create_stream,
        error=MemoryError,
        enter_thread=device.set_current,
        warning_in_child="Warning: MemoryResource deallocate failed during resource destruction (CUDA error 3)\n",
    )


def rmm(pool: arena.Arena) -> Adapter:
    import rmm as library
    from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream

    from ..simulated.cu import Cu

    resource = arena.rmm.resource(pool)
    library.mr.set_per_device_resource(pool.device, resource)
    cu = Cu()  # for what RMM's CUDA runtime would do, which does not start on the simulated driver
    context = cu.start(pool.device)

    def fill(buffer: Any, stream: Any) -> None:
        cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.size, (stream or DEFAULT_STREAM).__cuda_stream__()[1])

    return Adapter(
        name="rmm",
        framework="RMM",
        pool=pool,
        allocate=lambda size, stream: Held(
            library.DeviceBuffer(size=size, stream=stream or DEFAULT_STREAM, mr=resource)
        ),
        address=lambda buffer: int(buffer.ptr),
        fill=fill,
        new_stream=lambda: Stream(cu.owned_stream()),
        error=MemoryError,
        is_arenas_error=False,
        enter_thread=lambda: cu.ok("cuCtxSetCurrent", context),
    )


def cupy(pool: arena.Arena) -> Adapter:
    import cupy as library

    library.cuda.set_allocator(pool.malloc)

    def allocate(size: int, stream: Any) -> Held:
        with stream or contextlib.nullcontext():
            return Held(library.empty(size, "uint8"), lambda array: array.data.mem.free())

    def fill(array: Any, stream: Any) -> None:
        array.data.memset_async(1, array.nbytes, stream or library.cuda.Stream.null)

    return Adapter(
        name="cupy",
        framework="CuPy",
        pool=pool,
        allocate=allocate,
        address=lambda array: int(array.data.ptr),
        fill=fill,
        new_stream=lambda: library.cuda.Stream(non_blocking=True),
        error=library.cuda.memory.OutOfMemoryError,
    )


def torch(pool: arena.Arena) -> Adapter:
    import torch as library

    arena.torch.use(pool)

    def allocate(size: int, stream: Any) -> Held:
        with library.cuda.stream(stream):
            return Held(library.empty(size, dtype=library.uint8, device="cuda"))

    def fill(tensor: Any, stream: Any) -> None:
        with library.cuda.stream(stream):
            tensor.fill_(1)

    return Adapter(
        name="torch",
        framework="PyTorch",
        pool=pool,
        allocate=allocate,
        address=lambda tensor: int(tensor.data_ptr()),
        fill=fill,
        new_stream=library.cuda.Stream,
        error=library.OutOfMemoryError,
        is_arenas_error=False,
    )


ADAPTERS: dict[str, Callable[[arena.Arena], Adapter]] = {
    "cuda_core": cuda_core,
    "cupy": cupy,
    "numba": numba,
    "rmm": rmm,
    "torch": torch,
}


def start(name: str) -> Adapter:
    """In a new process: a simulated device, and the library with an arena of 64 MiB on it."""
    warnings.simplefilter("ignore")  # those of the libraries
    if name == "torch":
        sim.dryrun(card=CARD).__enter__()
    elif name != "cupy":  # which is in a dry run already
        sim.enable()
    sim.configure(races=True)
    return ADAPTERS[name](arena.Arena(cap="64MiB"))
