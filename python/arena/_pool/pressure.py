"""Functions to call when an arena fills up: which figure they watch, and when they are called again."""

from __future__ import annotations

import contextlib
import threading
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
    """Calls a function when a figure passes a share of the cap: once, or again after it was below a lower share."""

    def __init__(self, share: float, function: Callable[[], object], of: str, rearm: float | None) -> None:
        if not _is_share(share):
            raise UsageError(f"share={share!r} is not accepted; write a share of the cap above 0 and up to 1 (0.9)")
        if not callable(function):
            raise UsageError(f"{function!r} cannot be called")
        if of not in FIGURES:
            raise UsageError(f'of={of!r} is not accepted; write "reserved" or "live"')
        if rearm is not None and not (_is_share(rearm) and rearm < share):
            raise UsageError(f"rearm={rearm!r} is not accepted; write a share of the cap above 0 and below {share}")
        self.share, self.function, self.of, self.rearm = share, function, of, rearm
        self._fired = threading.Lock()  # a flag that only one thread can set
        self._is_calling = False

    def rearm_if_low(self, core: _core.Arena) -> None:
        """Notice that the figure has fallen. Called before it can rise, so that a short dip counts."""
        if self.rearm is None or self._is_calling or not self._fired.locked():
            return
        if self._figure(core) < self.rearm * core.cap():
            with contextlib.suppress(RuntimeError):  # another thread did it first
                self._fired.release()

    def fire_if_high(self, core: _core.Arena) -> None:
        """Call the function if it is due: in only one thread, and never from within itself."""
        if self._fired.locked():
            return
        figure, cap = self._figure(core), core.cap()
        if (figure > self.share * cap or figure >= cap) and self._fired.acquire(blocking=False):
            self._is_calling = True
            try:
                call(self.function)
            finally:
                self._is_calling = False

    def _figure(self, core: _core.Arena) -> int:
        return core.live() if self.of == "live" else core.reserved()
