"""The methods that people know from CuPy's MemoryPool, so that an arena can take its place in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._numbers import as_size
from .errors import UsageError

if TYPE_CHECKING:
    from . import _core
    from ._snapshot import Snapshot


class PoolMethods:
    """CuPy's words for what an arena does."""

    if TYPE_CHECKING:
        _total: int

        def trim(self) -> None: ...
        def set_cap(self, cap: int) -> None: ...
        def stats(self) -> _core.Stats: ...
        def snapshot(self) -> Snapshot: ...

    def free_all_blocks(self, stream: object = None) -> None:
        """Give free memory back to the device, as :meth:`trim` does: that of all streams, also if one is named."""
        self.trim()

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

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Set the cap, in bytes or as a fraction of the device; without either, or with 0, there is none.

        >>> import arena
        >>> pool = arena.Arena(device="sim:1GiB")
        >>> pool.set_limit(fraction=0.25)
        >>> pool.get_limit() == 256 << 20
        True
        """
        if size is not None and fraction is not None:
            raise UsageError("size and fraction cannot be given together: they may not mean the same")
        if fraction is not None:
            if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
                raise UsageError(f"fraction={fraction!r} is not accepted; write a number from 0 to 1")
            size = int(fraction * self._total)
        self.set_cap(min(as_size(size), self._total) if size is not None and size != 0 else self._total)

    def get_limit(self) -> int:
        """Return the cap in bytes; 0 if there is none, which is to say all of the device."""
        cap = self.stats().cap
        return 0 if cap == self._total else cap
