"""Starting a program in a prepared process, and gathering what it found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._cards import Card
from .._trace import Trace
from ..errors import ArenaError, UsageError
from .assume import NAME as ASSUMED
from .assume import Assumptions
from .child import FACTS, HISTORY
from .ends import Stop
from .environment import Device, prepared
from .on_top import OnTop, on_top_of
from .workspaces import ESTIMATES, LIKELY, LOG, Estimate, estimates_in

__all__ = ["Outcome", "Plan", "run_dry"]

SPEC = "spec.json"
TAIL_BYTES = 1 << 16
TAIL = 12  # lines of a program's output that are shown if it fails while nobody watches


@dataclass(frozen=True)
class Plan:
    """A program, and how it is to be run."""

    device: Device
    program: str
    arguments: tuple[str, ...]
    is_module: bool = False
    allocator: str = "native"
    only: tuple[str, ...] | None = None
    """The frameworks that get the arena, by key; None: all."""
    settings: dict[str, str] = field(default_factory=dict)
    """Environment variables."""
    history: bool = False
    """Whether PyTorch's own allocator keeps a history, for the report and the recording."""
    values: str = "control"
    """Which values are computed: ``control``, ``none`` or ``all``."""
    assume: Assumptions = field(default_factory=Assumptions)
    """What unknown values are taken to be."""
    spread: bool = False
    """Whether both ends of ``nonzero`` are tried."""
    stop: Stop | None = None
    """When the program is ended, if not by itself."""
    patience: float = 60
    """Seconds after which a program that goes on and on is said to."""
    workspaces: str = LIKELY
    """Whether workspaces that are estimates are ``likely``, the ``least`` or the ``most``."""
    most_on_top: bool = False
    """Whether the device has only what is left when the CUDA context and kernels take the most."""
    report: Path | None = None
    record: Path | None = None
    force: bool = False

    @property
    def on_top(self) -> OnTop:
        return self.on_top_of(self.device.card)

    def on_top_of(self, card: Card | None) -> OnTop:
        """What comes on top if the program runs on that card."""
        return on_top_of(card, {**os.environ, **self.settings}, most=self.most_on_top)


@dataclass(frozen=True)
class Outcome:
    """What came of a dry run."""

    plan: Plan
    exit: int
    """The program's exit code; negative if a signal ended it."""
    facts: dict[str, Any] | None
    """What the process left; none if it was killed."""
    trace: Trace | None
    """PyTorch's requests, if it used its own allocator."""
    problem: str
    """Why there is no trace, if there should be one."""
    output: str
    """The end of what the program printed, if that was not shown."""
    workspaces: tuple[Estimate, ...] = ()
    """The least certain estimates of workspaces."""

    @property
    def unknown(self) -> list[dict[str, Any]]:
        """The values that were never computed and reached the program, by line."""
        found: list[dict[str, Any]] = (self.facts or {}).get("unknown", [])
        return found


def run_dry(plan: Plan, *, quiet: bool = False, limit: float | None = None) -> Outcome:
    """Run the program in a new process, with the same Python. ``quiet`` keeps what it prints from the user.

    A quiet run that takes longer than ``limit`` seconds is killed.
    """
    with prepared(plan.device, {**plan.settings, **variables_of(plan)}) as made:
        spec = made.folder / SPEC  # not an argument, which the system limits to 128 KiB
        spec.write_text(json.dumps(spec_of(plan, made.folder)))
        log = made.folder / "workspaces"
        command = [sys.executable, *interpreter_flags(), "-m", f"{__package__}.child", str(spec)]
        code, output = start(command, {**made.variables, LOG: str(log)}, quiet=quiet, limit=limit)
        facts = read_facts(made.folder / FACTS)
        if facts and "no_program" in facts:
            raise UsageError(facts["no_program"])
        trace, problem = read_history(made.folder / HISTORY, facts)
        workspaces = estimates_in(log)
    return Outcome(plan, code, facts, trace, problem, output, workspaces)


def variables_of(plan: Plan) -> dict[str, str]:
    """The environment variables that say what is computed, what is assumed of the rest, and what the device has."""
    assumed = plan.assume.text()
    tracked = {} if plan.values == "none" else {"CUDASIM_VALUES": "1"}
    ends = {} if plan.workspaces == LIKELY else {ESTIMATES: plan.workspaces}
    return {"ARENA_VALUES": plan.values, ASSUMED: assumed, **tracked, **ends, **plan.on_top.variables()}


def spec_of(plan: Plan, folder: Path) -> dict[str, Any]:
    return {
        "program": plan.program,
        "arguments": list(plan.arguments),
        "is_module": plan.is_module,
        "only": [] if plan.allocator == "native" else plan.only,
        "history": plan.history,
        "report": str(plan.report) if plan.report else None,
        "record": str(plan.record) if plan.record else None,
        "force": plan.force,
        "stop": dataclasses.asdict(plan.stop) if plan.stop else None,
        "patience": plan.patience,
        "folder": str(folder),
    }


def interpreter_flags() -> list[str]:
    """The flags that this Python was started with, such as ``-W error``, as multiprocessing passes them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def start(command: list[str], variables: dict[str, str], *, quiet: bool, limit: float | None = None) -> tuple[int, str]:
    if not quiet:
        with signals_passed_on() as pass_to:
            process = subprocess.Popen(command, env=variables)
            pass_to(process)
            return process.wait(), ""
    with signals_passed_on() as pass_to, tempfile.TemporaryFile() as printed:
        # A file: processes that outlive the program would hold a pipe open.
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
        )
        pass_to(process)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        size = printed.seek(0, os.SEEK_END)
        printed.seek(max(0, size - TAIL_BYTES))
        text = printed.read().decode(errors="replace")
    return process.returncode, "\n".join(text.splitlines()[-TAIL:])


@contextlib.contextmanager
def signals_passed_on() -> Iterator[Any]:
    """Ctrl-C reaches the program by itself, and it decides; SIGTERM is sent on. We wait for its end in both cases."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield lambda process: None
        return
    started: list[subprocess.Popen[bytes]] = []

    def terminate(number: int, frame: object) -> None:
        for process in started:
            process.terminate()

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    try:
        yield started.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_facts(path: Path) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):  # it was killed
        return None
    return facts


def read_history(path: Path, facts: dict[str, Any] | None) -> tuple[Trace | None, str]:
    torch = (facts or {}).get("torch") or {}
    if torch.get("history"):
        return None, str(torch["history"])
    if not path.exists():
        return None, ""
    try:
        return Trace.read(path), ""
    except ArenaError as error:
        return None, f"PyTorch's history could not be read: {error}"
