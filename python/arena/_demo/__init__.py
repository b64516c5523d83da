"""What ``arena demo`` shows: a recorded program on a small card, with CuPy's pool and with the arena.

``pipeline.csv.gz`` is one of the traces of ``benchmarks/traces``, where it is described; this is the only copy.
"""

from __future__ import annotations

from .side_by_side import CAP, Comparison, compare

__all__ = ["CAP", "Comparison", "compare"]
