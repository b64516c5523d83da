"""The commands by name. Each is imported when it is called: all of them together take longer than ``--help`` may."""

from __future__ import annotations

import importlib
from typing import Any

import typer

__all__ = ["PLAIN", "Commands"]

# Without rich's boxes around the help: to import what draws them takes half as long again as everything else.
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}

# What `arena --help` says of each: the first line of the command's own help. First what a newcomer wants.
ABOUT = {
    "run": "Run a Python program with arena as CuPy's allocator, unchanged.",
    "demo": "See it in action: a real program under a cap at which CuPy's pool fails.",
    "dryrun": "Run a program on a simulated GPU, and say whether its memory fits.",
    "cards": "List the GPUs that a dry run can simulate, or show one with its sources.",
    "replay": "Replay a recorded run's allocations, and say whether they fit under a cap.",
    "fit": "Find the smallest cap a recorded run works under, and the largest batch.",
    "report": "Show a saved report or snapshot, or turn it into a page.",
    "convert": "Convert a trace to another format: text, RMM's log, or Perfetto.",
    "info": "Show the driver, the devices, and the settings that an arena would use.",
    "measure": "Measure what driver calls cost on this machine, and save a price table.",
}


class Commands(typer.core.TyperGroup):
    """A file of this folder for each."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ABOUT)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in ABOUT:
            return None
        module = importlib.import_module(f".{cmd_name}", __package__)
        alone = typer.Typer(add_completion=False, **PLAIN)
        settings = getattr(module, "CONTEXT", None)
        alone.command(cmd_name, cls=getattr(module, "Command", None), context_settings=settings)(
            getattr(module, cmd_name)
        )
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(ABOUT.items()))
