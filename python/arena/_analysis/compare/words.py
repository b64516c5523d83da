"""Describes the result of a comparison in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..._util.sizes import format_size
from ..._words.moving import assumed, sentence
from .model import Comparison, Run

__all__ = ["caption"]


def caption(found: Comparison) -> str:
    sentences = [*_fits(found), *_unfinished(found)]
    sentences += [f"{run.letter} stopped: {run.stopped}." for run in found.runs if not run.is_whole]
    whole = [run for run in found.runs if run.is_whole]
    if len(whole) > 1:
        words = "reserves the least at its peak", "reserve the same at their peaks"
        sentences.append(_least(whole, *words, _reserved, _size))
        if all(run.done.priced_ms is not None for run in whole):
            words = "takes the least driver time", "take the same driver time"
            sentences.append(_least(whole, *words, _priced, lambda value: f"{value:.1f} ms"))
    sentences += _price_tables(found)
    if len({run.done.compact for run in found.runs}) == 1:  # otherwise the names of the runs say it
        sentences.append(sentence(assumed(found.runs[0].done.compact)))
    return " ".join(sentences)


def _unfinished(found: Comparison) -> Iterator[str]:
    """For each trace whose recorded run ended with a failed request: what is unknown."""
    for trace in dict.fromkeys(run.trace for run in found.runs):
        runs = [run for run in found.runs if run.trace is trace and run.done.fits is None]
        if runs and (ended_by := trace.ended_by):
            verb = "fits as far as it was" if len(runs) == 1 else "fit as far as they were"
            yield f"{_letters(runs)} {verb} recorded. {ended_by.sentences(len(trace))}"


def _price_tables(found: Comparison) -> list[str]:
    labels = {run.letter: run.done.prices for run in found.runs if run.done.prices is not None}
    if len(set(labels.values())) == 1:
        return [f"Driver time uses the price table {next(iter(labels.values()))}."]
    tables = ", ".join(f"{letter} {label}" for letter, label in labels.items())
    return [f"Driver time uses different price tables: {tables}."] if labels else []


def _fits(found: Comparison) -> Iterator[str]:
    fit = [run for run in found.runs if run.done.fits]
    verb = "fits" if len(fit) == 1 else "fit"
    if any(run.done.fits is None for run in found.runs):
        if fit:
            yield f"{_letters(fit)} {verb}."
    elif len(fit) == len(found.runs):
        yield "Both fit." if len(fit) == 2 else f"All {len(fit)} fit."
    elif not fit:
        yield "Neither fits." if len(found.runs) == 2 else "None fits."
    else:
        yield f"Only {_letters(fit)} {verb}."


def _letters(runs: list[Run]) -> str:
    *most, last = (run.letter for run in runs)
    return f"{', '.join(most)} and {last}" if most else last


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
