"""The methods of CuPy's MemoryPool, so that an arena can replace it in a program."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from .._util.arguments import as_size
from .._util.sizes import parse_size
from ..errors import UsageError

if TYPE_CHECKING:
    from .. import _core
    from .._inspect.snapshot import Snapshot


class PoolMethods:
    """CuPy's names for what an arena does."""

    if TYPE_CHECKING:
        _total: int
        _limit: int

        def trim(self) -> None: ...
        def set_cap(self, cap: int) -> None: ...
        def stats(self) -> _core.Stats: ...
        def snapshot(self) -> Snapshot: ...

    def free_all_blocks(self, stream: object = None) -> None:
        """Give free memory back to the device, like :meth:`trim`: that of all streams, even if one is given."""
        self.trim()

    def free_all_free(self) -> None:
        """Do the same as :meth:`free_all_blocks`; CuPy's older name for it."""
        warnings.warn("free_all_free() is deprecated, in CuPy too: call free_all_blocks()", DeprecationWarning, 2)
        self.free_all_blocks()

    def n_free_blocks(self) -> int:
        """Return the number of free pieces; slow, because it walks them."""
        return sum(piece.state != "live" for piece in self.snapshot().pieces)

    def used_bytes(self) -> int:
        """Return the bytes in allocations, after rounding."""
        return self.stats().live

    def free_bytes(self) -> int:
        """Return the bytes taken from the device and not in allocations."""
        stats = self.stats()
        return stats.reserved - stats.live

    def total_bytes(self) -> int:
        """Return the bytes taken from the device."""
        return self.stats().reserved

    def set_limit(self, size: float | str | None = None, fraction: float | None = None) -> None:
        """Set the cap, in bytes or as a fraction of the device; without either, or with 0, remove it.

        As in CuPy, it may exceed the device's memory, :meth:`get_limit` returns it as set, and a size such as
        ``0.8 * total`` is rounded down to whole bytes.

        >>> import arena
        >>> pool = arena.Arena(device="sim:1GiB")
        >>> pool.set_limit(fraction=0.25)
        >>> pool.get_limit() == 256 << 20
        True
        """
        if size is not None and fraction is not None:
            raise UsageError("give either size or fraction, not both")
        if fraction is not None:
            if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
                raise UsageError(f"fraction={fraction!r} is not accepted; write a number from 0 to 1")
            size = int(fraction * self._total)
        if isinstance(size, str):
            size = parse_size(size, self._total, "size")
        if isinstance(size, float):
            if not 0 <= size < math.inf:
                raise UsageError(f"size={size!r} is not accepted; write a number of bytes, 0 or more")
            size = int(size)
        limit = 0 if size is None else as_size(size)
        self.set_cap(min(limit, self._total) if limit else self._total)
        self._limit = limit

    def get_limit(self) -> int:
        """Return the limit in bytes; 0 if there is none, and the cap is the whole device."""
        return self._limit
