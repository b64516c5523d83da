"""What came out of a comparison, in words."""

from __future__ import annotations

from collections.abc import Callable

from .._sizes import format_size
from ._model import Comparison, Run

__all__ = ["caption"]


def caption(found: Comparison) -> str:
    fit = [run for run in found.runs if run.done.fits]
    sentences = [_fits(found, fit)]
    sentences += [f"{run.letter} stopped: {run.stopped}." for run in found.runs if not run.done.fits]
    if len(fit) > 1:
        words = "reserves the least at its peak", "reserve the same at their peaks"
        sentences.append(_least(fit, *words, _reserved, _size))
        if all(run.done.priced_ms is not None for run in fit):
            words = "takes the least driver time", "take the same driver time"
            sentences.append(_least(fit, *words, _priced, lambda value: f"{value:.1f} ms"))
    sentences += _price_tables(found)
    return " ".join(sentences)


def _price_tables(found: Comparison) -> list[str]:
    labels = {run.letter: run.done.prices for run in found.runs if run.done.prices is not None}
    if len(set(labels.values())) == 1:
        return [f"Driver time is by the price table {next(iter(labels.values()))}."]
    tables = ", ".join(f"{letter} {label}" for letter, label in labels.items())
    return [f"Driver time is by different price tables: {tables}."] if labels else []


def _fits(found: Comparison, fit: list[Run]) -> str:
    if len(fit) == len(found.runs):
        return "Both fit." if len(fit) == 2 else f"All {len(fit)} fit."
    if not fit:
        return "Neither fits." if len(found.runs) == 2 else "None fits."
    letters = [run.letter for run in fit]
    if len(letters) == 1:
        return f"Only {letters[0]} fits."
    return f"Only {', '.join(letters[:-1])} and {letters[-1]} fit."


def _least(runs: list[Run], words: str, same: str, of: Callable[[Run], float], show: Callable[[float], str]) -> str:
    least, most = min(runs, key=of), max(runs, key=of)
    if of(least) == of(most):
        return f"{'Both' if len(runs) == 2 else 'All'} {same}: {show(of(least))}."
    share = f", {1 - of(least) / of(most):.0%} less than {most.letter}".replace("%", " %")
    return f"{least.letter} {words}: {show(of(least))}{share} ({show(of(most))})."


def _reserved(run: Run) -> float:
    return run.done.peak_reserved


def _priced(run: Run) -> float:
    return run.done.priced_ms or 0.0


def _size(value: float) -> str:
    return format_size(round(value))
