"""Renders the account in Prometheus's text exposition format, version 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .._words.account import REASONS
from ..errors import UsageError

__all__ = ["FAMILIES", "SCOPE_FAMILIES", "Family", "Scopes", "check_labels", "render"]


class Family(NamedTuple):
    """A metric family: its name, type, help text and samples."""

    name: str
    kind: str
    help: str
    samples: dict[str, dict[str, str]]
    """The figures of the account, each with its own labels."""


def _bytes(figure: str, help: str, name: str = "") -> Family:
    return Family(f"arena_{name or figure}_bytes", "gauge", help, {figure: {}})


def _count(figure: str, help: str) -> Family:
    return Family(f"arena_{figure}_total", "counter", help, {figure: {}})


FAMILIES = (
    Family(
        "arena_reserved_bytes",
        "gauge",
        "Memory reserved from the driver, by the reason it is held; the sum is the total.",
        {reason: {"reason": reason} for reason in REASONS},
    ),
    _bytes("cap", "The limit of reserved memory."),
    _bytes("headroom", "Memory that is left free on the device."),
    _bytes("captured", "Freed memory kept for captured CUDA graphs."),
    _bytes("compactable", "Whole granules of stranded memory, which moving live data would free."),
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
    _bytes("peak_requested", "Peak of the requested bytes."),
    _bytes("peak_live", "Peak of the live bytes: requested bytes after rounding."),
    _bytes("peak_reserved", "Peak of the reserved bytes."),
    _bytes("device_total", "Total memory of the device."),
    _bytes("device_free", "Free memory of the device, as reported by the driver."),
    Family("arena_blocks", "gauge", "Live allocations.", {"blocks": {}}),
    _count("allocations", "Successful allocations."),
    _count("hits", "Allocations without a driver call."),
    _count("splits", "Allocations from part of a larger gap."),
    _count("failures", "Failed requests."),
    _count("maps", "Handles mapped."),
    _count("unmaps", "Handles unmapped."),
    _count("rebacked", "Handles replaced under live data."),
    _count("driver_calls", "Driver calls."),
    _count("waits", "Waits of one stream for another."),
)

# Per scope path. Scopes include the scopes inside them, so adding them up is meaningless.
SCOPE_FAMILIES = (
    Family("arena_scope_live_bytes", "gauge", "Live memory allocated in scopes of this path.", {}),
    Family("arena_scope_blocks", "gauge", "Live allocations made in scopes of this path.", {}),
    Family("arena_scope_peak_bytes", "gauge", "Peak of the live memory in scopes of this path.", {}),
    Family("arena_scope_entered_total", "counter", "How often a scope of this path was entered.", {}),
    Family("arena_scope_budget_bytes", "gauge", "The budget of the last scope of this path, if it had one.", {}),
)

Scopes = Mapping[str, tuple[int | None, ...]]
"""Figures by path, one for each of SCOPE_FAMILIES."""

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")
_RESERVED = {"device", "scope", *(name for family in FAMILIES for labels in family.samples.values() for name in labels)}


def check_labels(labels: Mapping[str, object]) -> dict[str, str]:
    """Check the labels for every sample and convert them to strings."""
    for name, value in labels.items():
        if not _LABEL.match(name):
            raise UsageError(f"{name!r} cannot be a label; use letters, digits and _, without __ at the beginning")
        if name in _RESERVED:
            raise UsageError(f"the label {name!r} is used by arena; choose another name")
        if not isinstance(value, (str, int)):
            raise UsageError(f"{name}={value!r} cannot be the value of a label; pass a string or a whole number")
    return {name: str(value) for name, value in labels.items()}


def render(pools: Iterable[tuple[Mapping[str, str], Mapping[str, int], Scopes]]) -> str:
    """Render arenas, each given by labels that identify it, its figures and its scopes."""
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
