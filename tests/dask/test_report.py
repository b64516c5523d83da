"""The report of a cluster: sums, lines, who is nearest to its cap, and the same figures in every format."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, wait

import arena
from arena._dask import account
from arena._dask.build import build
from arena._dask.model import ClusterReport, Missing
from arena.dask import ArenaPlugin

from ..cli.command import start_arena
from . import tasks
from .answers import answer, cluster_of
from .conftest import MakeCluster
from .tasks import MIB


@pytest.fixture
def report() -> ClusterReport:
    return cluster_of(a=answer("a", 16 * MIB), b=answer("b", 60 * MIB, at=102.0), c=answer("c", 8 * MIB))


def test_the_sums_add_up_and_the_nearest_to_its_cap_comes_first(report: ClusterReport) -> None:
    assert [one.name for one in report.arenas] == ["b", "a", "c"]
    assert (report.account["live"], report.account["cap"]) == (84 * MIB, 3 * 64 * MIB)
    assert report.account["reserved"] == sum(one.account["reserved"] for one in report.arenas)
    assert "3 arenas on 3 cards: 84 MiB live, 90 MiB of 192 MiB reserved." in report.caption
    assert "Nearest to its cap is worker b: 60 of 64 MiB live (94%)." in report.caption
    assert any("1 arena at 90% of the cap or more (worker b)" in note for note in report.notes)


def test_lines_are_summed_over_the_cluster(report: ClusterReport) -> None:
    assert [(one.name, one.bytes, one.blocks, one.arenas) for one in report.lines] == [
        ("load.py:3 in load", 42 * MIB, 3, 3),
        ("x.py:1 in f", 21 * MIB, 3, 3),
    ]
    assert [(one.name, one.bytes) for one in report.peak_lines] == [("load.py:3 in load", 84 * MIB)]
    assert [(one.name, one.bytes) for one in report.frameworks] == [("CuPy", 84 * MIB)]


def test_files_of_the_same_name_on_different_workers_are_told_apart() -> None:
    other = answer("b", 4 * MIB)
    other["arenas"][0]["lines"] = [([("/home/you/load.py", 3, "load")], MIB, 1)]
    found = cluster_of(a=answer("a", 4 * MIB), b=other)
    assert {one.name for one in found.lines} >= {"/home/me/load.py:3 in load", "/home/you/load.py:3 in load"}


def test_the_timeline_sums_workers_at_the_same_moment(report: ClusterReport) -> None:
    assert report.timeline is not None
    # a and c begin at 100 s, b at 102 s. At 103 s all have their last or second sample.
    sums = dict(zip(report.timeline.at, report.timeline.figures["live"], strict=True))
    assert sums == {0.0: 0, 1.0: 26 * MIB, 2.0: 26 * MIB, 3.0: (16 + 8 + 61) * MIB, 5.0: 84 * MIB}
    assert report.timeline.figures["live"][report.timeline.peak] == 85 * MIB
    assert report.begin == 100.0


def test_an_arena_that_workers_share_counts_once() -> None:
    one, two = answer("a", 4 * MIB, process="p"), answer("b", 4 * MIB, process="p")
    for shared in (one, two):
        shared["arenas"][0]["workers"] = ["tcp://a", "tcp://b"]
    found = cluster_of(a=one, b=two)
    assert [(each.name, each.addresses) for each in found.arenas] == [("a, b", ["tcp://a", "tcp://b"])]
    assert found.account["live"] == 4 * MIB
    assert found.without == []


def test_workers_without_an_arena_and_missing_ones_are_named() -> None:
    empty = {**answer("10", 0), "arenas": []}
    missing = [Missing("x", "tcp://x", "no answer in 10 s")]
    gone = [
        {
            "name": "y",
            "address": "tcp://y",
            "host": "h",
            "at": 0.0,
            "ago": 65.0,
            "figures": {"live": MIB, "cap": 2 * MIB},
        }
    ]
    found = build("tcp://s", {"tcp://10": empty, "tcp://9": {**empty, "name": "9"}}, missing, gone)
    assert found.without == ["9", "10"]
    text = str(found)
    assert "No answer from worker x at tcp://x: no answer in 10 s" in text
    assert "Worker y at tcp://y left 1 min 5 s ago, last seen with 1 MiB live of a cap of" in " ".join(text.split())
    assert "No worker has an arena." in text
    assert repr(found) == "<arena.dask.ClusterReport of 0 arenas: 0 B live, 0 B of 0 B reserved, 1 worker missing>"
    assert "no answer in 10 s" in found._repr_html_()


def test_every_format_is_saved_and_the_json_is_read_back(report: ClusterReport, tmp_path: Path) -> None:
    assert report.save(tmp_path / "c.txt").read_text() == str(report)
    assert arena.load(report.save(tmp_path / "c.json")) == report
    assert report.save(tmp_path / "c.html").stat().st_size < 100_000
    with pytest.raises(arena.UsageError, match="already exists"):
        report.save(tmp_path / "c.html")
    with pytest.raises(arena.UsageError, match=r"does not end with \.html or \.json or \.txt"):
        report.save(tmp_path / "c.png")
    assert max(map(len, str(report).splitlines())) <= 80


def test_arena_report_shows_a_saved_cluster(report: ClusterReport, tmp_path: Path) -> None:
    saved = report.save(tmp_path / "c.json")
    shown = start_arena("report", str(saved)).stdout
    assert "Nearest to its cap is worker b" in " ".join(shown.split())
    done = start_arena("report", str(saved), "--save", str(tmp_path / "c.html"))
    assert "wrote" in done.stdout
    assert "What arena holds in the Dask cluster" in (tmp_path / "c.html").read_text()


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("version",), 2, "this report has version 2"),
        (("account", "live"), 1, "report.account does not add up"),
        (("arenas", 0, "account", "reserved"), 1, r"report.arenas\[0\].account does not add up"),
        (("arenas", 0, "device"), {}, r"report.arenas\[0\].device should have number"),
        (("arenas", 0, "peak"), {}, r"report.arenas\[0\].peak should have"),
        (("timeline", "peak"), 99, "report.timeline should have"),
        (("counts",), {}, "the counts of a report should have"),
        (("missing",), [1], r"report.missing\[0\]"),
    ],
)
def test_a_file_that_no_cluster_can_have_written_is_refused(
    report: ClusterReport, path: tuple[Any, ...], value: object, text: str
) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(arena.UsageError, match=text):
        ClusterReport.from_dict(data)


def test_the_report_of_a_cluster_is_what_its_workers_hold(make_cluster: MakeCluster) -> None:
    with make_cluster(2) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB", lines=True))
        kept = client.map(tasks.hold, [4 * MIB, 5 * MIB], pure=False)
        wait(kept)
        found = arena.dask.report(client)
        (one,) = found.arenas
        assert (one.name, one.account["live"], one.is_plugins) == ("0, 1", 9 * MIB, True)
        assert [(line.name, line.bytes) for line in found.lines] == [("tasks.py:18 in hold", 9 * MIB)]
        assert found.timeline is not None
        assert found.timeline.figures["live"][-1] == 9 * MIB
        assert abs(found.begin - time.time()) < 60
        assert found.missing == found.departed == []


def test_an_arena_that_a_task_created_is_listed_as_its_own(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client, arena.Arena(cap="32MiB", device=1) as pool, pool.allocate(MIB):
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        found = arena.dask.report(client)
        assert sorted((one.is_plugins, one.device["number"]) for one in found.arenas) == [(False, 1), (True, 0)]
        assert "(task's)" in " ".join(str(found).split())


def test_trim_returns_what_each_worker_gave_back(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB", growth="32MiB"))
        client.submit(tasks.request, 20 * MIB).result()
        given = arena.dask.trim(client)
        (address,) = client.scheduler_info()["workers"]
        assert given == {address: 20 * MIB}
        assert (given.total, given.missing) == (20 * MIB, [])
        assert str(given) == f"20 MiB returned by 1 worker\n  20 MiB by {address}"
        assert arena.dask.trim(client).total == 0
        client.register_plugin(ArenaPlugin(cap="64MiB", growth="32MiB", compact=False))
        (refused,) = arena.dask.trim(client, compact=True).missing
        assert "trim(compact=True) would move live data" in refused.reason


def test_a_worker_that_does_not_answer_in_time_is_named_and_holds_up_nothing(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(buckets: int, dask_worker: Any = None) -> dict[str, Any]:
        if dask_worker.name == 0:
            await asyncio.sleep(60)
        return await original(buckets, dask_worker)

    original = account.answer_with_accounts
    monkeypatch.setattr("arena._dask.cluster.answer_with_accounts", slow)
    with make_cluster(2) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        began = time.monotonic()
        found = arena.dask.report(client, timeout=0.3)
        assert time.monotonic() - began < 3
        assert [(one.name, one.reason) for one in found.missing] == [("0", "no answer in 0.3 s")]
        assert [one.account["cap"] for one in found.arenas] == [64 * MIB]
        assert "1 worker did not answer" in found.caption


def test_an_error_on_a_worker_is_its_reason(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(buckets: int, dask_worker: Any = None) -> dict[str, Any]:
        if dask_worker.name == 0:
            raise ValueError("broken\nin two lines")
        return {"version": 0, "name": "1"}

    monkeypatch.setattr("arena._dask.cluster.answer_with_accounts", broken)
    with make_cluster(2) as client:
        found = {one.name: one.reason for one in arena.dask.report(client).missing}
        assert found["0"] == "ValueError: broken"
        assert found["1"].startswith("its arena is of another version than the client's")


def test_a_cluster_without_the_plugin_or_without_workers_has_a_report(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        found = arena.dask.report(client)
        assert found.without == ["0"]
        assert found.notes[0].startswith("register the plugin")
    with make_cluster(0) as client:
        assert arena.dask.report(client).caption == "No worker has an arena."
        assert arena.dask.trim(client) == {}


def test_an_asynchronous_client_awaits_the_report(two_cards: None) -> None:
    async def program() -> ClusterReport:
        async with (
            LocalCluster(n_workers=1, processes=False, asynchronous=True, dashboard_address=":0") as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.register_plugin(ArenaPlugin(cap="64MiB"))
            made = await arena.dask.report(client)  # type: ignore[misc]
            assert (await arena.dask.trim(client)).total == 0  # type: ignore[misc]
            return made  # type: ignore[no-any-return]

    found = asyncio.run(program())
    assert [one.account["cap"] for one in found.arenas] == [64 * MIB]


def test_arguments_are_checked(make_cluster: MakeCluster) -> None:
    with pytest.raises(arena.UsageError, match=r"client=None is not accepted; give a distributed\.Client"):
        arena.dask.report(None)
    with make_cluster(0) as client:
        with pytest.raises(arena.UsageError, match="timeout='soon' is not a duration"):
            arena.dask.report(client, timeout="soon")
        with pytest.raises(arena.UsageError, match="compact=1 is not accepted"):
            arena.dask.trim(client, compact=1)  # type: ignore[arg-type]


def test_the_order_of_reports_does_not_depend_on_who_answered_first(report: ClusterReport) -> None:
    again = cluster_of(c=answer("c", 8 * MIB), b=answer("b", 60 * MIB, at=102.0), a=answer("a", 16 * MIB))
    assert dataclasses.replace(again, made=report.made) == dataclasses.replace(copy.deepcopy(report))
