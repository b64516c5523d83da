"""Memory resources of RMM as the source of an arena's memory (``upstream=``), without importing RMM.

A resource has ``allocate(size)``, which returns an address, and ``deallocate(address, size)``. Both work on the current
device, in the order of its default stream. The arena uses the memory on other streams too, so each segment is waited
for when it is taken. It goes back only when no stream uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..errors import DriverError, UsageError

__all__ = ["ResourceSource", "is_resource"]

_CAPTURE_ERRORS = (900, 906)  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and _IMPLICIT


def is_resource(upstream: object) -> bool:
    """Whether an object has the methods of an RMM memory resource."""
    return all(callable(getattr(upstream, name, None)) for name in ("allocate", "deallocate"))


class ResourceSource:
    """The function for ``upstream=`` that takes memory from a resource."""

    def __init__(self, resource: Any, driver: _core.Driver, device: int) -> None:
        self.resource = resource
        self._path = driver.path
        self._device = device

    def __call__(self, size: int) -> Segment:
        with self.current_device() as library:
            # Fails if a capture forbids the wait below, which would invalidate it, as giving memory back would.
            _call(library, "cuStreamIsCapturing", ctypes.c_void_p(), ctypes.byref(ctypes.c_int()))
            address = self.resource.allocate(size)
            if isinstance(address, bool) or not isinstance(address, int):
                raise UsageError(f"upstream={self.resource!r} gave {address!r}, which is not an address")
            segment = Segment(self, address, size)
            _call(library, "cuStreamSynchronize", ctypes.c_void_p())
        return segment

    @contextlib.contextmanager
    def current_device(self) -> Iterator[ctypes.CDLL]:
        """Make the arena's device the current one, also for the CUDA runtime. Gives the driver."""
        library, context = ctypes.CDLL(self._path), ctypes.c_void_p()
        _call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(self._device))
        try:
            _call(library, "cuCtxPushCurrent_v2", context)
            try:
                yield library
            finally:
                library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        finally:
            library.cuDevicePrimaryCtxRelease_v2(ctypes.c_int(self._device))


class Segment:
    """Memory of a resource. It goes back when this object is dropped."""

    __slots__ = ("_size", "_source", "ptr")

    def __init__(self, source: ResourceSource, address: int, size: int) -> None:
        self._source, self.ptr, self._size = source, address, size

    def __del__(self) -> None:
        with self._source.current_device():
            self._source.resource.deallocate(self.ptr, self._size)


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code in _CAPTURE_ERRORS:
        raise UsageError(
            "memory of the resource in upstream= cannot be waited for while a stream is being captured that is ordered "
            "with the default stream; reserve() enough before the capture, or capture a non-blocking stream"
        )
    if code:
        raise DriverError(f"{name} failed with {code}, at memory of the resource in upstream=", call=name, code=code)
