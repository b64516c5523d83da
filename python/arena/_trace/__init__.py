"""Traces: records the requests to an arena in files, and reads them back.

recorder (compiled) → chunks → :mod:`container` → :class:`Trace`
"""

from __future__ import annotations

from .failures import Failure, Survived
from .read import Event, Trace
from .record import Recording

__all__ = ["Event", "Failure", "Recording", "Survived", "Trace"]
