"""Builds the report of a cluster from the answers of its workers: sums, shared arenas, lines, and one timeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from .._core import __version__
from .._inspect.holders import Holder, line_text
from .._inspect.snapshot import Line
from .._report import timeline as _timeline
from .._report.build import ACCOUNT, COUNTS
from .._report.model import FIGURES, Samples
from .._util.clock import now
from .._util.sizes import format_size
from .._words.format import counted, format_share
from .model import ClusterLine, ClusterReport, Departed, Missing, WorkerArena

__all__ = ["build"]

NEAR = 0.9  # of the cap


def build(
    scheduler: str, answers: dict[str, dict[str, Any]], missing: Sequence[Missing], departed: Sequence[dict[str, Any]]
) -> ClusterReport:
    """Build the report. ``answers`` are those of the workers, by address."""
    found = _distinct(answers)
    begin = min((one["timeline"]["at"][0] for one in found if _is_timed(one)), default=0.0)
    names = _line_names(found)
    arenas = [_arena_of(one, answers, begin, names) for one in found]
    arenas.sort(key=lambda one: (-one.pressure, -one.peak["peak_live"] / max(one.account["cap"], 1), one.name))
    fields: dict[str, Any] = {
        "made": now(),
        "arena": __version__,
        "scheduler": scheduler,
        "arenas": arenas,
        "without": _without(answers, arenas),
        "missing": list(missing),
        "departed": [_departed(one) for one in reversed(departed)],
        "account": {name: sum(one.account[name] for one in arenas) for name in ACCOUNT},
        "counts": {name: sum(one.counts[name] for one in arenas) for name in COUNTS},
        "lines": _lines(found, "lines", names),
        "peak_lines": _lines(found, "peak_lines", names),
        "frameworks": _sums((name, size, blocks) for one in found for name, size, blocks in one["frameworks"]),
        "timeline": _sum_over_time([one.timeline for one in arenas if one.timeline is not None]),
        "begin": begin,
    }
    draft = ClusterReport(**fields, caption="", notes=[])
    return ClusterReport(**fields, caption=caption(draft), notes=notes(draft))


def _is_timed(one: dict[str, Any]) -> bool:
    return one["timeline"] is not None and bool(one["timeline"]["at"])


def _distinct(answers: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The arenas, each once: every worker of a process answers with all arenas of the process."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for address, answer in answers.items():
        for one in answer["arenas"]:
            known = found.setdefault(
                (answer["process"], one["number"]),
                {**one, "process": answer["process"], "host": answer["host"], "asked": []},
            )
            known["asked"].append(address)
    return list(found.values())


def _arena_of(
    one: dict[str, Any], answers: dict[str, dict[str, Any]], begin: float, names: dict[tuple[Line, ...], str]
) -> WorkerArena:
    addresses = [address for address in one["workers"] if address in answers] or one["asked"]
    lines = [Holder(names[_key(lines)], size, blocks) for lines, size, blocks in one["lines"]]
    return WorkerArena(
        name=", ".join(sorted((answers[address]["name"] for address in addresses), key=_natural)),
        addresses=addresses,
        host=one["host"],
        process=one["process"],
        device=one["device"],
        sharing=one["sharing"],
        is_plugins=bool(one["workers"]),
        account=one["account"],
        peak=one["peak"],
        largest=one["largest"],
        counts=one["counts"],
        lines=sorted(lines, key=lambda line: (-line.bytes, line.name)),
        timeline=_timeline_of(one, begin),
    )


def _natural(name: str) -> tuple[int, int | str]:
    """Sorts 10 after 9. Dask's local clusters number their workers."""
    return (0, int(name)) if name.isascii() and name.isdigit() else (1, name)


def _without(answers: dict[str, dict[str, Any]], arenas: list[WorkerArena]) -> list[str]:
    served = {address for one in arenas for address in one.addresses}
    return sorted((answers[address]["name"] for address in answers if address not in served), key=_natural)


def _departed(one: dict[str, Any]) -> Departed:
    figures = {name: value for name, value in one["figures"].items() if isinstance(value, int)}
    return Departed(one["name"], one["address"], one["host"], one["ago"], figures)


# --- lines


def _key(lines: Iterable[Sequence[Any]]) -> tuple[Line, ...]:
    return tuple(Line(*line) for line in lines)


