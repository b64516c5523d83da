"""Calls everything public with invalid arguments, in its own process: ``python -m tests.reliability.bad_input``.

It prints a line before each call, so that the last line of a crashed process names the call, and a line beginning with
``WRONG`` for each call that did anything but work or raise a clear error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import arena
from arena import sim
from arena._util.sizes import format_size
from arena._words.plain import plain

SIZE = 64 << 20


class HostileError(Exception):
    """Raised by the hostile objects, and by nothing else."""


class Hostile:
    """Raises whatever it is asked, except for its class."""

    def _raise(self, *arguments: object) -> NoReturn:
        raise HostileError("asked")

    __index__ = __int__ = __float__ = __str__ = __len__ = __iter__ = __fspath__ = __hash__ = _raise  # type: ignore
    __eq__ = __bool__ = __call__ = __getitem__ = __lt__ = __contains__ = __cuda_stream__ = _raise  # type: ignore


class Nameless(Hostile):
    """Raises even then."""

    __repr__ = Hostile._raise


class Liar:
    """Stands for invalid numbers and paths."""

    ptr = "here"

    def __index__(self) -> int:
        return "three"  # type: ignore[return-value]

    def __fspath__(self) -> str:
        return 5  # type: ignore[return-value]

    def __cuda_stream__(self) -> object:
        return None

    def __len__(self) -> int:
        return -5


NUMBERS: list[object] = [
    0,
    -1,
    1 << 31,
    1 << 63,
    (1 << 64) - 1,
    1 << 70,
    -(1 << 70),
    1.5,
    math.inf,
    -math.inf,
    math.nan,
]
TEXTS: list[object] = ["", "x", "\0", "a\0b", "\ud800", "\u202eé名", "9" * 400, "%s%n", "-1", "nan", "1e999GiB", b"x"]
OTHERS: list[object] = [None, True, [], {}, (), object(), 1j, range(3), print, Liar(), Hostile(), Nameless()]
BAD = [*NUMBERS, *TEXTS, *OTHERS]

# What can be changed while the simulated machine runs, with its defaults; and what describes the machine.
CHANGING: dict[str, Any] = {"delay": 0, "seed": 0, "other": 0, "prices": "a100", "races": False, "values": False}
CHANGING |= {"page_cache": 0, "address_space": 0, "exclusive": "", "sync_unmap": False, "reuse": True, "dead": "report"}
MACHINE = ("card", "devices", "memory", "granularity", "vmm", "version", "peers", "integrated", "rdma")

# What counts as a clear error. An OSError names its file; a hostile object's own error is passed on.
CLEAR = (arena.ArenaError, ValueError, TypeError, OSError, HostileError)


class World:
    """One object of every kind that has methods to call."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        os.chdir(self.folder)
        self.pool = arena.Arena(cap=SIZE, device="sim:1GiB", compact=True)
        self.recording = self.pool.record("run.arena")
        self.buffer = self.pool.allocate(1000)
        self.scope = self.pool.scope("scope")
        self.recording.stop()
        self.trace = arena.Trace.read("run.arena")
        self.snapshot = self.pool.snapshot()
        self.report = self.pool.report()
        self.comparison = arena.compare(self.trace, self.trace)
        self.timeline = arena.Timeline(self.pool)
        self.timeline.sample()
        self.files = 0

    def path(self, ending: str) -> str:
        self.files += 1
        return f"file-{self.files}{ending}"

    def restore(self) -> None:
        """Undo what a call may have changed on purpose."""
        self.pool.set_cap(SIZE)
        self.pool._on_oom.clear()
        self.pool._on_pressure.clear()
        if self.pool._recording is not None:
            self.pool._recording.stop()
        arena.trace_lines(False)
        arena._pool.settings._configured.clear()
        sim.clear_planned()
        sim.configure(**CHANGING)


Call = tuple[Callable[..., object], dict[str, Any]]


