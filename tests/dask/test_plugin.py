"""The plugin in a cluster whose workers are threads of this process: they share one arena per device."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client, wait

import arena
from arena import sim
from arena._dask import seat
from arena._dask.held import all_held
from arena.dask import ArenaPlugin

from . import tasks
from .conftest import MakeCluster
from .tasks import MIB


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def ask(client: Client, function: Callable[..., Any], *arguments: Any) -> Any:
    return client.submit(function, *arguments, pure=False).result()


def test_every_worker_has_an_arena_and_it_is_the_default_of_its_device(make_cluster: MakeCluster) -> None:
    with make_cluster() as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        found = ask(client, tasks.settings_of_arena)
        assert (found["device"], found["cap"], found["is_default"]) == (0, 64 * MIB, True)
        buffer = client.submit(tasks.hold, 3 * MIB)
        wait(buffer)
        assert ask(client, tasks.settings_of_arena)["live"] == 3 * MIB
        del buffer
        until(lambda: bool(ask(client, tasks.settings_of_arena)["live"] == 0))
        ask(client, tasks.validate)


def test_workers_of_one_process_share_one_arena_that_the_last_one_closes(make_cluster: MakeCluster) -> None:
    with make_cluster(3) as client:
        client.register_plugin(ArenaPlugin(cap="50%"))
        assert ask(client, tasks.settings_of_arena)["cap"] == 4 << 30  # not divided: it is one process
        (held,) = all_held()
        assert len(held.workers) == 3
        client.cluster.scale(1)
        until(lambda: len(held.workers) == 1)
        assert held.pool.stats().cap == 4 << 30
        pool = held.pool
    with pytest.raises(arena.UsageError, match="closed"):
        pool.stats()


def test_a_worker_that_joins_later_gets_the_arena_too(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        client.cluster.scale(2)
        until(lambda: len(all_held()[0].workers) == 2)


def test_registering_twice_changes_nothing(make_cluster: MakeCluster) -> None:
    with make_cluster() as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        before = ask(client, tasks.settings_of_arena)
        buffer = client.submit(tasks.hold, MIB)
        wait(buffer)
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        assert ask(client, tasks.settings_of_arena)["number"] == before["number"]
        assert ask(client, tasks.settings_of_arena)["live"] == MIB


def test_a_new_cap_is_set_under_live_data(make_cluster: MakeCluster) -> None:
    with make_cluster() as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        buffer = client.submit(tasks.hold, 40 * MIB)
        wait(buffer)
        before = ask(client, tasks.settings_of_arena)
        client.register_plugin(ArenaPlugin(cap="96MiB", reserve="80MiB"))
        after = ask(client, tasks.settings_of_arena)
        assert (after["number"], after["cap"], after["live"]) == (before["number"], 96 * MIB, 40 * MIB)
        assert after["reserved"] >= 80 * MIB


def test_what_cannot_change_under_live_data_is_refused_and_the_arena_stays(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        buffer = client.submit(tasks.hold, MIB)
        wait(buffer)
        before = ask(client, tasks.settings_of_arena)
        with pytest.raises(arena.UsageError) as caught:
            client.register_plugin(ArenaPlugin(cap="96MiB", growth="2MiB", compact=False))
        assert "Dask worker 0 at inproc://" in str(caught.value)
        assert "growth=, compact= cannot change while the arena of device 0 holds 1 MiB of live data" in str(
            caught.value
        )
        assert ask(client, tasks.settings_of_arena) == before
        del buffer
        until(lambda: bool(ask(client, tasks.settings_of_arena)["live"] == 0))
        client.register_plugin(ArenaPlugin(cap="96MiB", growth="2MiB", compact=False))
        after = ask(client, tasks.settings_of_arena)
        assert (after["number"] != before["number"], after["cap"]) == (True, 96 * MIB)


def test_an_arena_that_a_framework_keeps_stays_open(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        before = ask(client, tasks.settings_of_arena)
        monkeypatch.setattr(arena.torch, "_allocator", object())  # PyTorch uses it
        with pytest.raises(arena.UsageError, match="growth= cannot change because PyTorch keeps the arena"):
            client.register_plugin(ArenaPlugin(cap="64MiB", growth="2MiB"))
        client.unregister_worker_plugin("arena")
        assert arena.default_arena(0)._number == before["number"]
        client.register_plugin(ArenaPlugin(cap="32MiB"))
        after = ask(client, tasks.settings_of_arena)
        assert (after["number"], after["cap"]) == (before["number"], 32 * MIB)
        monkeypatch.undo()


def test_an_arena_that_a_task_closed_is_replaced_by_registering_again(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        ask(client, tasks.close_own_arena)
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        assert ask(client, tasks.settings_of_arena)["cap"] == 64 * MIB


def test_without_the_plugin_the_default_arena_is_the_one_from_before(make_cluster: MakeCluster) -> None:
    mine = arena.default_arena(0)
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        assert arena.default_arena(0) is not mine
        client.unregister_worker_plugin("arena")
        assert arena.default_arena(0) is mine
        assert all_held() == []
        until(lambda: not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins["arena"].seats))
        with pytest.raises(arena.UsageError, match="there is no arena of a Dask worker here"):
            ask(client, tasks.hold, 1)
        client.register_plugin(ArenaPlugin(cap="32MiB"))
        assert ask(client, tasks.settings_of_arena)["cap"] == 32 * MIB
    assert arena.default_arena(0) is mine
    mine.close()


def test_data_outlives_the_plugin(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        buffer = client.submit(tasks.hold, MIB)
        wait(buffer)
        client.unregister_worker_plugin("arena")
        assert sim.used(0) > 0
        del buffer
        until(lambda: sim.used(0) == 0)


def test_the_device_may_be_a_number_or_a_function_of_the_worker(make_cluster: MakeCluster) -> None:
    with make_cluster(2) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB", device=1))
        assert ask(client, tasks.settings_of_arena)["device"] == 1
        client.register_plugin(ArenaPlugin(cap="64MiB", device=lambda worker: worker.name % 2))
        assert [found.seat.device for found in all_held()] == [0, 1]
        assert [len(found.workers) for found in all_held()] == [1, 1]
        with pytest.raises(arena.UsageError, match="device=7 does not exist; this machine has 2 devices"):
            client.register_plugin(ArenaPlugin(cap="64MiB", device=7))


def test_a_worker_does_not_leave_live_data_behind_on_another_device(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB", device="round-robin"))
        buffer = client.submit(tasks.hold, MIB)
        wait(buffer)
        client.register_plugin(ArenaPlugin(cap="32MiB", device="round-robin"))
        with pytest.raises(arena.UsageError, match="device= cannot change while the arena of device 0 holds 1 MiB"):
            client.register_plugin(ArenaPlugin(cap="64MiB", device=1))
        found = ask(client, tasks.settings_of_arena)
        assert (found["device"], found["cap"], found["live"]) == (0, 32 * MIB, MIB)


def test_a_reserve_for_which_there_is_no_room_is_an_error_that_names_the_worker(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client, arena.Arena(cap="7GiB", reserve="7GiB"):
        with pytest.raises(arena.OutOfMemoryError, match=r"On Dask worker 0 at .*, which sets up its arena"):
            client.register_plugin(ArenaPlugin(cap="4GiB", reserve="2GiB"))
        client.register_plugin(ArenaPlugin(cap="4GiB", reserve="512MiB"))
        assert ask(client, tasks.settings_of_arena)["reserved"] == 512 * MIB


def test_settings_that_contradict_each_other_are_an_error_that_names_the_worker(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client, pytest.raises(arena.UsageError, match=r"Dask worker 0 at .*cap=.* is more than"):
        client.register_plugin(ArenaPlugin(cap="9GiB"))


def test_out_of_memory_names_the_worker_and_the_task(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        future = client.submit(tasks.request, 65 * MIB, key="greedy")
        error = future.exception()
        assert type(error) is arena.OutOfMemoryError
        (address,) = client.scheduler_info()["workers"]
        assert f"\nOn Dask worker 0 at {address}, in the task greedy\n" in str(error)
        assert (error.verdict, error.requested) == ("cap reached", 65 * MIB)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        with arena.Arena(device="sim:1GiB", cap="2MiB") as pool, pytest.raises(MemoryError) as caught:
            pool.allocate(4 * MIB)
        assert "On Dask worker 0" in str(caught.value)  # the only one here
    with arena.Arena(device="sim:1GiB", cap="2MiB") as pool, pytest.raises(MemoryError) as caught:
        pool.allocate(4 * MIB)
    assert "Dask" not in str(caught.value)


def test_a_task_that_was_out_of_memory_is_tried_again(make_cluster: MakeCluster) -> None:
    tasks.attempts.clear()
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        assert client.submit(tasks.pass_at_second_attempt, 40 * MIB, retries=2).result() == 2
        ask(client, tasks.validate)


def test_many_tasks_may_run_at_once_in_a_worker(make_cluster: MakeCluster) -> None:
    with make_cluster(1, threads_per_worker=4) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        wait(client.map(tasks.request, [(number % 9 + 1) * 100_000 for number in range(200)], pure=False))
        ask(client, tasks.validate)
        assert ask(client, tasks.settings_of_arena)["live"] == 0


def test_bytes_need_nothing_from_the_scheduler_and_shares_say_what_they_need(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*arguments: Any) -> Any:
        raise ModuleNotFoundError("No module named 'arena'")

    monkeypatch.setattr(seat, "_run_on_scheduler", refuse)
    with make_cluster(1) as client:
        client.register_plugin(ArenaPlugin(cap="64MiB"))
        assert ask(client, tasks.settings_of_arena)["cap"] == 64 * MIB
        with pytest.raises(arena.UsageError, match=r"needs arena on the scheduler, too.*No module named 'arena'"):
            client.register_plugin(ArenaPlugin(cap="50%"))
        with pytest.raises(arena.UsageError, match='device="round-robin" needs arena on the scheduler'):
            client.register_plugin(ArenaPlugin(cap="64MiB", device="round-robin"))


def test_get_arena_outside_of_a_worker_says_where_to_call_it() -> None:
    with pytest.raises(arena.UsageError, match=r"there is no arena of a Dask worker here; call it in a task, after"):
        arena.dask.get_arena()


def test_the_settings_apply_to_the_arena(make_cluster: MakeCluster) -> None:
    with make_cluster(1) as client:
        client.register_plugin(
            ArenaPlugin("64MiB", "16MiB", "1GiB", "4MiB", compact=False, vmm=False, peers=[], timeline=False, lines=2)
        )
        (held,) = all_held()
        stats = held.pool.stats()
        assert (stats.cap, stats.headroom, held.pool.vmm, held.pool.peers) == (64 * MIB, 1 << 30, False, [])
        assert stats.reserved == 16 * MIB
        assert held.pool._watched is None
        buffer = client.submit(tasks.hold, 1000)
        wait(buffer)
        (line,) = held.pool.report().lines
        assert line.name.startswith("tasks.py:")
        assert "distributed" not in line.name
        client.register_plugin(
            ArenaPlugin("64MiB", "16MiB", "1GiB", "4MiB", compact=False, vmm=False, peers=[], timeline=True)
        )
        assert held.pool._watched is not None


def test_two_clusters_in_one_process_share_the_arena(make_cluster: MakeCluster) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(make_cluster(1)) for _ in range(2))
        first.register_plugin(ArenaPlugin(cap="64MiB"))
        second.register_plugin(ArenaPlugin(cap="64MiB"))
        assert len(all_held()) == 1
        second.unregister_worker_plugin("arena")
        assert ask(first, tasks.settings_of_arena)["cap"] == 64 * MIB
