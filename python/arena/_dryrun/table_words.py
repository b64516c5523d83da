"""The table of the peak in words: by line, by module or by kind. Each shows every byte once."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .._util.sizes import format_size
from .._words.format import listed
from .table import KINDS, UNKNOWN, Row, Table

__all__ = ["VIEWS", "table_in_words"]

VIEWS = ("line", "module", "kind")
MOST_LINES = 8
MOST_MODULES = 16
SMALL = 0.01  # of what is live: smaller rows are added up
ALL = 0.995
NO_LINE, NO_MODULE = "(no line of the program)", "(outside of modules)"


def table_in_words(table: Table, by: str, *, is_least: bool = False) -> list[str]:
    """A headline, and rows. ``is_least``: more than the total may be in use on a card."""
    rows = {"line": by_line, "module": by_module, "kind": by_kind}[by](table) if table.rows else []
    text = [row_in_words(size, text) for size, text in rows]
    if table.rows:
        text.append(row_in_words(table.live, "live"))
    text += [row_in_words(one.bytes, one.what) for one in table.rest]
    text.append(row_in_words(table.total, f"in use on the device{', at least' if is_least else ''}"))
    return [headline(table, by), *text]


def headline(table: Table, by: str) -> str:
    if not table.rows:
        return f"{table.moment}:"
    kinds = shares(table.rows) if by != "kind" else ""
    return f"{table.moment}: {format_size(table.live)} live{f' ({kinds})' if kinds else ''}"


def shares(rows: tuple[Row, ...] | list[Row], most: int = 4) -> str:
    """What it is, the most first: ``84% activations, 9% optimizer state and 7% parameters``."""
    sums = Counter[str]()
    for row in rows:
        sums[row.kind] += row.bytes
    whole = sums.total()
    first, size = sums.most_common(1)[0] if sums else ("", 0)
    if size >= ALL * whole:
        return first if first != UNKNOWN else ""
    return listed(
        f"{percent(size, whole)} {kind}" for kind, size in sums.most_common(most) if size >= (1 - ALL) * whole
    )


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def row_in_words(size: int, text: str) -> str:
    return f"  {format_size(size):>10}  {text}"


def by_kind(table: Table) -> Iterator[tuple[int, str]]:
    sums = Counter[tuple[str, bool]]()
    for row in table.rows:
        sums[row.kind, row.backward and row.kind not in ("gradients", "activations")] += row.bytes
    order = {kind: number for number, kind in enumerate(KINDS)}
    for (kind, backward), size in sorted(sums.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        yield size, f"{kind} of the backward pass" if backward else kind


def by_line(table: Table) -> Iterator[tuple[int, str]]:
    groups: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in table.rows:
        groups[row.line, row.backward].append(row)
    named = [(total(rows), *key, rows) for key, rows in groups.items()]
    named.sort(key=lambda one: (-one[0], one[1:3]))
    shown = [one for one in named[:MOST_LINES] if one[0] >= SMALL * table.live or len(named) <= MOST_LINES]
    for size, line, backward, rows in shown:
        yield size, f"{line or NO_LINE}{', backward' if backward else ''}{note(rows)}"
    if rest := named[len(shown) :]:
        yield sum(one[0] for one in rest), f"{len(rest)} more line{'' if len(rest) == 1 else 's'}"


def note(rows: list[Row]) -> str:
    text = shares(rows, 2)
    return f": {text}" if text else ""


def total(rows: list[Row]) -> int:
    return sum(row.bytes for row in rows)


@dataclass
class Node:
    """A module, with the modules in it."""

    name: str
    own: list[Row] = field(default_factory=list)
    inner: dict[str, Node] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        return [*self.own, *(row for one in self.inner.values() for row in one.rows())]

    def at(self, path: str) -> Node:
        here = self
        for name in path.split(".") if path else ():
            here = here.inner.setdefault(name, Node(name))
        return here

    def merged(self, other: Node) -> Node:
        names = dict.fromkeys((*self.inner, *other.inner))
        inner = {}
        for name in names:
            both = [one.inner[name] for one in (self, other) if name in one.inner]
            inner[name] = both[0] if len(both) == 1 else both[0].merged(both[1])
        return Node(self.name, [*self.own, *other.own], inner)

    def folded(self) -> Node:
        """Modules that are numbered and alike, the layers of a model, become one."""
        inner = {name: one.folded() for name, one in self.inner.items()}
        numbered = sorted((name for name in inner if name.isdigit()), key=int)
        alike = [name for name in numbered if is_alike(inner[name], inner[numbered[-1]])]
        if len(alike) < 2:
            return Node(self.name, self.own, inner)
        name = span_of(alike)
        all_ = functools.reduce(Node.merged, (inner[one] for one in alike))
        kept = {key: one for key, one in inner.items() if key not in alike}
        return Node(self.name, self.own, {name: Node(name, all_.own, all_.inner), **kept})

    def shortened(self) -> tuple[str, Node]:
        """Without modules that hold nothing but one other."""
        path, last = self.name, self
        while len(last.inner) == 1 and not last.own:
            last = next(iter(last.inner.values()))
            path = f"{path}.{last.name}"
        return path, last


def is_alike(one: Node, other: Node) -> bool:
    """Most modules that are in one of them are in both."""
    return 2 * len(one.inner.keys() & other.inner.keys()) > len(one.inner.keys() | other.inner.keys())


def span_of(numbers: list[str]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"{first}…{last}" if int(last) - int(first) + 1 == len(numbers) else ",".join(numbers)


def by_module(table: Table) -> Iterator[tuple[int, str]]:
    top = Node("")
    for row in table.rows:
        top.at(row.module).own.append(row)
    outside, top.own = top.own, []
    top = top.folded()
    yield from below(top, 0, opened(top, SMALL * table.live), SMALL * table.live)
    if outside:
        yield total(outside), f"{NO_MODULE}{note(outside)}"


def opened(top: Node, smallest: float) -> set[int]:
    """The ids of the modules whose inside is shown: the largest first, as many as there is room for."""
    shown, rows, waiting = {id(top)}, 0, [top]
    while waiting:
        node = waiting.pop(0)
        inner = [one.shortened()[1] for one in node.inner.values()]
        large = [one for one in inner if total(one.rows()) >= smallest]
        if node is not top and rows + len(large) + 1 > MOST_MODULES:
            continue
        shown.add(id(node))
        rows += len(large) + 1
        waiting = sorted([*waiting, *(one for one in large if one.inner)], key=lambda one: -total(one.rows()))
    return shown


def below(node: Node, depth: int, shown: set[int], smallest: float) -> Iterator[tuple[int, str]]:
    """The modules in one, largest first; small ones together."""
    inner = sorted(((total(one.rows()), one) for one in node.inner.values()), key=lambda item: -item[0])
    few: list[int] = [size for size, _ in inner if size < smallest]
    indent = "  " * depth
    for size, one in inner:
        if size < smallest and len(few) > 1:
            continue
        path, last = one.shortened()
        yield size, f"{indent}{path}{note(last.rows())}"
        if id(last) not in shown:
            continue
        yield from below(last, depth + 1, shown, smallest)
        if last.inner and last.own:
            yield total(last.own), f"{indent}  (itself){note(last.own)}"
    if len(few) > 1 and any(few):
        yield sum(few), f"{indent}{len(few)} more"
