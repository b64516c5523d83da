"""What several commands read in the same way."""

from __future__ import annotations

__all__ = ["device_of"]


def device_of(text: str) -> str | int:
    """A device as an arena takes it: a number, or the text as it is."""
    return int(text) if text.isascii() and text.isdigit() else text
