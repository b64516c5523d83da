"""Recording what an arena is asked for, reading it back, and replaying it under other settings.

recorder (compiled) → chunks → :mod:`_file` → :class:`Trace` → replay (compiled) → :class:`Replayed`
"""

from __future__ import annotations

from ._read import Event, Trace
from ._record import Recording
from ._replay import Peak, Replayed

__all__ = ["Event", "Peak", "Recording", "Replayed", "Trace"]
