"""Handles signals while a program runs.

Python runs handlers in the main thread, and only once that returns from C. So a thread of the core listens instead
(``src/bindings/signals.cpp``) and calls us from yet another thread. A handler that the program sets replaces ours; if
the program restores the previous handler, ours is back.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable

from .. import _core

__all__ = ["ENDING", "WRITING", "listen", "stop"]

ENDING = signal.SIGTERM
WRITING = signal.SIGUSR1


def listen(numbers: Iterable[signal.Signals], listener: Callable[[int], None]) -> None:
    """Call ``listener`` for each of these signals without a handler. After ``ENDING``, that signal ends the process."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may set handlers
    free = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    _core.listen(listener, ENDING)
    for number in free:
        signal.signal(number, _forward)
        _core.handle_signal(number)
    os.register_at_fork(after_in_child=_restore_defaults)


def stop() -> None:
    """Stop listening, and restore the default handlers."""
    _restore_defaults()
    _core.stop_listening()


def _forward(number: int, frame: object) -> None:
    """Called by Python if the program has set its own handler and then restored this one."""
    _core.announce_signal(number)


def _restore_defaults() -> None:
    for number in (ENDING, WRITING):
        if signal.getsignal(number) is _forward:
            signal.signal(number, signal.SIG_DFL)
