"""A piece of device memory without any framework."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NoReturn

from . import _core
from ._numbers import as_stream
from .errors import ArenaError, UsageError

__all__ = ["Buffer"]


class Buffer:
    """A piece of device memory. It is freed by :meth:`free`, at the end of a ``with`` block, or when dropped."""

    __slots__ = ("__weakref__", "_device", "_nbytes", "_owner", "_ptr")

    def __init__(self, arena: _core.Arena, ptr: int, nbytes: int, device: int) -> None:
        self._owner = [arena]  # emptied by whoever frees it: one thread only can pop it
        self._device = device
        self._ptr = ptr
        self._nbytes = nbytes

    @property
    def ptr(self) -> int:
        """The address, a multiple of 512; of 256, if ``upstream=`` gives no better."""
        return self._ptr

    @property
    def nbytes(self) -> int:
        """The bytes that were asked for."""
        return self._nbytes

    def free(self) -> None:
        """Give the memory back. A second call does nothing."""
        try:
            arena = self._owner.pop()
        except IndexError:
            return
        arena.free(self.ptr)

    def _disown(self) -> _core.Arena:
        """Let somebody else free the memory."""
        return self._owner.pop()

    @property
    def size(self) -> int:
        """The bytes that are there: ``nbytes`` rounded up to a multiple of 512."""
        return max(512, -(-self.nbytes // 512) * 512)

    def record_stream(self, stream: Any) -> None:
        """Say that another stream uses this memory: it is not reused before that stream has passed its free."""
        number = as_stream(stream)
        try:
            arena = self._owner[0]
        except IndexError:
            raise UsageError("this buffer was freed: no stream can use it") from None
        arena.record_stream(self.ptr, number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self._owner:
            raise UsageError("this buffer was freed: its memory is no longer its own")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __del__(self) -> None:
        # Nobody could catch an error here. There is one only when the driver is gone, and the memory with it.
        if getattr(self, "_owner", None) and not sys.is_finalizing():
            with contextlib.suppress(ArenaError):
                self.free()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Buffer owns its memory, so it can be neither copied nor pickled")

    def __repr__(self) -> str:
        state = "" if self._owner else ", freed"
        return f"<arena.Buffer of {self.nbytes} bytes at {self.ptr:#x} on device {self._device}{state}>"
