"""PyTorch in a dry run: results that decide about control flow are computed.

PyTorch itself is unmodified and needs nothing to run dry. An extension in C++ (``cpp/``), compiled once for each
version of PyTorch by :mod:`build`, wraps its kernels for the device; :mod:`values` loads it and answers its questions,
and :mod:`ledger` keeps account of what was live at the peak.
"""

from __future__ import annotations

from .ledger import TorchLedger
from .values import enable, problem, sized_facts, through

__all__ = ["TorchLedger", "enable", "problem", "sized_facts", "through"]
