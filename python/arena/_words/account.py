"""The account: why every reserved byte is held. All that shows, stores or sums it takes its names from here."""

from __future__ import annotations

__all__ = [
    "ALIGNMENT",
    "FREE_STATES",
    "REASONS",
    "STATES",
    "add_later_reasons",
    "graphs_hint",
    "is_held_by_graphs",
    "rounded",
]

ALIGNMENT = 512
"""Blocks are multiples of so many bytes, and lie at such addresses."""

REASONS = {
    "requested": "what the program asked for",
    "rounding": f"up to multiples of {ALIGNMENT} bytes",
    "pending": "freed, but a stream may still be using it",
    "captured": "freed, but kept for a captured CUDA graph",
    "releasable": "wholly free: trim() would return it",
    "stranded": "free pieces beside live blocks",
    "spare": "reserved in advance, not used yet",
}
"""Each reason in words; their bytes add up to what is reserved."""

FREE_STATES = ("pending", "captured", "releasable", "stranded")
"""What a free piece can be: the reasons that have a place in memory and are not live."""

STATES = ("live", *FREE_STATES)
"""What a piece can be."""

_LATER = ("captured",)  # what files from before these reasons existed do not have


def rounded(size: int) -> int:
    """The bytes that a request of that size takes."""
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def add_later_reasons(figures: dict[str, int]) -> dict[str, int]:
    """The account from a file, with 0 for every reason that did not exist when the file was written."""
    return {**dict.fromkeys(_LATER, 0), **figures}


def is_held_by_graphs(account: dict[str, int]) -> bool:
    """Whether captured graphs keep a large share of what is reserved: a quarter."""
    return account.get("captured", 0) * 4 > account.get("reserved", 0)


def graphs_hint(size: str) -> str:
    """What to do about memory that captured graphs keep."""
    return (
        f"captured CUDA graphs keep {size}, which can be neither reused nor returned. Release the memory of graphs "
        "that you no longer launch: memory.release() from `with pool.graph() as memory:`, or pool.release_graphs()."
    )
