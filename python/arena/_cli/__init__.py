"""The command line: ``arena COMMAND``, or ``python -m arena COMMAND``. One module per command.

Exit codes: 0 success, 1 an error (printed on one line), 2 wrong usage, 3 a trace does not fit, 4 a trace ends before
its program did. ``arena run`` exits with the program's code.
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
from .._words.plain import plain
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """A caching GPU memory allocator for Python with a cap that holds and a
    report that explains every byte.

    \b
    Examples:
      arena run --cap 4GiB --report out.html train.py
      arena demo
    """
    if debug:
        os.environ["ARENA_DEBUG"] = "1"
    for text in unknown_variables():
        typer.echo(plain(f"arena: {text}"), err=True)
    if context.invoked_subcommand != "run":  # there, output and warnings are the program's
        replace_unprintable()
        warnings.showwarning = show_warning


# Names in messages for Python, and the options that they are on the command line.
OPTIONS = {"overwrite=True": "--force", "batch_from": "--batch-from", "batch_to": "--batch-to"}


def main() -> None:
    """Run the command line. Errors are printed on one line."""
    if os.environ.get("COLUMNS") == "0":  # means unknown, but rich would print nothing
        del os.environ["COLUMNS"]
    try:
        try:
            app(prog_name="arena")
        finally:
            flush()
    except BrokenPipeError:  # the reader has closed the pipe, like head
        discard_output()
        sys.exit(1)
    except (ArenaError, OSError) as error:
        if os.environ.get("ARENA_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is None:  # an error of standard output
            discard_output()
        if sys.stderr is not None:  # otherwise print() would write to standard output
            print(plain(f"arena: {one_line(error)}"), file=sys.stderr)
        sys.exit(1)


def one_line(error: ArenaError | OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the current folder was removed; change to another one"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'standard output'}: {error.strerror}"
    text = str(error).partition("\n")[0]
    for name, option in OPTIONS.items():
        text = text.replace(name, option)
    return text


def replace_unprintable() -> None:
    """Print characters that the terminal cannot show, such as those of a chart, as question marks."""
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
    """Print a warning without the line of code, which is arena's own."""
    if sys.stderr is not None:
        print(plain(f"arena: {message}"), file=sys.stderr)


def flush() -> None:
    """Flush standard output while an error can still be reported."""
    with contextlib.suppress(ValueError, AttributeError):  # it may be closed or missing
        sys.stdout.flush()


def discard_output() -> None:
    """Discard what could not be written, so that the interpreter does not try again at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
