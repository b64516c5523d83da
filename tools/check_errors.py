#!/usr/bin/env python3
"""Prove that tests/reliability/documented_errors.py lists the errors that NVIDIA's headers document for each function.

cuda.h has them in the comment above each function. tools/check_abi.py runs this on the headers it finds.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Mapping
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "tests" / "reliability" / "documented_errors.py"

_COMMENTED = re.compile(r"/\*\*((?:(?!\*/).)*)\*/\s*CUresult\s+CUDAAPI\s+(\w+)\(", re.S)
# "Note that this function may also return error codes from previous, asynchronous launches."
_EARLIER_WORK = r"\notefnerr"


def listed() -> dict[str, set[str]]:
    return {name: set(errors.split()) for name, errors in runpy.run_path(str(LIST))["ERRORS"].items()}


def documented(header: str) -> dict[str, set[str]]:
    """The errors of every function that has a comment in a cuda.h."""
    found: dict[str, set[str]] = {}
    for comment, name in _COMMENTED.findall(header):
        returned = comment.partition(r"\return")[2].partition(r"\sa")[0]
        found[name] = set(re.findall(r"::CUDA_ERROR_(\w+)", returned))
        if _EARLIER_WORK in returned:
            found[name].add("LAUNCH_FAILED")  # stands for all errors of earlier work
    return found


def differences(headers: list[str], ours: Mapping[str, set[str]]) -> list[str]:
    """The differences from all headers together: a newer one documents what an older one did not."""
    found = [documented(header) for header in headers]
    wrong = []
    for name, errors in ours.items():
        theirs = set().union(*(one.get(name, set()) for one in found))
        wrong += [f"{name}: {error} is not listed" for error in sorted(theirs - errors)]
        wrong += [f"{name}: {error} is not documented" for error in sorted(errors - theirs)]
    return wrong


def check(headers: list[str]) -> bool:
    ours = listed()
    wrong = differences(headers, ours)
    count = sum(map(len, ours.values()))
    print(f"{LIST.name}: {count} errors of {len(ours)} functions checked: {len(wrong) or 'no'} differences")
    for difference in wrong:
        print(f"  {difference}")
    return not wrong


def self_test(headers: list[str]) -> bool:
    """Whether one more error and one less are noticed, for every function."""
    ours = listed()
    noticed = 0
    for name, errors in ours.items():
        more, less = {**ours, name: errors | {"UNMAP_FAILED"}}, {**ours, name: errors - {min(errors)}}
        noticed += differences(headers, more) == [f"{name}: UNMAP_FAILED is not documented"]
        noticed += differences(headers, less) == [f"{name}: {min(errors)} is not listed"]
    print(f"{LIST.name}: {noticed} of {2 * len(ours)} mistakes noticed")
    return noticed == 2 * len(ours)
