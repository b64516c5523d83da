"""Keeps allocators of PyTorch's pools alive where PyTorch does not."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

__all__ = ["keep_allocators"]

_BY_ADDRESS = "18createOrIncrefPoolEaSt4pairIyyEPS2_"  # how functions end that take the address of an allocator alone
_kept: list[object] = []


def keep_allocators(torch: Any, replaced: Iterable[str]) -> None:
    """Keep every allocator that a ``torch.cuda.MemPool`` gets from now on, if this PyTorch passes on its address only.

    A pool's memory goes back to its allocator, which may be after the program dropped both.
    """
    if not any(name.endswith(_BY_ADDRESS) for name in replaced):
        return
    original = torch.cuda.MemPool.__init__

    @functools.wraps(original)
    def init(self: object, allocator: object = None, *arguments: Any, **named: Any) -> None:
        if allocator is not None and not any(allocator is kept for kept in _kept):
            _kept.append(allocator)
        original(self, allocator, *arguments, **named)

    torch.cuda.MemPool.__init__ = init
