"""Functions to call when an arena fills up: which figure they watch, and when they are called again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import UsageError

__all__ = ["FIGURES", "Pressure", "call"]

FIGURES = ("reserved", "live")


def _is_share(share: Any) -> bool:
    return not isinstance(share, bool) and isinstance(share, (int, float)) and 0 < share <= 1


def call(function: Callable[[], object]) -> None:
    """Call a function of the program. An exception in it is shown, and goes no further."""
    try:
        function()
    except Exception as error:
        _core.show_unraisable(error, function)  # as the interpreter does for exceptions in __del__


class Pressure:
    """Calls a function when a figure passes a share of the cap: once, or again after it was below a lower share.

    The core decides when it is due (``src/bindings/pool_state.hpp``).
    """

    def __init__(self, share: float, function: Callable[[], object], of: str, rearm: float | None) -> None:
        if not _is_share(share):
            raise UsageError(f"share={share!r} is not accepted; write a share of the cap above 0 and up to 1 (0.9)")
        if not callable(function):
            raise UsageError(f"{function!r} cannot be called")
        if of not in FIGURES:
            raise UsageError(f'of={of!r} is not accepted; write "reserved" or "live"')
        if rearm is not None and not (_is_share(rearm) and rearm < share):
            raise UsageError(f"rearm={rearm!r} is not accepted; write a share of the cap above 0 and below {share}")
        self.function = function
        self.gauge = _core.PressureGauge(share, is_live=of == "live", rearm=rearm)

    def fire_if_high(self, core: _core.Arena) -> None:
        """Call the function if it is due: in only one thread, and never from within itself."""
        if self.gauge.begin(core):
            try:
                call(self.function)
            finally:
                self.gauge.end()
