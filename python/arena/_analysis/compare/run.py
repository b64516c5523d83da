"""Selects the replays of a comparison and runs them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..._trace import Trace
from ...errors import UsageError
from ..replay import Replayed
from .model import Comparison, Run

__all__ = ["compare"]

LETTERS = "ABCD"  # more would not fit side by side

Source = str | os.PathLike[str] | Trace
Play = Callable[[Trace, dict[str, Any]], Replayed]


def compare(*traces: Source, **settings: Any) -> Comparison:
    """Replay several traces under the same settings, or one under several: a list tries each of its values.

    >>> import arena, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with arena.Arena(device="sim:1GiB") as pool, pool.record(f"{folder}/run.arena"):
    ...         pool.allocate(5 << 20).free()
    ...     found = arena.compare(f"{folder}/run.arena", cap=["4MiB", "8MiB"])
    >>> [(run.letter, run.name, run.done.fits) for run in found.runs]
    [('A', 'cap 4MiB', False), ('B', 'cap 8MiB', True)]
    """
    return run(traces, settings, lambda trace, chosen: trace.replay(**chosen))


def run(
    traces: Sequence[Source], settings: dict[str, Any], play: Play, read: Callable[[Any], Trace] = Trace.read
) -> Comparison:
    """Compare with custom functions to read and replay traces."""
    settings = {name: _plain(value) for name, value in settings.items()}
    several = {name: list(value) for name, value in settings.items() if isinstance(value, (list, tuple))}
    single = {name: value for name, value in settings.items() if name not in several}
    variants = [dict(zip(several, values, strict=True)) for values in itertools.product(*several.values())]
    count = len(traces) * len(variants)
    if count < 2:
        raise UsageError("there is nothing to compare; give two traces, or two values of a setting")
    if count > len(LETTERS):
        raise UsageError(f"{count} runs do not fit side by side; the limit is {len(LETTERS)}")
    named = [(name, trace if isinstance(trace, Trace) else read(trace)) for name, trace in _named(traces)]
    runs = []
    for letter, ((name, trace), variant) in zip(LETTERS, itertools.product(named, variants), strict=False):
        parts = [name] if len(traces) > 1 else []
        parts += [_word(key, value) for key, value in variant.items() if len(several[key]) > 1]
        chosen = {"compact": True, **single, **variant}
        runs.append(Run(letter, ", ".join(parts), trace, chosen, play(trace, chosen)))
    return Comparison(tuple(runs))


def _named(traces: Sequence[Source]) -> list[tuple[str, Source]]:
    """Name traces by file name, or by path if two have the same name."""
    short = ["a trace" if isinstance(trace, Trace) else Path(trace).name for trace in traces]
    whole = [name if isinstance(trace, Trace) else str(trace) for name, trace in zip(short, traces, strict=True)]
    names = short if len(set(short)) == len(short) else whole
    return list(zip(names, traces, strict=True))


def _plain(value: Any) -> Any:
    """Paths as strings: settings are shown and saved."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _word(key: str, value: object) -> str:
    if key == "vmm":
        return "virtual memory" if value else "plain"
    if key == "compact":
        return "with moving live data" if value else "without moving"
    if key == "prices":
        return f"prices {Path(str(value)).name}"
    return f"{key} {value}"
