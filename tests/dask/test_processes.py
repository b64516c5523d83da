"""Workers in processes of their own, on two simulated cards: they share them, come, go, hang and die."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, wait

import arena
from arena.dask import ArenaPlugin

from ..programs import ROOT, run
from . import tasks
from .conftest import open_cluster
from .tasks import MIB
from .test_plugin import until

WORKERS = 8
GIB = 1 << 30
SETTINGS: dict[str, Any] = {"cap": "50%", "device": "round-robin", "lines": True}


@pytest.fixture(scope="module")
def eight() -> Iterator[Client]:
    """Eight workers with nannies, on two cards. Tests leave eight."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("ARENA_", "CUDASIM_"))]:
            patch.delenv(name)
        patch.setenv("ARENA_DRIVER", "sim")
        patch.setenv("CUDASIM_DEVICES", "2")
        patch.setenv("CUDASIM_DEAD", "abort")
        with open_cluster(WORKERS, processes=True) as client:
            yield client


@pytest.fixture
def client(eight: Client) -> Iterator[Client]:
    eight.wait_for_workers(WORKERS, timeout=60)
    eight.register_plugin(ArenaPlugin(**SETTINGS))
    until_divided(eight, {0: WORKERS // 2, 1: WORKERS // 2})
    yield eight
    eight.run(tasks.validate)


def seats(client: Client) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = client.run(tasks.settings_of_arena, on_error="ignore")
    return found


def until_divided(client: Client, workers: dict[int, int]) -> None:
    """Wait until so many workers use each device, and half of it is divided among them."""

    def is_divided() -> bool:
        found = seats(client).values()
        many = Counter(seat["device"] for seat in found)
        return many == workers and all(seat["cap"] == 4 * GIB // many[seat["device"]] for seat in found)

    with contextlib.suppress(AssertionError):
        until(is_divided, seconds=30)
    assert is_divided(), seats(client)


@contextlib.contextmanager
def without_nanny(client: Client, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another worker, which nobody restarts."""
    code = "from distributed.cli.dask_worker import main; main()"
    options = ["--no-nanny", "--nthreads", "1", "--name", name, "--no-dashboard"]
    command = [sys.executable, "-W", "ignore", "-c", code, client.scheduler.address, *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            client.wait_for_workers(WORKERS + 1, timeout=60)
            yield process
        finally:
            process.kill()


def test_workers_divide_the_cards_and_hear_when_one_joins_or_dies(client: Client) -> None:
    assert len({seat["process"] for seat in seats(client).values()}) == WORKERS
    assert {seat["cap"] for seat in seats(client).values()} == {GIB}
    with without_nanny(client, "late") as process:
        until_divided(client, {0: 5, 1: 4})
        process.send_signal(signal.SIGKILL)
        process.wait()
        until_divided(client, {0: 4, 1: 4})
    found = arena.dask.report(client)
    assert [one.name for one in found.departed[:1]] == ["late"]
    assert "Worker late at tcp://" in str(found)


def test_a_cap_in_bytes_and_a_given_number_of_workers_are_not_divided_by_anyone(client: Client) -> None:
    client.register_plugin(ArenaPlugin(**{**SETTINGS, "workers_per_device": 16}))
    assert {seat["cap"] for seat in seats(client).values()} == {4 * GIB // 16}
    client.register_plugin(ArenaPlugin(**{**SETTINGS, "cap": "300MiB"}))
    assert {seat["cap"] for seat in seats(client).values()} == {300 * MIB}
    client.register_plugin(ArenaPlugin(**SETTINGS))
    until_divided(client, {0: 4, 1: 4})


def test_the_report_sums_lines_and_memory_over_all_processes(client: Client) -> None:
    addresses = list(seats(client))
    kept = [client.submit(tasks.hold, (n + 1) * MIB, workers=[at], pure=False) for n, at in enumerate(addresses)]
    wait(kept)
    found = arena.dask.report(client)
    assert found.missing == []
    assert len(found.arenas) == WORKERS
    assert found.arenas[0].addresses == [addresses[-1]]  # it holds the most
    assert (found.account["live"], found.account["cap"]) == (36 * MIB, 8 * GIB)
    assert [(one.name, one.bytes, one.blocks, one.arenas) for one in found.lines] == [
        ("tasks.py:18 in hold", 36 * MIB, 8, 8)
    ]
    assert {one.sharing for one in found.arenas} == {4}
    assert len({one.device["card"] for one in found.arenas}) == 2
    assert found.timeline is not None
    assert found.timeline.figures["live"][-1] == 36 * MIB
    assert found.timeline.at == sorted(found.timeline.at)


def test_a_worker_killed_in_the_middle_is_named_and_the_others_go_on(client: Client) -> None:
    processes = {address: seat["process"] for address, seat in seats(client).items()}
    (victim, *_) = processes
    kept = client.map(tasks.hold, [MIB] * 40, pure=False)
    running = client.map(tasks.nap, [0.05] * 80, pure=False)
    time.sleep(0.2)
    os.kill(processes[victim], signal.SIGKILL)
    began = time.monotonic()
    found = arena.dask.report(client)
    assert time.monotonic() - began < 8
    named = {one.address for one in [*found.missing, *found.departed]}
    assert victim in named or victim in {address for one in found.arenas for address in one.addresses}
    assert len(found.arenas) + len(found.missing) >= WORKERS - 1
    wait(running)
    wait(kept)  # those that were lost are computed again
    client.wait_for_workers(WORKERS, timeout=60)
    until_divided(client, {0: 4, 1: 4})
    later = arena.dask.report(client)
    assert victim in {one.address for one in later.departed}
    assert (later.missing, len(later.arenas), later.account["live"]) == ([], WORKERS, 40 * MIB)


def test_a_worker_that_hangs_is_named_after_the_timeout(client: Client) -> None:
    address, process = next((address, seat["process"]) for address, seat in seats(client).items())
    os.kill(process, signal.SIGSTOP)
    try:
        found = arena.dask.report(client, timeout="1s")
        given = arena.dask.trim(client, timeout="1s")
    finally:
        os.kill(process, signal.SIGCONT)
    assert [(one.address, one.reason) for one in found.missing] == [(address, "no answer in 1 s")]
    assert [one.address for one in given.missing] == [address]
    assert len(found.arenas) == len(given) == WORKERS - 1
    until(lambda: len(seats(client)) == WORKERS)


def test_out_of_memory_reaches_the_client_whole_and_a_retry_may_pass_elsewhere(client: Client) -> None:
    address = next(iter(seats(client)))
    error = client.submit(tasks.request, 2 * GIB, workers=[address], key="greedy").exception()
    assert isinstance(error, arena.OutOfMemoryError)
    assert isinstance(error, MemoryError)
    assert f" at {address}, in the task greedy" in str(error)
    assert error.line == "tasks.py:26 in request"
    passed = client.submit(tasks.pass_at_second_attempt, 600 * MIB, workers=[address], retries=1)
    assert passed.result() == 2


def test_cupy_gets_its_memory_from_the_workers_arena(client: Client) -> None:
    address = next(address for address, seat in seats(client).items() if seat["device"] == 0)
    kept = client.submit(tasks.hold_with_cupy, 3 * MIB, workers=[address])
    wait(kept)
    found = arena.dask.report(client)
    assert [(one.name, one.bytes) for one in found.frameworks] == [("CuPy", 3 * MIB)]
    assert [(one.name.partition(":")[0], one.bytes) for one in found.lines] == [("tasks.py", 3 * MIB)]
    assert "by framework" in str(found)


def test_a_restart_gives_every_worker_a_new_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_DRIVER", "sim")
    with open_cluster(2, processes=True) as client:
        client.register_plugin(ArenaPlugin(cap="50%", device=0))
        kept = client.submit(tasks.hold, MIB)
        wait(kept)
        before = {seat["process"] for seat in seats(client).values()}
        client.restart()
        until_divided(client, {0: 2})
        after = seats(client)
        assert {seat["process"] for seat in after.values()} & before == set()
        assert {seat["live"] for seat in after.values()} == {0}
        assert arena.dask.report(client).departed == []  # that was on purpose


def test_the_program_in_the_guide_runs() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/dask.md").read_text(), re.M | re.S)
    done = run(program, ARENA_DRIVER="sim", check=True)
    assert "2 arenas on 1 card: 0 B live, 0 B of 4 GiB reserved." in done.stdout
    assert done.stderr == ""
