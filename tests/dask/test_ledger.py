"""The scheduler's ledger: who shares a card, and who hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from arena._dask import ledger


class Scheduler:
    """As much of Dask's as the ledger uses."""

    def __init__(self) -> None:
        self.plugins: dict[str, Any] = {}
        self.workers: dict[str, Any] = {}
        self.stream_comms: dict[str, Any] = {}
        self.sent: list[tuple[str, int]] = []

    def add_plugin(self, plugin: Any, name: str) -> None:
        self.plugins[name] = plugin

    def worker_send(self, address: str, message: dict[str, Any]) -> None:
        assert message["op"] == ledger.SHARE
        self.sent.append((address, message["sharing"]))

    def start(self, address: str) -> None:
        self.workers[address] = SimpleNamespace(metrics={"arena": {"live": 7, "cap": 9}})
        self.stream_comms[address] = object()


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


def join(scheduler: Scheduler, address: str, device: int | None = 0, process: str = "") -> dict[str, Any]:
    if address not in scheduler.workers:
        scheduler.start(address)
    return ledger.join(address, address, "host", process or address, ["x", "y"], device, scheduler)


def test_those_on_a_card_hear_of_each_change_and_others_do_not(scheduler: Scheduler) -> None:
    assert join(scheduler, "a")["sharing"] == 1
    join(scheduler, "other", device=1)
    assert join(scheduler, "b")["sharing"] == 2
    assert join(scheduler, "c")["sharing"] == 3
    assert scheduler.sent == [("a", 2), ("a", 3), ("b", 3)]
    ledger.leave("a", scheduler)
    assert scheduler.sent[3:] == [("b", 2), ("c", 2)]


def test_versions_grow_so_that_old_news_can_be_told_from_new(scheduler: Scheduler) -> None:
    versions = [join(scheduler, name)["version"] for name in "abcab"]
    assert versions == sorted(set(versions))


def test_workers_of_one_process_count_once(scheduler: Scheduler) -> None:
    join(scheduler, "a", process="one")
    assert join(scheduler, "b", process="one")["sharing"] == 1
    ledger.leave("a", scheduler)
    assert scheduler.plugins["arena"].sharing("x") == 1


def test_round_robin_picks_the_device_that_the_fewest_use(scheduler: Scheduler) -> None:
    assert [join(scheduler, name, device=None)["device"] for name in "abcd"] == [0, 1, 0, 1]
    ledger.leave("b", scheduler)
    assert join(scheduler, "e", device=None)["device"] == 1
    ledger.leave("a", scheduler)
    assert join(scheduler, "e", device=None)["device"] == 1  # it keeps its seat


def test_a_worker_that_moves_to_another_card_leaves_the_first(scheduler: Scheduler) -> None:
    join(scheduler, "a")
    join(scheduler, "b")
    join(scheduler, "b", device=1)
    assert scheduler.sent == [("a", 2), ("a", 1)]


def test_a_worker_that_is_not_registered_yet_hears_when_it_is(scheduler: Scheduler) -> None:
    ledger.join("early", "early", "host", "early", ["x"], 0, scheduler)
    join(scheduler, "b")
    assert scheduler.sent == []
    scheduler.start("early")
    scheduler.plugins["arena"].add_worker(scheduler, "early")
    assert ("early", 2) in scheduler.sent


def test_a_worker_that_dies_is_remembered_with_its_last_heartbeat(scheduler: Scheduler) -> None:
    join(scheduler, "a")
    join(scheduler, "b")
    del scheduler.workers["b"], scheduler.stream_comms["b"]
    scheduler.plugins["arena"].remove_worker(scheduler, "b", stimulus_id="any")
    (gone,) = ledger.departed(scheduler)
    assert (gone["name"], gone["figures"]) == ("b", {"live": 7, "cap": 9})
    assert gone["ago"] >= 0
    assert scheduler.sent[-1] == ("a", 1)
    scheduler.plugins["arena"].restart(scheduler)
    assert ledger.departed(scheduler) == []


def test_a_scheduler_without_a_ledger_knows_of_nobody_who_left(scheduler: Scheduler) -> None:
    assert ledger.departed(scheduler) == []
