"""The command line: ``arena COMMAND``, or ``python -m arena COMMAND``. One file for each command.

Exit codes: 0 done, 1 an error, told in one line, 2 wrong usage, 3 a trace that does not fit, 4 one that ends in the
midst of its program; ``arena run`` has the program's.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import Annotated, TextIO

import typer

from .._core import __version__
from .._util.environment import unknown_variables
from ..errors import ArenaError
from . import excepthook as excepthook
from .group import PLAIN, Commands

__all__ = ["app", "main"]

app = typer.Typer(cls=Commands, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, **PLAIN)


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"arena {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """GPU memory for Python, under a cap, with an account of every byte.

    \b
    Examples:
      arena run --cap 4GiB --report out.html train.py
      arena demo
    """
    if debug:
        os.environ["ARENA_DEBUG"] = "1"
    for text in unknown_variables():
        typer.echo(f"arena: {text}", err=True)
    if context.invoked_subcommand != "run":  # there they are the program's
        write_anything()
        warnings.showwarning = show_warning


# What Python calls by another name.
OPTIONS = {"overwrite=True": "--force", "batch_from": "--batch-from", "batch_to": "--batch-to"}


def main() -> None:
    """Run the command line; errors are told in one line."""
    if os.environ.get("COLUMNS") == "0":  # of somebody who does not know: rich would write nothing
        del os.environ["COLUMNS"]
    try:
        try:
            app(prog_name="arena")
        finally:
            flush()
    except BrokenPipeError:  # of a reader who has seen enough
        discard_output()
        sys.exit(1)
    except (ArenaError, OSError) as error:
        if os.environ.get("ARENA_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is None:  # it was standard output
            discard_output()
        if sys.stderr is not None:  # or it would go to standard output
            print(f"arena: {one_line(error)}", file=sys.stderr)
        sys.exit(1)


def one_line(error: ArenaError | OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the current folder was removed; go to another one"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'standard output'}: {error.strerror}"
    text = str(error).partition("\n")[0]
    for name, option in OPTIONS.items():
        text = text.replace(name, option)
    return text


def write_anything() -> None:
    """What a terminal has no letter for, such as a mark of a picture or a byte in a file's name, is a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Without the line of code, which is none of the user's."""
    if sys.stderr is not None:
        print(f"arena: {message}", file=sys.stderr)


def flush() -> None:
    """Not only at the very end, where nothing could be said."""
    with contextlib.suppress(ValueError, AttributeError):  # a program may have closed it, or never had it
        sys.stdout.flush()


def discard_output() -> None:
    """What could not be written is not tried again when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
