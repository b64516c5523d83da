"""Libraries in use that know memory by its pages: network libraries, NCCL, GPUDirect Storage.

They register pages with a network card, another process or another GPU, and the arena does not hear of it. So while one
is in use, ``compact="auto"`` moves nothing. Loaded means in use, except for libraries that PyTorch's wheels load in any
case: those count from their first communicator, bootstrap or driver on.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["NCCL", "is_of_nccl", "libraries_in_use", "recent_libraries_in_use"]

NCCL = "NCCL"
# Files that are loaded only where the library is in use, by how their names begin.
_IN_USE_IF_LOADED = {
    "libucp": "UCX",
    "libuct": "UCX",
    "libibverbs": "libibverbs",
    "libfabric": "libfabric",
    "libgdrapi": "GDRCopy",
    "libcufile_rdma": "GPUDirect Storage",  # loaded when its driver is opened
    "nvshmem_bootstrap_": "NVSHMEM",  # one of them is loaded when NVSHMEM is initialised
    "nvshmem_transport_": "NVSHMEM",
}
_ENDS_OF_NAME = (".", "-", "_")
# What is mapped while the library is in use, by how the path begins.
_IN_USE_IF_MAPPED = {"/dev/shm/nccl-": NCCL, "/dev/nvidia-fs": "GPUDirect Storage"}
_STORAGE = "libcufile"
_WITHOUT_PAGES = {
    "gloo",
    "fake",
    "undefined",
}  # backends of torch.distributed that copy through host memory, or do nothing
_RECENT = 0.5  # seconds

_found: tuple[float, tuple[str, ...]] = (0.0, ())


def libraries_in_use() -> tuple[str, ...]:
    """The libraries in use that may have registered pages of live data, sorted. Reads the list of mapped files."""
    global _found
    found = {*_mapped(), *_backends()}
    _found = (time.monotonic() + _RECENT, tuple(sorted(found)))
    return _found[1]


def recent_libraries_in_use() -> tuple[str, ...]:
    """The same as at most half a second ago."""
    until, found = _found
    return found if time.monotonic() < until else libraries_in_use()


def is_of_nccl(path: str) -> bool:
    """Whether a file is NCCL: a thread in it belongs to a communicator."""
    return _begins_with(path.rpartition("/")[2], "libnccl")


def _mapped() -> Iterator[str]:
    try:
        lines = _read("/proc/self/maps").splitlines()
    except OSError:  # nothing is moved there
        return
    paths = {os.fsdecode(fields[5].strip()) for line in lines if len(fields := line.split(maxsplit=5)) > 5}
    for path in paths:
        name = path.rpartition("/")[2]
        for start, library in _IN_USE_IF_LOADED.items():
            if _begins_with(name, start):
                yield library
        for start, library in _IN_USE_IF_MAPPED.items():
            if path.startswith(start):
                yield library
        if _begins_with(name, _STORAGE) and _is_storage_open(path):
            yield "GPUDirect Storage"


def _read(path: str) -> bytes:
    """Read a file, also while the interpreter shuts down, when there is no ``open()`` any more."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(functools.partial(os.read, file, 1 << 20), b""))
    finally:
        os.close(file)


def _begins_with(name: str, start: str) -> bool:
    """Whether a file is a library, whatever its version; wheels add a hash to names."""
    return name.startswith(start) and (start.endswith("_") or name[len(start) :].startswith(_ENDS_OF_NAME))


def _is_storage_open(path: str) -> bool:
    """Whether the process uses cuFile's driver. PyTorch's wheels load the library in any case."""
    try:
        return bool(_storage_users(path)() != 0)
    except (OSError, AttributeError):  # an old version, or another library of that name
        return True


@functools.lru_cache(maxsize=8)
def _storage_users(path: str) -> Callable[[], int]:
    import ctypes  # slow to import, and most programs do not need it

    function = ctypes.PyDLL(path, mode=os.RTLD_NOLOAD).cuFileUseCount
    function.argtypes, function.restype = (), ctypes.c_long
    return function


def _backends() -> Iterator[str]:
    """Backends of ``torch.distributed``'s process groups. NCCL's makes its communicators when they are first needed."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    if world is None:
        return
    try:
        named = [str(backend) for backend, _ in list(world.pg_map.values())]
        chosen = [str(config) for config in list(world.pg_backend_config.values())]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # another version, or another thread makes a group
        named, chosen = ["an unknown backend"], []
    # "nccl", or "cpu:gloo,cuda:nccl"
    names = {part.rpartition(":")[2].strip().lower() for text in (*named, *chosen) for part in text.split(",")}
    for name in names - _WITHOUT_PAGES:
        yield NCCL if name == "nccl" else f"torch.distributed with {name}"
