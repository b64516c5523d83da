"""The command line: ``arena COMMAND``, or ``python -m arena COMMAND``. One file for each command.

Exit codes: 0 done, 1 an error, told in one line, 2 wrong usage, 3 a trace that does not fit; ``arena run`` has the
program's.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ..errors import ArenaError
from . import _convert, _demo, _fit, _info, _replay, _report, _run

__all__ = ["app", "main"]

app = typer.Typer(
    help="GPU memory for Python, under a cap, with an account of every byte.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(_demo.demo)
app.command("info")(_info.info)
app.command("run", context_settings=_run.CONTEXT)(_run.run)
app.command("replay")(_replay.replay)
app.command("fit")(_fit.fit)
app.command("report")(_report.report)
app.command("convert")(_convert.convert)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """GPU memory for Python, under a cap, with an account of every byte.

    Example: arena replay run.arena --cap 4GiB
    """
    if debug:
        os.environ["ARENA_DEBUG"] = "1"


def main() -> None:
    """Run the command line; errors are told in one line."""
    try:
        app()
    except ArenaError as error:
        if os.environ.get("ARENA_DEBUG"):
            raise
        print(f"arena: {str(error).splitlines()[0].replace('overwrite=True', '--force')}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # of a reader who has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if os.environ.get("ARENA_DEBUG"):
            raise
        print(f"arena: {_file_of(error)}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _file_of(error: OSError) -> str:
    return "" if error.filename is None else f"{str(error.filename)[:200]}: ".replace("\n", " ")