def arena_calls(w: World) -> dict[str, Call]:
    pool = w.pool
    return {
        "Arena": (
            lambda **settings: arena.Arena(**settings).close(),
            {"cap": SIZE, "reserve": 0, "headroom": 0, "growth": SIZE, "device": "sim:1GiB", "vmm": True}
            | {"upstream": None, "compact": "auto", "peers": None},
        ),
        "Arena.allocate": (pool.allocate, {"size": 1000, "stream": 0}),
        "Arena.free_all_blocks": (pool.free_all_blocks, {"stream": None}),
        "Arena.malloc": (lambda size: pool.malloc(size), {"size": 1000}),
        "Arena.metrics": (lambda label: pool.metrics(label=label), {"label": "a"}),
        "Arena.on_oom": (pool.on_oom, {"function": print}),
        "Arena.on_pressure": (pool.on_pressure, {"share": 0.5, "function": print, "of": "live", "rearm": 0.4}),
        "Arena.pin": (lambda buffer: (pool.pin(buffer), pool.unpin(buffer)), {"buffer": w.buffer}),
        "Arena.unpin": (lambda buffer: (pool.pin(w.buffer), pool.unpin(buffer)), {"buffer": w.buffer}),
        "Arena.record": (lambda **k: pool.record(**k).stop(), {"path": w.path(".arena"), "overwrite": True}),
        "Arena.report": (pool.report, {"verdict": "", "request": 0, "timeline": None}),
        "Arena.reserve": (pool.reserve, {"size": 0}),
        "Arena.scope": (_enter(pool), {"name": "a", "budget": None}),
        "Arena.set_cap": (pool.set_cap, {"cap": SIZE}),
        "Arena.set_limit": (pool.set_limit, {"size": None, "fraction": None}),
        "Arena.safe_point": (pool.safe_point, {"budget": 0.0}),
        "Arena.trim": (pool.trim, {"compact": False}),
        "Buffer.record_stream": (lambda stream: pool.allocate(1).record_stream(stream), {"stream": 0}),
        "Driver.open": (arena.Driver.open, {"choice": "sim"}),
        "Timeline": (lambda **k: arena.Timeline(**k).sample(), {"pool": pool, "interval": None}),
        "Timeline.save": (w.timeline.save, {"path": w.path(".json"), "overwrite": True}),
        "safe_point": (arena.safe_point, {"budget": 0.0}),
        "configure": (arena.configure, {"cap": None, "reserve": None, "headroom": None, "growth": None}),
        "default_arena": (arena.default_arena, {"device": 0}),
        "largest_batch": (
            arena.largest_batch,
            {"function": lambda batch: None, "low": 1, "high": 2, "pool": pool},
        ),
        "malloc": (lambda size: arena.malloc(size), {"size": 1000}),
        "metrics": (lambda label: arena.metrics(label=label), {"label": "a"}),
        "trace_lines": (arena.trace_lines, {"on": False, "depth": 1}),
    }


def file_calls(w: World) -> dict[str, Call]:
    settings = {"device": "sim:1GiB", "cap": None, "vmm": True, "prices": None}
    return {
        "Comparison.row": (w.comparison.row, {"figure": next(iter(_figures()))}),
        "Comparison.save": (w.comparison.save, {"path": w.path(".html"), "overwrite": True}),
        "Report.from_dict": (arena.Report.from_dict, {"data": w.report.to_dict()}),
        "Report.of": (arena.Report.of, {"snapshot": w.snapshot, "device_name": "", "simulated": False}),
        "Report.save": (w.report.save, {"path": w.path(".json"), "overwrite": True}),
        "Reports.save": (arena.Reports([w.report]).save, {"path": w.path(".txt"), "overwrite": True}),
        "Snapshot.save": (w.snapshot.save, {"path": w.path(".json"), "overwrite": True}),
        "Snapshot.since": (w.snapshot.since, {"earlier": w.snapshot}),
        "Snapshot.to_torch": (w.snapshot.to_torch, {"path": w.path(".pickle"), "overwrite": True}),
        "Trace": (arena.Trace, {"facts": None}),
        "Trace.__getitem__": (lambda index: w.trace[index], {"index": 0}),
        "Trace.read": (arena.Trace.read, {"path": "run.arena"}),
        "Trace.replay": (w.trace.replay, settings),
        "Trace.save": (w.trace.save, {"path": w.path(".arena"), "to": None, "overwrite": True}),
        "Trace.scope_name": (w.trace.scope_name, {"scope": 0}),
        "compare": (lambda trace, **k: arena.compare(trace, w.trace, **k), {"trace": w.trace, **settings}),
        "fit": (
            arena.fit,
            {"traces": w.trace, "cap": None, "device": None, "outside": 0, "batch_from": None, "batch_to": None}
            | {"growth": None, "vmm": True, "compact": True, "prices": None, "progress": None},
        ),
        "load": (arena.load, {"path": "run.arena"}),
    }


