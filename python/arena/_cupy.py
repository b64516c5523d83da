"""The bridge to CuPy: whose stream it is, and memory in CuPy's own types. Imported when CuPy first asks for memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import _core, errors
from ._arena import Arena
from ._buffer import Buffer

try:
    import cupy
    from cupy.cuda.memory import MemoryPointer, UnownedMemory
    from cupy.cuda.memory import OutOfMemoryError as CupyOutOfMemoryError
except ImportError as error:
    raise errors.ArenaError(
        f"malloc() gives memory to CuPy, which cannot be imported ({error}); install it (pip install cupy-cuda13x, "
        "or cupy-cuda12x for CUDA 12), or use allocate(), which needs no framework"
    ) from error

_STREAM_SIGNATURE = b"intptr_t (int)"


class OutOfMemoryError(errors.OutOfMemoryError, CupyOutOfMemoryError):  # type: ignore[misc]
    """What malloc() raises under CuPy: CuPy itself catches its own class in places."""

    def __init__(self, text: str, verdict: str, requested: int, largest: int, account: dict[str, int]) -> None:
        errors.OutOfMemoryError.__init__(self, text, verdict, requested, largest, account)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever unpickles it may have no CuPy.
        return errors.OutOfMemoryError, self.args


def _stream_lookup() -> Callable[[int], int]:
    """CuPy's own note of each device's current stream, or the public way if it is not where it was.

    The note can be read where no CUDA runtime runs; the public way asks the runtime first.
    """
    try:
        from cupy_backends.cuda import stream

        capsule = stream.__pyx_capi__["get_stream_ptr"]
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, _STREAM_SIGNATURE)
    except (ImportError, AttributeError, KeyError, ValueError):
        return lambda device: int(cupy.cuda.get_current_stream(device).ptr)
    return ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(address)


current_stream = _stream_lookup()


def current_device() -> int:
    """CuPy's current device; 0 on the simulated driver, where no CUDA runtime runs that could have changed it."""
    try:
        return int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError:
        if not _core.default_driver().is_simulated:
            raise
        return 0


def stream_of(pool: Arena) -> int:
    """CuPy's current stream on the arena's device; the null one where no CUDA runtime runs that could have others."""
    try:
        return current_stream(pool.device)
    except cupy.cuda.runtime.CUDARuntimeError:
        if not pool.is_simulated:
            raise
        return 0


def malloc(pool: Arena, size: int) -> Any:
    """A block of the arena as CuPy's MemoryPointer. It goes back when the last array that views it goes."""
    device = pool.device
    try:
        buffer: Buffer = pool.allocate(size, stream_of(pool))
    except errors.OutOfMemoryError as error:
        raise OutOfMemoryError(*error.args) from None
    return MemoryPointer(UnownedMemory(buffer.ptr, buffer.size, buffer, device), 0)
