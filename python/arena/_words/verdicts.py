"""Why a request failed: the verdicts of the core, by name.

The core owns these texts. They are repeated here, and a test compares the two, because the core imports
``arena.errors``, which therefore cannot ask the core.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Verdict"]


class Verdict(str, Enum):
    """Each equals its text, which is what errors, reports and files contain."""

    CAP_REACHED = "cap reached"
    DEVICE_FULL = "device full"
    HEADROOM_KEPT = "headroom kept"
    FRAGMENTED = "fragmented"
    TOO_FEW_ADDRESSES = "too few addresses"
    PINNED = "pinned memory kept"
    IN_TRANSIT = "memory is on its way"
    CAPTURING = "a stream is being captured"
    MOVING_FORBIDDEN = "re-backing not allowed"
    BUDGET_REACHED = "budget of scope"  # followed by the scope's name and "reached"

    def is_in(self, text: str) -> bool:
        """Whether a text is this verdict. The text may name a scope."""
        return text.startswith(self.value) if self is Verdict.BUDGET_REACHED else text == self.value
