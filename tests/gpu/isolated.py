"""Runs a function in its own process with a time limit, so that a crash or a hang is a result.

The process is a fork of this one, which takes milliseconds where a new interpreter with pytest takes half a second.
That is sound because this process never opens a driver; `run` checks it. The child exits as Python programs do, so a
crash during interpreter shutdown is seen, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LAST_LINES = 100
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>: a signal for the child when its parent dies
PATIENCE = 10  # seconds for a killed process to go away; one that is stuck in the kernel does not


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it sent and printed."""

    sent: list[dict[str, Any]]
    output: str
    seconds: float
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    was_killed: bool = True

    @property
    def how(self) -> str:
        """What went wrong, in a few words; empty if nothing did."""
        if self.timed_out:
            return f"killed after {self.seconds:.0f} s" + ("" if self.was_killed else ", but it is still there")
        return self.signal or (f"exit code {self.exit_code}" if self.exit_code else "")


Send = Callable[[dict[str, Any]], None]


def run(function: Callable[[Send], object], limit: float) -> Ended | None:
    """Call a function in a fork of this process. What it sends arrives even if it crashes afterwards.

    Returns None in the child, once the function has returned. The caller then exits it in an orderly way.
    """
    with open("/proc/self/maps") as maps:
        if "libcuda" in maps.read():
            raise RuntimeError("a CUDA driver is open in this process, so it cannot be forked")
    sent, output = os.memfd_create("sent"), os.memfd_create("output")
    sys.stdout.flush()
    sys.stderr.flush()
    start = time.monotonic()
    child = os.fork()
    if not child:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _redirect(output)
        faulthandler.enable(file=2)

        def send(message: dict[str, Any]) -> None:
            os.write(sent, json.dumps(message).encode() + b"\n")

        function(send)
        return None
    status, seconds, timed_out = None, 0.0, False
    try:
        status = _wait(child, start + limit)
        seconds, timed_out = time.monotonic() - start, status is None
        if timed_out:
            os.kill(child, signal.SIGABRT)  # faulthandler prints where it hangs
            status = _wait(child, time.monotonic() + 1)
    finally:  # on Ctrl-C too, which does not reach a process in its own session
        if status is None:
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # including everything it has started
    if status is None:
        status = _wait(child, time.monotonic() + PATIENCE)
    code = os.waitstatus_to_exitcode(status) if status is not None else None
    return Ended(
        sent=[json.loads(line) for line in _read(sent).splitlines()],
        output="\n".join(_read(output).splitlines()[-LAST_LINES:]),
        seconds=seconds,
        exit_code=code if code is not None and code >= 0 else None,
        signal=_name(-code) if code is not None and code < 0 else None,
        timed_out=timed_out,
        was_killed=status is not None,
    )


def _redirect(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _wait(child: int, until: float) -> int | None:
    pause = 0.001
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > until:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _read(file: int) -> str:
    with open(file, "rb") as whole:
        whole.seek(0)
        return whole.read().decode(errors="replace")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
