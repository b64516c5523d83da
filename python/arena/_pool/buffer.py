"""A piece of device memory, for use without a framework."""

from __future__ import annotations

from typing import Any, NoReturn

from .. import _core
from .._util.arguments import as_stream
from .._util.shown import Shown
from .._words.account import rounded
from ..errors import UsageError

__all__ = ["Buffer", "address_of"]


class Buffer(Shown, _core.BlockOwner):
    """A piece of device memory, freed by :meth:`free`, at the end of a ``with`` block, or when dropped."""

    __slots__ = ("__weakref__",)

    @property
    def size(self) -> int:
        """The usable bytes: ``nbytes`` rounded up to a multiple of 512."""
        return rounded(self.nbytes)

    def record_stream(self, stream: Any) -> None:
        """Note that another stream uses this memory: it is not reused before that stream has passed the free.

        Pass the stream's object if you have one: it is kept alive as long as needed. A plain number may belong to
        another stream by the time of the free; then the arena waits for all work on the stream's device.
        """
        number, core = as_stream(stream), self._core
        if core is None:
            raise UsageError("this buffer was freed: no stream can use it")
        if _core.owns_stream(stream):
            core.keep_stream(number, stream)
        core.record_stream(self.ptr, number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._core is None:
            raise UsageError("this buffer was freed: it has no memory any more")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Buffer owns its memory, so it can be neither copied nor pickled")


def address_of(buffer: Any) -> int:
    """The address of a buffer, of CuPy's memory, or an address itself."""
    if isinstance(buffer, Buffer) and buffer._core is None:
        raise UsageError("this buffer was freed: it has no memory any more")
    address = getattr(buffer, "ptr", buffer)
    if isinstance(address, bool) or not isinstance(address, int) or not 0 <= address < 1 << 64:
        raise UsageError(f"{buffer!r} is not memory of an arena; give a Buffer, CuPy's array.data, or an address")
    return address


_core.set_buffer_type(Buffer)
