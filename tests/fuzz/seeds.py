"""Write the first inputs of all targets: ``seeds.py FOLDER``. Fuzzing adds its own beside them."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import tempfile
from pathlib import Path

import arena
from arena._trace import container

from .. import hostile

PARTS = b"\xff\xfe"
ODD_ROWS = b" x\r\n\n# note\r\r\na,7,512,1\r\nx,1024,3\ns,step \x1b[1m\nf,7\na, 8,+5,0\n#\xff\n"


def recorded(folder: Path) -> tuple[arena.Trace, Path]:
    """A run with every kind of event that a trace can hold."""
    pool = arena.Arena(device="sim:1GiB", cap="64MiB")
    path = folder / "run.arena"
    arena.trace_lines(True)
    with pool.record(path), pool.scope("step", budget="32MiB"):
        kept = pool.allocate(1000)
        pool.allocate(3 << 20).free()
        kept.record_stream(2)
        pool.reserve("8MiB")
        pool.set_cap("60MiB")
        pool.trim()
        with contextlib.suppress(arena.OutOfMemoryError):
            pool.allocate(1 << 30)
        pool.report().save(folder / "report.json")
        pool.snapshot().save(folder / "snapshot.json")
        kept.free()
    arena.trace_lines(False)
    return arena.Trace.read(path), path


def parts_of(path: Path) -> bytes:
    """A trace in arena's own format as the target takes it: without packing and checksums."""
    with path.open("rb") as file:
        head = json.dumps(container.read_header(file, path.name)).encode()
        tags = (container.EVENTS, container.LINES, container.STEPS, container.END)
        chunks = [
            bytes([tags.index(chunk.tag)]) + chunk.data
            for chunk in container.read_chunks(file)
            if not isinstance(chunk, str)
        ]
    return PARTS.join([head, *chunks])


def torch_history() -> dict[str, object]:
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    entry = {"addr": 512, "size": 1000, "stream": 0, "frames": frames}
    history = [
        {"action": "segment_alloc", **entry, "time_us": 1},
        {"action": "alloc", **entry, "time_us": 2},
        {"action": "free_requested", **entry, "time_us": 3},
        {"action": "oom", **entry, "time_us": 4},
    ]
    block = {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "address": 4096, "total_size": 2048, "stream": 7, "blocks": [block]}
    notes = [{"stage": "START", "time_us": 2, "name": "step", "device": 0}]
    return {"device_traces": [history], "segments": [segment], "external_annotations": notes}


def write(folder: Path, target: str, seeds: dict[str, bytes]) -> None:
    (folder / target).mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (folder / target / name).write_bytes(data)


def main() -> None:
    to = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, path = recorded(folder)
        trace.save(folder / "run.trace")
        trace.save(folder / "run.csv")
        events = next(chunk.data[32:] for chunk in read_chunks(path) if chunk.tag == container.EVENTS)
        write(to, "own", {"whole": parts_of(path), "packed": b"R" + path.read_bytes()})
        whole = (folder / "run.trace").read_bytes().removeprefix(b"# arena-trace 1")
        write(to, "text", {"whole": whole, "odd-rows": ODD_ROWS, "hostile-names": hostile.NAME.encode() + ODD_ROWS})
        log = (folder / "run.csv").read_bytes().partition(b"\n")[2]
        write(to, "rmm", {"whole": log, "odd-rows": b"\n \t\r\n " + log.replace(b"\n", b" \r\n\n")})
        write(to, "saved", {kind: (folder / f"{kind}.json").read_bytes() for kind in ("report", "snapshot")})
        odd_keys = {**torch_history(), (1, 2): 3, 1 << 70: 4, "set": {(5, 6), 1 << 80}}
        seeds = {str(p): pickle.dumps(torch_history(), p)[1:] for p in (2, 4)}
        write(to, "torch", {**seeds, "odd-keys": pickle.dumps(odd_keys, 4)[1:]})
        hostile.trace(folder / "hostile.arena")
        write(to, "own", {"hostile-names": b"R" + (folder / "hostile.arena").read_bytes()})
        report = json.loads((folder / "report.json").read_text())
        write(to, "saved", {"hostile-names": json.dumps(hostile.poisoned(report)).encode()})
        write(to, "decoders", {"events": events, "pickle": pickle.dumps(torch_history(), 2)})
        write(to, "core", {f"walk{n}": bytes((i * n * 37 + i // 7) % 256 for i in range(300)) for n in (1, 3, 5)})


def read_chunks(path: Path) -> list[container.Chunk]:
    with path.open("rb") as file:
        container.read_header(file, path.name)
        return [chunk for chunk in container.read_chunks(file) if not isinstance(chunk, str)]


if __name__ == "__main__":
    main()
