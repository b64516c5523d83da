"""A piece of device memory without any framework."""

from __future__ import annotations

from typing import Any, NoReturn

from . import _core
from ._numbers import as_stream, owns_stream
from .errors import UsageError

__all__ = ["Buffer"]


class Buffer(_core.BlockOwner):
    """A piece of device memory. It is freed by :meth:`free`, at the end of a ``with`` block, or when dropped."""

    __slots__ = ("__weakref__",)

    @property
    def size(self) -> int:
        """The bytes that are there: ``nbytes`` rounded up to a multiple of 512."""
        return max(512, -(-self.nbytes // 512) * 512)

    def record_stream(self, stream: Any) -> None:
        """Say that another stream uses this memory: it is not reused before that stream has passed its free.

        Pass the stream's object if there is one: it is kept as long as it is needed. A plain number may be another
        stream's by the time of the free; then the arena waits for everything that runs on the stream's device.
        """
        number, core = as_stream(stream), self._core
        if core is None:
            raise UsageError("this buffer was freed: no stream can use it")
        if owns_stream(stream):
            core.keep_stream(number, stream)
        core.record_stream(self.ptr, number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._core is None:
            raise UsageError("this buffer was freed: its memory is no longer its own")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Buffer owns its memory, so it can be neither copied nor pickled")

    def __repr__(self) -> str:
        state = ", freed" if self._core is None else ""
        return f"<arena.Buffer of {self.nbytes} bytes at {self.ptr:#x} on device {self._device}{state}>"


_core.set_buffer_type(Buffer)
