"""The account: why every reserved byte is held. Everything that shows, stores or sums it takes the names from here."""

from __future__ import annotations

__all__ = [
    "ALIGNMENT",
    "FREE_STATES",
    "REASONS",
    "STATES",
    "add_missing_reasons",
    "graphs_hint",
    "is_held_by_graphs",
    "rounded",
]

ALIGNMENT = 512
"""Sizes and addresses of blocks are multiples of this many bytes."""

REASONS = {
    "requested": "live data the program requested",
    "rounding": f"rounding up to multiples of {ALIGNMENT} bytes",
    "pending": "freed, but a stream may still be using it",
    "captured": "freed, but kept for a captured CUDA graph",
    "releasable": "entirely free: trim() returns it",
    "stranded": "free pieces next to live blocks",
    "spare": "reserved in advance, not used yet",
}
"""Each reason and its description. Their bytes add up to the reserved bytes."""

FREE_STATES = ("pending", "captured", "releasable", "stranded")
"""The states of a free piece: the reasons that have an address and are not live."""

STATES = ("live", *FREE_STATES)
"""The states of a piece."""

_ADDED_LATER = ("captured",)  # missing from files that older versions wrote


def rounded(size: int) -> int:
    """The size of the block for a request of ``size`` bytes."""
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def add_missing_reasons(figures: dict[str, int]) -> dict[str, int]:
    """Complete the account of a file that an older version wrote: 0 for every reason it did not know."""
    return {**dict.fromkeys(_ADDED_LATER, 0), **figures}


def is_held_by_graphs(account: dict[str, int]) -> bool:
    """Whether captured graphs keep more than a quarter of what is reserved."""
    return account.get("captured", 0) * 4 > account.get("reserved", 0)


def graphs_hint(size: str) -> str:
    """What to do about memory held by captured graphs."""
    return (
        f"captured CUDA graphs keep {size}, which can be neither reused nor returned. Release the memory of graphs "
        "that you no longer launch: memory.release() from `with pool.graph() as memory:`, or pool.release_graphs()."
    )
