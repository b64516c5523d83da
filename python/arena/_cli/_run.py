"""``arena run``: any Python program, with the arena in it and no change to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .._lines import trace_lines
from .._numbers import is_number
from .._run import Session, run_program
from .._run._main import NoProgramError, check_script
from .._sizes import parse_size
from ..errors import UsageError

__all__ = ["CONTEXT", "run"]

CONTEXT = {"allow_interspersed_args": False}  # options after the program are the program's
EXCEPT_HOOK = sys.excepthook  # typer puts another in its place, which the program should not find


def run(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, a folder or an archive; with -m a module.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="What it is given.")] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is the name of a module.")] = False,
    cap: Annotated[str | None, typer.Option(help='The cap: "4GiB", "80%".')] = None,
    reserve: Annotated[str | None, typer.Option(help="What is taken at once, and kept.")] = None,
    headroom: Annotated[str | None, typer.Option(help="What is left free on the device.")] = None,
    growth: Annotated[str | None, typer.Option(help="The largest piece taken at a time.")] = None,
    device: Annotated[str | None, typer.Option(help='The number of a real device, or "sim:8GiB".')] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Remember which lines allocate.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report there: .html, .json or .txt.")] = None,
    record: Annotated[Path | None, typer.Option(help="Record the run there, for arena replay.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The last line of standard error is for machines.")] = False,
) -> None:
    """Run a Python program with the arena as CuPy's allocator. The exit code is the program's.

    Example: arena run --cap 4GiB --report out.html train.py --epochs 3
    """
    if not module:
        check_script(program)
    session = Session(report=report, record=record, force=force, as_json=as_json)
    apply({"cap": cap, "reserve": reserve, "headroom": headroom, "growth": growth})
    if device is not None:
        choose_device(device)
    if lines:
        os.environ["ARENA_LINES"] = "1"
        trace_lines(True)
    session.begin()
    sys.excepthook = EXCEPT_HOOK
    try:
        session.exit = run_program(program, arguments or [], is_module=module)
    except NoProgramError:
        session.cancel()
        raise
    raise typer.Exit(session.exit)


def apply(settings: dict[str, str | None]) -> None:
    """Through the environment, so that processes which the program starts have them too."""
    for name, value in settings.items():
        if value is not None:
            parse_size(value, 1 << 40, name)
            os.environ[f"ARENA_{name.upper()}"] = value


def choose_device(device: str) -> None:
    """Make it the only one there is, number 0 for everybody: the driver is opened later, by the program."""
    chosen = os.environ.get("ARENA_DRIVER") or "auto"
    if device.startswith("sim:"):
        if not parse_size(device.removeprefix("sim:"), 0, "device"):
            raise UsageError(f'device={device!r} has no memory; write the size of a simulated device, "sim:8GiB"')
        os.environ.update(ARENA_DRIVER="sim", CUDASIM_DEVICES="1", CUDASIM_MEMORY=device.removeprefix("sim:"))
    elif not is_number(device):
        raise UsageError(f'device={device!r} is not accepted; write a number from 0 up, or "sim:8GiB"')
    elif chosen == "sim":
        raise UsageError(f'device={device}: ARENA_DRIVER=sim; write the size of a simulated device, "sim:8GiB"')
    else:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        if visible and int(device) >= len(visible):
            raise UsageError(f"device={device}: CUDA_VISIBLE_DEVICES={','.join(visible)} leaves {len(visible)}")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(device)] if visible else device
        if chosen == "auto":
            os.environ["ARENA_DRIVER"] = "cuda"  # a number is a real device's; never another one instead
