"""The account in Prometheus's text exposition format, version 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .._words.account import REASONS
from ..errors import UsageError

__all__ = ["FAMILIES", "SCOPE_FAMILIES", "Family", "Scopes", "check_labels", "render"]


class Family(NamedTuple):
    """A name, and what is shown under it."""

    name: str
    kind: str
    help: str
    samples: dict[str, dict[str, str]]
    """The figures of the account, each with the labels that tell it from the others."""


def _bytes(figure: str, help: str, name: str = "") -> Family:
    return Family(f"arena_{name or figure}_bytes", "gauge", help, {figure: {}})


def _count(figure: str, help: str) -> Family:
    return Family(f"arena_{figure}_total", "counter", help, {figure: {}})


FAMILIES = (
    Family(
        "arena_reserved_bytes",
        "gauge",
        "Memory taken from the driver, by what it is held for; the sum is all of it.",
        {reason: {"reason": reason} for reason in REASONS},
    ),
    _bytes("cap", "The most that may be reserved."),
    _bytes("headroom", "What is left free on the device."),
    _bytes("captured", "Freed memory that is kept for captured CUDA graphs."),
    _bytes("compactable", "Of what is stranded: whole granules, which moving live data would set free."),
    _bytes("largest", "The largest request that would pass now: one of the following two.", "largest_request"),
    _bytes(
        "largest_without_moving",
        "The largest request that would pass without moving live data.",
        "largest_request_without_moving",
    ),
    _bytes(
        "largest_with_moving",
        "The largest request that would pass with moving live data.",
        "largest_request_with_moving",
    ),
    _bytes("peak_requested", "The highest so far of what the program asked for."),
    _bytes("peak_live", "The highest so far of what is in allocations, after rounding."),
    _bytes("peak_reserved", "The highest so far of what is reserved."),
    _bytes("device_total", "Memory the device has."),
    _bytes("device_free", "Memory of the device that the driver says is free."),
    Family("arena_blocks", "gauge", "Allocations that live.", {"blocks": {}}),
    _count("allocations", "Allocations made."),
    _count("hits", "Allocations that needed nothing of the driver."),
    _count("splits", "Allocations that took a part of a gap."),
    _count("failures", "Requests that could not be met."),
    _count("maps", "Handles mapped."),
    _count("unmaps", "Handles unmapped."),
    _count("rebacked", "Handles replaced under live data."),
    _count("driver_calls", "Calls of the driver."),
    _count("waits", "Waits of one stream for another."),
)

# Of the scopes of an arena, by path. What is in a scope is in those around it, so their sum means nothing.
SCOPE_FAMILIES = (
    Family("arena_scope_live_bytes", "gauge", "Memory allocated in scopes of that path that is not freed yet.", {}),
    Family("arena_scope_blocks", "gauge", "Allocations made in scopes of that path that live.", {}),
    Family("arena_scope_peak_bytes", "gauge", "The highest so far of what was live in scopes of that path.", {}),
    Family("arena_scope_entered_total", "counter", "Times that a scope of that path was entered.", {}),
    Family("arena_scope_budget_bytes", "gauge", "The budget of the last scope of that path, if it had one.", {}),
)

Scopes = Mapping[str, tuple[int | None, ...]]
"""By path: a figure for each of SCOPE_FAMILIES."""

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")
_OURS = {"device", "scope", *(name for family in FAMILIES for labels in family.samples.values() for name in labels)}


def check_labels(labels: Mapping[str, object]) -> dict[str, str]:
    """The labels that somebody wants on every line, as texts."""
    for name, value in labels.items():
        if not _LABEL.match(name):
            raise UsageError(f"{name!r} cannot be a label; write letters, digits and _, not __ at the beginning")
        if name in _OURS:
            raise UsageError(f"the label {name!r} is arena's own; give another name")
        if not isinstance(value, (str, int)):
            raise UsageError(f"{name}={value!r} cannot be the value of a label; give a text or a whole number")
    return {name: str(value) for name, value in labels.items()}


def render(pools: Iterable[tuple[Mapping[str, str], Mapping[str, int], Scopes]]) -> str:
    """Return the text for some arenas, each by labels that tell it from the others, its figures and its scopes."""
    pools = list(pools)
    if not pools:
        return ""
    lines: list[str] = []
    for family in FAMILIES:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, figures, _ in pools:
            for figure, more in family.samples.items():
                lines.append(f"{family.name}{_labels({**labels, **more})} {figures[figure]}")
    for number, family in enumerate(SCOPE_FAMILIES):
        samples = [
            f"{family.name}{_labels({**labels, 'scope': path})} {figures[number]}"
            for labels, _, scopes in pools
            for path, figures in scopes.items()
            if figures[number] is not None
        ]
        if samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
