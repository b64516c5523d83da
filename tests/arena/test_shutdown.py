"""What works while the interpreter shuts down, when nothing can be imported any more."""

from __future__ import annotations

import pytest

from ..programs import run

LAST = """
import os
import arena

class Last:
    def __init__(self):
        self.pool = arena.Arena(cap="64MiB", device="sim:1GiB")
        self.kept = self.pool.allocate(5 << 20)
    def __del__(self, call={call}, write=os.write, ArenaError=arena.ArenaError, str=str):
        try:
            write(1, str(call(self.pool)).encode())
        except ArenaError as error:
            write(1, b"ArenaError " + str(error).encode())

last = Last()
{before}
last.itself = last  # in a cycle, so it goes when modules do
"""


def last_words(call: str, before: str = "") -> str:
    done = run(LAST.format(call=call, before=before), check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_report_can_be_made() -> None:
    assert last_words("lambda pool: pool.report().account['requested']") == str(5 << 20)


def test_a_printed_report_is_short() -> None:
    text = last_words("lambda pool: pool.report()")
    assert text.startswith("8 MiB of a cap of 64 MiB")
    assert "requested" in text
    assert "shutting down" in text


@pytest.mark.parametrize(
    "call",
    [
        "lambda pool: pool.stats().requested",
        "lambda pool: pool.snapshot().stats['requested']",
        "lambda pool: 'arena_cap_bytes' in pool.metrics() and 5 << 20",
    ],
)
def test_figures_can_be_read(call: str) -> None:
    assert last_words(call) == str(5 << 20)


@pytest.mark.parametrize(
    "call",
    [
        "lambda pool: pool.report().save('/nowhere/report.html')",
        "lambda pool: pool.report()._repr_html_()",
        "lambda pool: pool.snapshot().since(pool.snapshot())",
        "lambda pool: pool.snapshot().to_torch('/nowhere/snapshot.pickle')",
        "lambda pool: pool.record('/nowhere/run.arena')",
        "lambda pool: pool.malloc(5)",
    ],
)
@pytest.mark.parametrize("before", ["", "str(last.pool.report())"], ids=["first", "again"])
def test_what_needs_an_import_or_a_thread_raises_a_clear_error(call: str, before: str) -> None:
    text = last_words(call, before)
    assert text.startswith("ArenaError ")
    assert "the interpreter is shutting down" in text


def test_a_failed_request_raises_out_of_memory() -> None:
    assert last_words("lambda pool: pool.allocate(1 << 30)").startswith(
        "ArenaError out of memory: 1 GiB requested, cap reached; the largest request that would pass is 59 MiB\n"
    )
