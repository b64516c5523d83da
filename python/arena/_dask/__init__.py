"""What is behind :mod:`arena.dask`: arenas in Dask's workers, who shares a card, and reports of a whole cluster.

worker: settings → seat (a device, and how many share it) → arena; scheduler: ledger of seats; client: ask → report
"""

from __future__ import annotations
