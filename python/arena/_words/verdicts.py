"""Why a request failed: the verdicts of the core, by name. The core owns their texts."""

from __future__ import annotations

from enum import Enum

from .. import _core

__all__ = ["Verdict"]

_TEXTS = _core.VERDICTS


class Verdict(str, Enum):
    """Each equals its text, which is what errors, reports and files contain."""

    CAP_REACHED = _TEXTS["CAP_REACHED"]
    DEVICE_FULL = _TEXTS["DEVICE_FULL"]
    HEADROOM_KEPT = _TEXTS["HEADROOM_KEPT"]
    FRAGMENTED = _TEXTS["FRAGMENTED"]
    TOO_FEW_ADDRESSES = _TEXTS["TOO_FEW_ADDRESSES"]
    PINNED = _TEXTS["PINNED"]
    IN_TRANSIT = _TEXTS["IN_TRANSIT"]
    CAPTURING = _TEXTS["CAPTURING"]
    MOVING_FORBIDDEN = _TEXTS["MOVING_FORBIDDEN"]
    BUDGET_REACHED = _TEXTS["BUDGET_REACHED"]  # followed by the scope's name and "reached"

    def is_in(self, text: str) -> bool:
        """Whether a text is this verdict. The text may name a scope."""
        return text.startswith(self.value) if self is Verdict.BUDGET_REACHED else text == self.value
