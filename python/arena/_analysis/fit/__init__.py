"""How much memory a recorded program needs: finds caps by replaying it, and predicts other batches by scaling it.

:mod:`caps` replays under caps; :mod:`runs` and :mod:`align` match the allocations of runs with different batches;
:mod:`model` fits how each allocation grows; :mod:`batches` predicts. :mod:`answer` combines them.
"""

from __future__ import annotations

from .answer import Fit, fit

__all__ = ["Fit", "fit"]
