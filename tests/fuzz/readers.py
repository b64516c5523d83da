"""Fuzzing of everything that reads a file.

    python -m tests.fuzz.readers TARGET [options of libFuzzer] [FILE or FOLDER ...]

Whatever a file holds, reading it may raise only an ``ArenaError``, and what was read can be replayed, saved and read
again. With atheris, libFuzzer looks for inputs that reach new code. Without it (not every Python has a wheel) the
corpus is run and changed at random, which finds less.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import corpus

atheris: Any = None
if __name__ == "__main__":  # tests run the corpus, without looking for more
    with contextlib.suppress(ImportError):
        import atheris

# Imports in here are instrumented for coverage, including those that arena would do later.
with contextlib.nullcontext() if atheris is None else atheris.instrument_imports(include=["arena"]):
    import arena
    from arena._trace import container as _file

    later = ("_util.typed", "_report.html", "_report.json", "_report.text", "_analysis.replay", "_trace.save")
    for module in later:
        importlib.import_module(f"arena.{module}")
    from arena._words.plain import plain

FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
PARTS = b"\xff\xfe"  # between the parts of a trace in arena's own format
TAGS = (_file.EVENTS, _file.LINES, _file.STEPS, _file.END, b"ELSE")
VALUES: list[Any] = ["delete", None, True, 0, 1, 7, 512, -1, 1 << 21, (1 << 64) - 1, 1 << 64, 10**400]
VALUES += [0.0, -1.5, 1e300, float("nan"), float("inf"), "", "live", "\ud800", "[bold]<b>\n", [], [[]], {}, {"a": 1}]
MOST_EVENTS = 3000  # that are replayed


def own(data: bytes) -> None:
    """A trace in arena's own format. The container, with its checksums, is put around the parts here."""
    if data[:1] == b"R":
        return trace(data[1:])
    head, *chunks = data.split(PARTS)
    packed = b"".join(_file.chunk(TAGS[chunk[0] % len(TAGS)], chunk[1:]) for chunk in chunks if chunk)
    return trace(_file.MAGIC + _file.VERSION.to_bytes(4, "little") + len(head).to_bytes(4, "little") + head + packed)


def trace(data: bytes) -> None:
    """Any trace; its first bytes say which format."""
    source = FOLDER / "trace"
    source.write_bytes(data)
    try:
        found = arena.Trace.read(source)
    except arena.ArenaError:
        return
    for event in found:
        assert event.kind
    assert repr(found) == plain(repr(found))
    if len(found) > MOST_EVENTS:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("again.arena", "again.trace", "again.csv", "again.json"):
            settings = {"device": "sim:1GiB"} if name.endswith("json") else {}
            save(found, FOLDER / name, settings)
    with contextlib.suppress(arena.ArenaError):
        report = found.replay(device="sim:1GiB", cap="256MiB", compact=True).report
        assert report.granule
        assert all(line == plain(line) for line in str(report).split("\n"))


def save(found: arena.Trace, path: Path, settings: dict[str, str]) -> None:
    try:
        found.save(path, overwrite=True, **settings)
    except arena.ArenaError:
        return
    if path.suffix == ".arena":
        again = arena.Trace.read(path)
        assert len(again) == len(found), (again.problem, len(again), len(found))
        assert again.steps == sorted(found.steps, key=lambda step: step[0])
    elif path.suffix != ".json":
        arena.Trace.read(path)


def edited(data: bytes) -> bytes:
    """A whole report or snapshot in which every three bytes change one value. (Changed text is rarely still JSON.)"""
    whole = json.loads(corpus.inputs("saved")["report" if data[:1] < b"\x80" else "snapshot"])
    for at in range(1, min(len(data), 90) - 2, 3):
        if not (slots := list(places(whole))):
            break
        container, key = slots[int.from_bytes(data[at : at + 2], "big") % len(slots)]
        value = VALUES[data[at + 2] % len(VALUES)]
        if value == "delete":
            del container[key]
        else:
            container[key] = copy.deepcopy(value)
    return json.dumps(whole).encode()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, (dict, list)):
            yield from places(item)


def saved(data: bytes) -> None:
    """A report or a snapshot, as text or, after an E, as changes of a whole one."""
    if data[:1] == b"E":
        data = edited(data[1:])
    source = FOLDER / "saved.json"
    source.write_bytes(data)
    try:
        found = arena.load(source)
    except arena.ArenaError:
        return
    found.save(FOLDER / "again.json", overwrite=True)
    again = arena.load(FOLDER / "again.json")
    if isinstance(found, arena.Snapshot):
        found.to_torch(FOLDER / "again.pickle", overwrite=True)
        found = arena.Report.of(found)
    elif data.find(b"NaN") < 0:  # NaN does not equal itself
        assert again == found
    for line in str(found).split("\n"):
        assert line == plain(line)
    found._repr_html_()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "own": own,
    "text": lambda data: trace(b"# arena-trace 1" + data),
    "rmm": lambda data: trace(b"Thread,Time,Action,Pointer,Size,Stream\n" + data),
    "torch": lambda data: trace(b"\x80" + data),
    "saved": saved,
}


def run_by_chance(target: Callable[[bytes], None], arguments: list[str]) -> None:
    """What libFuzzer does, without coverage."""
    options = dict(word[1:].split("=", 1) for word in arguments if word.startswith("-"))
    paths = [Path(word) for word in arguments if not word.startswith("-")]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    inputs = [file.read_bytes() for file in files] or [b""]
    chance = random.Random(int(options.get("seed", 1)))
    end = time.monotonic() + float(options.get("max_total_time", 0))
    runs = 0
    while runs < len(inputs) or time.monotonic() < end:
        data = inputs[runs] if runs < len(inputs) else changed(chance, chance.choice(inputs), chance.choice(inputs))
        try:
            target(data)
        except BaseException:
            crash = Path(options.get("artifact_prefix", "./") + "crash-by-chance")
            crash.write_bytes(data)
            print(f"the input is in {crash}", file=sys.stderr)
            raise
        runs += 1
    print(f"{runs} inputs, without libFuzzer", file=sys.stderr)


def changed(chance: random.Random, data: bytes, other: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at, length = chance.randint(0, len(out)), chance.randint(0, 12)
        start = chance.randint(0, len(other))
        out[at : at + chance.choice((0, 1, length))] = chance.choice(
            (b"", bytes([chance.randrange(256)]), other[start : start + length], str(chance.getrandbits(64)).encode())
        )
    return bytes(out)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz.readers {'|'.join(TARGETS)} [options of libFuzzer] [FILE or FOLDER ...]")
    os.environ.setdefault("ARENA_DRIVER", "sim")
    target = TARGETS[sys.argv.pop(1)]
    if atheris is None:
        print("atheris is not installed (pip install atheris): inputs are made by chance", file=sys.stderr)
        return run_by_chance(target, sys.argv[1:])
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
    return None


if __name__ == "__main__":
    main()
