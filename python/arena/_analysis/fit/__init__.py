"""How much memory a recorded program needs: caps found by replaying it, and larger batches by scaling it.

:mod:`caps` replays under caps; :mod:`runs` and :mod:`align` find what is the same in runs with different batches;
:mod:`model` says how each allocation grows; :mod:`batches` predicts. :mod:`answer` puts them together.
"""

from __future__ import annotations

from .answer import Fit, fit

__all__ = ["Fit", "fit"]