def _line_names(found: list[dict[str, Any]]) -> dict[tuple[Line, ...], str]:
    """A name for each line. Files with the same name are shown with their full path."""
    keys = {_key(lines) for one in found for kind in ("lines", "peak_lines") for lines, _, _ in one[kind]}
    texts = {key: line_text(key) for key in keys}
    counts = Counter(texts.values())
    return {key: text if counts[text] == 1 else line_text(key, whole=True) for key, text in texts.items()}


def _lines(found: list[dict[str, Any]], kind: str, names: dict[tuple[Line, ...], str]) -> list[ClusterLine]:
    return _sums((names[_key(lines)], size, blocks) for one in found for lines, size, blocks in one[kind])


def _sums(held: Iterable[tuple[str, int, int]]) -> list[ClusterLine]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, size, blocks in held:
        entry = sums[name]
        entry[0] += size
        entry[1] += blocks
        entry[2] += 1
    return sorted((ClusterLine(name, *entry) for name, entry in sums.items()), key=lambda one: (-one.bytes, one.name))


# --- over time


def _timeline_of(one: dict[str, Any], begin: float) -> Samples | None:
    if not _is_timed(one):
        return None
    at = [max(0.0, moment - begin) for moment in one["timeline"]["at"]]
    figures: dict[str, list[int]] = one["timeline"]["figures"]
    live = figures["live"]
    return Samples("s", at, figures, peak=live.index(max(live)))


def _sum_over_time(all_samples: list[Samples]) -> Samples | None:
    """The sum of step functions: each sample holds until the next one of the same arena."""
    steps = sorted(
        (at, number, index) for number, samples in enumerate(all_samples) for index, at in enumerate(samples.at)
    )
    current: list[dict[str, int]] = [dict.fromkeys(FIGURES, 0) for _ in all_samples]
    total = dict.fromkeys(FIGURES, 0)
    points: list[_timeline.Point] = []
    for at, number, index in steps:
        for name in FIGURES:
            value = all_samples[number].figures[name][index]
            total[name] += value - current[number][name]
            current[number][name] = value
        if points and points[-1][0] == at:  # at the same moment: what counts is the sum after all of them
            points.pop()
        points.append((at, SimpleNamespace(**total)))
    if not any(account.reserved for _, account in points):
        return None
    return _timeline.make(_timeline.thin(points), "s")


# --- in words


def caption(report: ClusterReport) -> str:
    """The report in a few sentences."""
    if not report.arenas:
        return "No worker has an arena."
    account, size = report.account, format_size
    cards = len({one.device["card"] for one in report.arenas})
    arenas, where = counted(len(report.arenas), "arena"), counted(cards, "card")
    first, most = report.arenas[0], report.lines[:1]
    sentences = [
        f"{arenas} on {where}: {size(account['live'])} live, {size(account['reserved'])} of {size(account['cap'])} "
        "reserved."
    ]
    if account["live"]:
        sentences.append(
            f"Nearest to its cap is worker {first.name}: {format_share(first.account['live'], first.account['cap'])} "
            f"live ({first.pressure:.0%})."
        )
    if most:
        sentences.append(
            f"The line that holds the most is {most[0].name}: {size(most[0].bytes)} in "
            f"{counted(most[0].blocks, 'block')}, in {counted(most[0].arenas, 'arena')}."
        )
    if report.missing:
        sentences.append(f"{counted(len(report.missing), 'worker')} did not answer: the sums are without them.")
    return " ".join(sentences)


def notes(report: ClusterReport) -> list[str]:
    """What to do, if anything."""
    account, size = report.account, format_size
    found = []
    if not report.arenas:
        found.append('register the plugin: client.register_plugin(arena.dask.ArenaPlugin(cap="4GiB")).')
    elif report.without:
        names = ", ".join(report.without[:5]) + (", ..." if len(report.without) > 5 else "")
        found.append(f"{counted(len(report.without), 'worker')} without an arena ({names}): register the plugin again.")
    near = [one for one in report.arenas if one.pressure >= NEAR]
    if near:
        names = ", ".join(one.name for one in near[:5]) + (", ..." if len(near) > 5 else "")
        found.append(
            f"{counted(len(near), 'arena')} at {NEAR:.0%} of the cap or more (worker {names}): smaller partitions, "
            "fewer threads per worker or a larger cap leave room."
        )
    back = account["releasable"] + account["spare"]
    if back * 4 > account["reserved"] > 0:
        found.append(f"{size(back)} is unused: arena.dask.trim(client) returns it to the cards.")
    if report.counts["allocations"] and not report.lines and not report.peak_lines:
        found.append("ArenaPlugin(..., lines=True) records which lines hold memory.")
    return found
