"""Python's own exception hook, saved before typer replaces it: a program under ``arena run`` expects the original."""

from __future__ import annotations

import sys

__all__ = ["EXCEPT_HOOK"]

EXCEPT_HOOK = sys.excepthook
