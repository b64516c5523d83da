"""Reports before ``os._exit`` or ``exec`` end the program: neither runs functions registered for the exit.

Processes that the program forks are not affected: only the program itself reports.
"""

from __future__ import annotations

import contextlib
import functools
import os
import textwrap
import threading
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from .._util.next_step import quoted

__all__ = ["EndingSession", "watch_exits"]

LONGEST = 80  # of a command line that is shown
PATIENCE = 30.0  # seconds: a program may end itself this way because a call of the driver hangs


class EndingSession(Protocol):
    """What is needed of the session."""

    process: int
    exit: int
    is_over: bool
    errors: Any

    def end_early(self, how: str) -> bool:
        """Leave the report; false if that was done before."""
        ...

    def go_on(self) -> None:
        """The program did not end after all."""
        ...


def report(session: EndingSession, how: str) -> None:
    """Leave the report, in a thread of its own: if that hangs, the program ends all the same."""
    thread = threading.Thread(target=session.end_early, args=(how,), name="arena-report", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down
        with contextlib.suppress(Exception):
            session.end_early(how)
    else:
        thread.join(PATIENCE)


def watch_exits(session: EndingSession) -> None:
    """Leave a report before ``os._exit`` and ``exec`` end the program."""
    exit_at_once, execv, execve = os._exit, os.execv, os.execve

    @functools.wraps(exit_at_once)
    def leave_first(status: int) -> NoReturn:
        if os.getpid() == session.process and isinstance(status, int):
            session.exit = session.exit if session.is_over else status & 0xFF
            report(session, f"os._exit({status})")
        exit_at_once(status)

    def replaced(path: Any, arguments: Any, execute: Callable[[], NoReturn]) -> NoReturn:
        is_program = os.getpid() == session.process and (isinstance(path, int) or os.access(path, os.X_OK))
        if not is_program:
            execute()
        report(session, f"exec: {shown(path, arguments)}")
        try:
            execute()
        except BaseException:
            session.go_on()
            raise

    @functools.wraps(execv)
    def execv_after_report(path: Any, argv: Any, /) -> NoReturn:
        replaced(path, argv, lambda: execv(path, argv))

    @functools.wraps(execve)
    def execve_after_report(path: Any, argv: Any, env: Any) -> NoReturn:
        replaced(path, argv, lambda: execve(path, argv, env))

    # The other functions of the os module call these.
    os._exit, os.execv, os.execve = leave_first, execv_after_report, execve_after_report


def shown(path: Any, arguments: Any) -> str:
    try:
        words = [os.fsdecode(word) for word in arguments]
    except TypeError:  # exec will refuse it
        words = [str(path)]
    return textwrap.shorten(" ".join(map(quoted, words)), LONGEST, placeholder=" ...")
