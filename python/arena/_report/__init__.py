"""Reports: a model of what an arena holds and why, and its renderers. A report never touches the arena.

snapshot → :class:`Report` (model) → text, JSON, HTML, notebook
"""

from __future__ import annotations

from .model import Report, Reports

__all__ = ["Report", "Reports"]
