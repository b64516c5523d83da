"""A progress bar on stderr, or a line where that is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress"]


@contextlib.contextmanager
def progress(what: str, steps: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call at the beginning of each step, with its name. Threads may share it."""
    if not sys.stderr.isatty():
        print(f"{what}: about a minute", file=sys.stderr)
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # late: most dry runs need no rich

    from ..._util.console import Console  # late: it needs rich

    columns = (TextColumn(what), BarColumn(12), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)

        def begin(step: str) -> None:
            bar.update(task, description=step)
            bar.advance(task)

        yield begin
