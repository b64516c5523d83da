"""Signals while a program runs.

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


def listen(numbers: Iterable[signal.Signals], tell: Callable[[int], None]) -> None:
    """Call ``tell`` for each of these signals that has no handler. After ``ENDING`` the process ends by that signal."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may set handlers
    free = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    _core.listen(tell, ENDING)
    for number in free:
        signal.signal(number, _hear)
        _core.handle_signal(number)
    os.register_at_fork(after_in_child=_forget)


def stop() -> None:
    """Listen no more: signals do what they do by default."""
    _forget()
    _core.stop_listening()


def _hear(number: int, frame: object) -> None:
    """What Python calls, where a program has set a handler of its own and put this one back."""
    _core.announce_signal(number)


def _forget() -> None:
    for number in (ENDING, WRITING):
        if signal.getsignal(number) is _hear:
            signal.signal(number, signal.SIG_DFL)
