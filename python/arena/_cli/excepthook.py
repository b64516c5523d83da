"""What shows errors nobody caught, before typer puts another in its place, which a program should not find."""

from __future__ import annotations

import sys

__all__ = ["EXCEPT_HOOK"]

EXCEPT_HOOK = sys.excepthook
