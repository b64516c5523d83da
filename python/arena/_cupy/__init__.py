"""Everything about CuPy: the bridge that gives it memory, and its current allocator."""

from __future__ import annotations

__all__ = ["POOL_UNIT"]

POOL_UNIT = 512  # bytes: what CuPy's own pool rounds sizes up to
