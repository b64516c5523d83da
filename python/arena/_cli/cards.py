"""``arena cards``: the GPUs that a dry run can simulate, and what is known about each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from .._cards import Card, context_range, find_card, read_cards, readings
from .._util.console import Console
from .._util.next_step import arena_command
from .._util.sizes import format_size as size
from .._words.format import counted, format_range
from ..errors import UsageError
from .say import say

__all__ = ["cards"]

WIDTH = 80


def cards(
    name: Annotated[str | None, typer.Argument(help="One of them, or the path of your own profile.")] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the profile, to begin your own with.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the GPUs that a dry run can simulate, or show one with its sources.

    Memory is what the driver reports, which is less than the name says.

    \b
    Examples:
      arena cards
      arena cards rtx4090
      arena cards rtx4090 --toml
    """
    if toml and (name is None or as_json):
        raise UsageError("--toml prints one profile: name the card, and leave out --json")
    if name is None:
        show_all(read_cards(), as_json)
        return
    card = find_card(name)
    if toml:
        for line in card.path.read_text().rstrip("\n").split("\n"):
            say(line.replace("\t", "    "))
    elif as_json:
        print(json.dumps(facts(card), indent=1))
    else:
        show_one(card, name)


def facts(card: Card) -> dict[str, Any]:
    taken = context_range(card)
    own = [asdict(one) for one in readings() if card.key in one.cards]
    return {**asdict(card), "path": str(card.path), "context_range": [taken.low, taken.high], "readings": own}


def show_all(found: tuple[Card, ...], as_json: bool) -> None:
    if as_json:
        print(json.dumps([facts(card) for card in found], indent=1))
        return
    table = Table(box=None, padding=(0, 1), show_header=True)
    for title in ("card", "memory", "compute capability", "SMs", "shared", "L2"):
        table.add_column(title, justify="left" if title == "card" else "right", no_wrap=True)
    for card in found:
        shared, l2 = size(card.shared_per_block_optin), size(card.l2_cache)
        figures = (size(card.memory), card.compute_capability, str(card.multiprocessors), shared, l2)
        table.add_row(card.key, *figures)
    console = Console(soft_wrap=True, width=WIDTH)
    console.print(table)
    console.say("", "memory: as the driver reports it; shared: the most that a block can have")
    console.print(f"Next: {arena_command('dryrun', '--card', 'rtx4090', 'YOUR_SCRIPT.py')}")


def show_one(card: Card, given: str) -> None:
    console = Console(soft_wrap=True, width=WIDTH)
    console.say(f"{card.key}: {card.name}", "")
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for title, text in rows(card):
        table.add_row(title, text)
    console.print(table)
    if own := [one for one in readings() if card.key in one.cards]:
        console.say("", "readings of what a process holds beside its allocations")
        for one in own:
            kernels = "no framework" if one.loading == "none" else f"{one.loading} loading"
            console.print(f"  {one.mib:>5,} MiB  {one.gpu}, {one.software}, {kernels}: {one.source}")
    if card.sources:
        console.say("", "sources")
        for line in card.sources:
            console.print(f"  {line}")
    console.say("", f"profile: {card.path}")
    console.print(f"Next: {arena_command('dryrun', '--card', given, 'YOUR_SCRIPT.py')}")


def rows(card: Card) -> Iterator[tuple[str, str]]:
    yield "memory", f"{size(card.memory)} ({card.memory:,} bytes)"
    taken = context_range(card)
    how = "" if taken.is_measured else ", interpolated"
    yield "CUDA context", f"with kernels {format_range(taken.low, taken.high)}{how}"
    yield "compute capability", card.compute_capability
    yield "multiprocessors", str(card.multiprocessors)
    threads = counted(card.threads_per_multiprocessor, "thread")
    yield "  each with", f"{threads}, {counted(card.blocks_per_multiprocessor, 'block')}"
    shared = f"{size(card.shared_per_multiprocessor)} shared"
    yield "", f"{counted(card.registers_per_multiprocessor, 'register')}, {shared}"
    yield "shared for a block", f"{size(card.shared_per_block)}, on request {size(card.shared_per_block_optin)}"
    yield "L2 cache", size(card.l2_cache)
    yield "clock", f"{card.clock_khz / 1000:,.0f} MHz, memory {card.memory_clock_khz / 1000:,.0f} MHz"
    yield "memory bus", f"{card.bus_width:,} bits"
    if card.integrated:
        yield "integrated", "shares the host's memory"
