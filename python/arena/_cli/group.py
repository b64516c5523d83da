"""The group of commands. Each is imported only when it is called, to keep ``--help`` fast."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import typer

from .._words.plain import plain

__all__ = ["PLAIN", "Commands"]

# Help without rich's boxes: importing the code that draws them would take half as long as everything else.
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}

# Typer does not export this class, and where it comes from depends on the version.
CLICK_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
HELP = "NoArgsIsHelpError"  # its message is the help

# The first line of each command's own help, for `arena --help`; newcomers need the first two.
ABOUT = {
    "run": "Run a Python program, unchanged, with arena as its GPU allocator.",
    "demo": "See arena run a program under a cap at which CuPy's pool fails.",
    "dryrun": "Run a program on a simulated GPU, and say whether its memory fits.",
    "cards": "List the GPUs that a dry run can simulate, or show one with its sources.",
    "replay": "Replay recorded runs and check whether they fit under a cap.",
    "fit": "Find the smallest cap and the largest batch of a recorded run.",
    "report": "Show a saved report or snapshot, or save it as a page.",
    "convert": "Convert a trace to text, an RMM log, or counters for Perfetto.",
    "info": "Show the driver, the devices, and the settings of a new arena.",
    "measure": "Measure the cost of driver calls and save a price table.",
}


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Errors about the command line quote it, and a file can have any name."""
    try:
        yield
    except CLICK_ERROR as error:
        if type(error).__name__ != HELP:
            error.message = plain(error.message)
        raise


class Commands(typer.core.TyperGroup):
    """Commands, each in a module of this package."""

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

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with plain_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with plain_errors():
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands come first: they are what people look for."""
        with formatter.section("Commands"):
            formatter.write_dl(list(ABOUT.items()))
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Already written."""