def sim_calls(w: World) -> dict[str, Call]:
    return {
        "sim.add_device": (sim.add_device, {"memory": "1GiB"}),
        "sim.calls": (sim.calls, {"function": None}),
        "sim.card": (sim.card, {"name": "rtx4090"}),
        "sim.configure": (sim.configure, dict.fromkeys((*MACHINE, *CHANGING))),
        "sim.dryrun": (
            lambda **k: _within(sim.dryrun(**k)),
            {"card": "rtx4090", "memory": "1GiB", "values": "control"},
        ),
        "sim.fail": (sim.fail, {"function": "cuMemAlloc", "error": 2, "nth": 1, "times": 1}),
        "sim.peak": (sim.peak, {"device": 0}),
        "sim.price": (sim.price, {"function": "cuMemMap", "size": 0}),
        "sim.temporarily": (lambda **k: _within(sim.temporarily(**k)), dict.fromkeys(CHANGING)),
        "sim.used": (sim.used, {"device": 0}),
    }


GROUPS = {"arena": arena_calls, "files": file_calls, "sim": sim_calls}


def _figures() -> Any:
    from arena._analysis.compare import model

    return model.FIGURES


def _within(context: contextlib.AbstractContextManager[object]) -> None:
    with context:
        pass


def _enter(pool: arena.Arena) -> Callable[..., None]:
    def enter(**arguments: Any) -> None:
        with pool.scope(**arguments):
            pool.allocate(0).free()

    return enter


def cases(calls: dict[str, Call]) -> Iterator[tuple[str, Callable[..., object], dict[str, Any], object]]:
    for name, (function, good) in calls.items():
        for parameter in good:
            for value in BAD:
                yield f"{name}({parameter}={_show(value)})", function, {**good, parameter: value}, value


def _show(value: object) -> str:
    try:
        return ascii(value)[:60]
    except HostileError:
        return "Nameless()"


def says_which(error: BaseException, value: object, call: str) -> bool:
    """Whether the text names the value, its type, or the argument. Driver errors name the function."""
    if isinstance(error, (HostileError, OSError, arena.DriverError)) or isinstance(value, (Liar, Nameless)):
        return True
    argument = call[call.index("(") + 1 : call.index("=")]
    if isinstance(value, (list, tuple, dict)):
        return True  # they are empty: the error names what is missing
    names = [repr(value)[:40], type(value).__name__, argument, argument.split("_")[0]]
    if isinstance(value, (str, bytes)):
        names.append(plain(os.fsdecode(value))[:40] or "path")
    elif isinstance(value, int):
        names += [hex(value), f"{value:,}", format_size(value)]
    return any(name in str(error) for name in names)


def problem_with(call: str, function: Callable[..., object], arguments: dict[str, Any], value: object) -> str:
    clear = (*CLEAR, IndexError) if ".__getitem__" in call else CLEAR
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            function(**arguments)
    except clear as error:
        if not str(error):
            return f"{type(error).__name__} without a text"
        return (
            "" if says_which(error, value, call) else f"{type(error).__name__}: {str(error)[:150]!r} does not name it"
        )
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]!r}"
    return ""


def held() -> tuple[sim.Census, list[int]]:
    """Everything the driver gave out and did not get back, once every arena has returned what it can spare.

    Events are not counted here, since an arena keeps some for later; they are counted at the very end.
    """
    gc.collect()
    for pool in arena._pool.registry.open_arenas():
        pool.trim()
    census = sim.census()
    used = [sim.used(device) for device in range(census.devices)]
    return dataclasses.replace(census, devices=0, events=0), [size for size in used if size]


def try_all(group: str) -> None:
    w = World()
    calls = GROUPS[group](w)
    for function, good in calls.values():  # what is made once, such as the default arena, exists from now on
        problem_with("(=", function, good, None)
    w.restore()
    gc.collect()
    gc.freeze()  # what exists now is not garbage later
    before = held()
    for call, function, arguments, value in cases(calls):
        print(call, flush=True)
        problem = problem_with(call, function, arguments, value)
        w.restore()
        if problem:
            print(f"WRONG {call}: {problem}", flush=True)
        w.pool.validate()
        after = held()
        if after != before or w.pool.stats().blocks != 1:
            print(f"WRONG {call}: it left something behind: {before} became {after}", flush=True)
            before = after
    gc.unfreeze()
    for pool in arena._pool.registry.open_arenas():
        pool.close()


def main(group: str) -> None:
    warnings.simplefilter("ignore")
    try_all(group)
    gc.collect()
    left = dataclasses.replace(sim.census(), devices=0)
    if any(vars(left).values()):
        print(f"WRONG: when all is closed, {left} are left", flush=True)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
