"""What ``arena demo`` shows: a recorded program under a cap, with a model of CuPy's pool and with the arena.

``pipeline.csv.gz`` is one of the traces described in ``benchmarks/traces``; this is the only copy.
"""

from __future__ import annotations

from .side_by_side import CAP, Comparison, compare

__all__ = ["CAP", "Comparison", "compare"]
