"""Workers may say anything about themselves: the report of the cluster shows it on one line, and safely."""

from __future__ import annotations

import pickle
from pathlib import Path

import arena
from arena._dask.build import build
from arena._dask.cluster import Trimmed
from arena._dask.model import ClusterReport, Missing

from ..hostile import NAME, check_safe
from .answers import answer
from .tasks import MIB


def report() -> ClusterReport:
    one = answer(NAME, 4 * MIB)
    one["host"] = NAME
    one["arenas"][0] |= {"workers": [], "frameworks": [(NAME, MIB, 1)]}
    one["arenas"][0]["device"] |= {"label": NAME, "name": NAME}
    one["arenas"][0]["lines"] = [([(f"{NAME}.py", 3, NAME)], MIB, 1)]
    gone = [{"name": NAME, "address": NAME, "host": NAME, "at": 0.0, "ago": 1.0, "figures": {}}]
    return build(NAME, {NAME: one}, [Missing(NAME, NAME, NAME)], gone)


def test_the_report_of_a_cluster(tmp_path: Path) -> None:
    found = report()
    for shown in (str(found), repr(found), found.save(tmp_path / "out.txt").read_text()):
        check_safe(shown, names=shown is not repr(found) and not shown.startswith("<"))
    assert str(found).count("evil") > 6
    again = arena.load(found.save(tmp_path / "out.json"))
    check_safe(str(again))
    assert again == found or str(again) == str(found)


def test_what_workers_returned() -> None:
    check_safe(str(Trimmed({NAME: MIB}, [Missing(NAME, NAME, NAME)])))


def test_errors_that_workers_send() -> None:
    for error in (arena.ArenaError(NAME), arena.OutOfMemoryError(NAME, NAME, 1, 1, {}, (NAME,))):
        check_safe(str(pickle.loads(pickle.dumps(error))))
