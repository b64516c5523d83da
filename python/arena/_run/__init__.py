"""Running somebody's program with the arena in it: :mod:`_main` runs it, :mod:`_hook` gives CuPy the arena,
:mod:`_session` sets it all up and tells at the end what came of it.
"""

from __future__ import annotations

from ._main import run_program
from ._session import Session

__all__ = ["Session", "run_program"]
