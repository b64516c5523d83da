"""Outcomes of dry runs that never ran, for the tests of what follows from them."""

from __future__ import annotations

from typing import Any

from arena import sim
from arena._dryrun.environment import Device
from arena._dryrun.run import Outcome, Plan

from .program import GIB, MIB


def plan(**changes: Any) -> Plan:
    return Plan(device=Device(sim.card("t4"), None), program="train.py", arguments=(), **changes)


def outcome(
    *unknown: dict[str, Any],
    peak: int = GIB,
    exit_code: int = 0,
    requests: object = None,
    failure: dict[str, Any] | None = None,
    error: str = "",
    error_line: str = "",
    made: Plan | None = None,
) -> Outcome:
    """What a program on PyTorch's allocator left."""
    torch = {"allocator": "its own", "live": peak // 2, "reserved": peak, "failures": int(failure is not None)}
    facts = {
        "driver": {"peak": peak},
        "torch": torch,
        "unknown": list(unknown),
        "requests": requests,
        "ended_by": failure,
        "error": error,
        "error_line": error_line,
        "seconds": 1.0,
        "until": "",
    }
    return Outcome(made or plan(), exit_code, facts, trace=None, problem="", output="")


def killed(made: Plan | None = None) -> Outcome:
    return Outcome(made or plan(), -9, None, trace=None, problem="", output="")


def read(dtype: str = "float32", *, line: str = "train.py:31 in step", size: int = 4, **changes: Any) -> dict[str, Any]:
    """A value that the program read."""
    facts = {"line": line, "what": "loss.item()", "kind": "read", "dtype": dtype, "count": 1, "bytes": size}
    return {**facts, "sized": None, "assumed": 0, "given": False, "last": 1, **changes}


def size(taken: int, most: int, *, line: str = "rpn.py:258 in keep", **changes: Any) -> dict[str, Any]:
    """A value that became a size."""
    what = "the number of elements of nonzero()"
    sized = {"allocations": 12, "bytes": taken, "most": most, "counts": {"assumed": taken, "most": most}}
    facts = {"line": line, "what": what, "kind": "size", "dtype": "int64", "count": 1, "bytes": 0, "sized": sized}
    return {**facts, "assumed": taken, "given": False, "last": 1, **changes}


def out_of_memory(requested: int = 512 * MIB) -> dict[str, Any]:
    return {"framework": "PyTorch", "requested": requested, "line": "train.py:5 in step", "message": "out of memory"}
