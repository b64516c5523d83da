"""Why a request failed: the verdicts of the core, by name.

The core decides, and its errors say, what each is called in words. They are repeated here, and a test compares them,
because the core imports the module of the errors, so that cannot ask the core.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Verdict"]


class Verdict(str, Enum):
    """Equal to the text, which is what errors, reports and files have."""

    CAP_REACHED = "cap reached"
    DEVICE_FULL = "device full"
    HEADROOM_KEPT = "headroom kept"
    FRAGMENTED = "fragmented"
    TOO_FEW_ADDRESSES = "too few addresses"
    PINNED = "pinned memory kept"
    IN_TRANSIT = "memory is on its way"
    CAPTURING = "a stream is being captured"
    MOVING_FORBIDDEN = "re-backing not allowed"
    BUDGET_REACHED = "budget of scope"  # and then which

    def is_in(self, text: str) -> bool:
        """Whether a text, which may name a scope, is this verdict."""
        return text.startswith(self.value) if self is Verdict.BUDGET_REACHED else text == self.value
