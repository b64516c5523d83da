"""The table of docs/accuracy.md, between its markers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from data import HERE, Measured, Measurement

PAGE = HERE.parent.parent / "docs" / "accuracy.md"
BEGIN, END = "<!-- accuracy: begin -->\n", "<!-- accuracy: end -->\n"
Row = tuple[Measurement, int]
CLOSE = 0.01  # a difference above this is a miss
HEAD = ["program", "measured on", "published", "dry", "difference", "simulated", "source"]


def replace_between(page: Path, begin: str, end: str, text: str) -> None:
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{text}{end}{after}")


def write_page(published: list[Measurement], measured: dict[str, Measured]) -> None:
    replace_between(PAGE, BEGIN, END, text_of(published, measured))


def text_of(published: list[Measurement], measured: dict[str, Measured]) -> str:
    rows = [(measurement, measured[measurement.name].size) for measurement in published if measurement.name in measured]
    misses = [row for row in rows if is_miss(row)]
    misses.sort(key=lambda row: -abs(row[0].difference(row[1])))
    hits = [row for row in rows if not is_miss(row)]
    misses_in_words = table(misses) + notes(misses) if misses else "None.\n"
    return f"{summary(rows)}\n## Misses\n\n{misses_in_words}\n## Within 1%\n\n{table(hits)}{notes(hits)}\n"


def is_miss(row: Row) -> bool:
    return not is_close(row)


def is_close(row: Row) -> bool:
    """Within 1%, or the same in all digits, if only one or two were published."""
    return abs(row[0].difference(row[1])) <= CLOSE or row[0].agrees(row[1])


def shown_as_published(measurement: Measurement) -> str:
    figure, unit = measurement.published.split()
    return f"{int(figure):,} {unit}" if figure.isdigit() else measurement.published


def summary(rows: list[Row]) -> str:
    same = [row for row in rows if not row[0].other_version]
    lines = ["| | all | with the version that was published |", "|---|--:|--:|"]
    for title, figure in FIGURES.items():
        lines.append(f"| {title} | {figure(rows)} | {figure(same)} |")
    return "\n".join(lines) + "\n"


def median(rows: list[Row]) -> str:
    return f"{100 * statistics.median(abs(measurement.difference(size)) for measurement, size in rows):.3f}%"


def share(rows: list[Row]) -> str:
    close = sum(is_close(row) for row in rows)
    return f"{close} of {len(rows)}, {100 * close / len(rows):.0f}%"


FIGURES: dict[str, Callable[[list[Row]], object]] = {
    "measurements": len,
    "sources": lambda rows: len({measurement.source.name for measurement, _ in rows}),
    "median difference": median,
    "within 1%": share,
    "the same in every published digit": lambda rows: sum(measurement.agrees(size) for measurement, size in rows),
}


def table(rows: list[Row]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|--:|--:|--:|---|---|"]
    for measurement, size in rows:
        cells = [
            measurement.what,
            f"{measurement.card}, {measurement.versions}",
            shown_as_published(measurement),
            measurement.shown(size),
            "the same" if measurement.agrees(size) else f"{100 * measurement.difference(size):+.2f}%",
            f"{measurement.simulated.split()[0]}, {measurement.environment}",
            f"[{measurement.source.name}]({measurement.url or measurement.source.url})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def notes(rows: list[Row]) -> str:
    """Each note once, with the programs that it is about."""
    about: dict[str, list[str]] = {}
    for measurement, _ in rows:
        if measurement.note:
            about.setdefault(measurement.note, []).append(measurement.what)
    lines = [f"\n- **{'**; **'.join(programs)}**: {note}" for note, programs in about.items()]
    return "".join(lines) + ("\n" if lines else "")
