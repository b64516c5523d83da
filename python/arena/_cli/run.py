"""``arena run``: runs any Python program, unchanged, with arena as the allocator of its frameworks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .._frameworks import parse_keys
from .._inspect.lines import trace_lines
from .._pool.settings import DEVICES, is_simulated, simulated_size
from .._run import Session, run_program
from .._run.program import NoProgramError, check_script
from .._util.arguments import is_number
from ..errors import UsageError
from .excepthook import EXCEPT_HOOK
from .options import CAP, DEVICE, FORCE, GROWTH, HEADROOM, ONLY, SAVE
from .program import CONTEXT, Command, checked_depth, variables_of

__all__ = ["CONTEXT", "Command", "run"]


def run(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="A script, folder or archive; with -m, a module.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the program.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is the name of a module.")] = False,
    cap: Annotated[str | None, typer.Option(metavar="SIZE", help=CAP)] = None,
    reserve: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory to reserve at the start, and keep.")
    ] = None,
    headroom: Annotated[str | None, typer.Option(metavar="SIZE", help=HEADROOM)] = None,
    growth: Annotated[str | None, typer.Option(metavar="SIZE", help=GROWTH)] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help=DEVICE)] = None,
    lines: Annotated[
        int | None,
        typer.Option("--lines", metavar="[=N]", help="Trace source lines, N levels deep; 0 turns it off."),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help=SAVE)] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record the run, for arena replay and arena fit.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="NAMES", help=ONLY)] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, as the last line of standard error.")
    ] = False,
) -> None:
    """Run a Python program, unchanged, with arena as its GPU allocator.

    CuPy, PyTorch, Numba and cuda.core get it when the program imports them. Options of arena come
    before the program. The exit code is the program's.

    \b
    Examples:
      arena run --cap 4GiB --report out.html train.py --epochs 3
      arena run --lines --record run.arena train.py
    """
    if not module:
        check_script(program, arguments or [])
    keys = None if only is None else parse_keys(only)
    session = Session(report=report, record=record, force=force, as_json=as_json, only=keys)
    # In the environment, so that child processes inherit them.
    os.environ.update(variables_of({"cap": cap, "reserve": reserve, "headroom": headroom, "growth": growth}))
    if device is not None:
        choose_device(device)
    choose_lines(lines, has_report=report is not None)
    session.begin()
    sys.excepthook = EXCEPT_HOOK
    try:
        session.exit = run_program(program, arguments or [], is_module=module, on_error=session.note)
    except NoProgramError:
        session.cancel()
        raise
    raise typer.Exit(session.exit)


def choose_lines(depth: int | None, *, has_report: bool) -> None:
    """Trace lines if there is a report, unless the user decides otherwise: a report without lines says little."""
    if depth is None and (not has_report or os.environ.get("ARENA_LINES", "").strip()):
        return
    chosen = checked_depth(1 if depth is None else depth)
    os.environ["ARENA_LINES"] = str(chosen)  # for processes that the program starts
    if chosen:
        trace_lines(True, depth=chosen)
    else:
        trace_lines(False)


def choose_device(device: str) -> None:
    """Make it the only visible device, number 0. The driver is opened later, by the program."""
    chosen = os.environ.get("ARENA_DRIVER") or "auto"
    if is_simulated(device):
        os.environ["ARENA_DRIVER"] = "sim"
        if (size := simulated_size(device)) is not None:
            os.environ.update(CUDASIM_DEVICES="1", CUDASIM_MEMORY=str(size))
    elif not is_number(device):
        raise UsageError(f"device={device!r} is not accepted; write {DEVICES}")
    elif chosen == "sim":
        raise UsageError(
            f'device={device}: ARENA_DRIVER=sim; write "sim", or the size of a simulated device, "sim:8GiB"'
        )
    else:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        if visible and int(device) >= len(visible):
            raise UsageError(f"device={device}: CUDA_VISIBLE_DEVICES={','.join(visible)} leaves {len(visible)}")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(device)] if visible else device
        if chosen == "auto":
            os.environ["ARENA_DRIVER"] = "cuda"  # a number means a real device, never a simulated one instead
