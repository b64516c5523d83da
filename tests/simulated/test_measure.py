"""What ``arena measure`` finds on the simulated driver: its own prices, and which calls wait under load."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import arena
from arena import _core, sim
from arena._analysis.measure import SIZES, Measured, measure

MIB = 1 << 20
CALLS = (
    *("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressReserve"),
    *("cuMemAddressFree", "cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuEventRecord", "cuEventQuery"),
)
NOT_PRICED_BY_SIZE = ("cuMemAddressReserve", "cuMemAddressFree", "cuMemGetInfo", "cuEventRecord", "cuEventQuery")


@pytest.fixture
def started(machine: None) -> None:
    """The driver that arena opens stays open, and must be initialised again."""
    sim.restart()


def quick() -> Measured:
    sim.restart()
    return measure(rounds=4)


def idle(found: Measured) -> dict[tuple[str, int], float]:
    return {(row.call, row.size): row.idle.median for row in found.rows}


def nothing_is_left() -> None:
    census = sim.census()
    assert (census.handles, census.mappings, census.reservations, census.allocations) == (0, 0, 0, 0)
    assert (census.streams, census.events, census.contexts, sim.used()) == (0, 0, 0, 0)


@pytest.mark.parametrize("table", ["a100", "small", "free"])
def test_the_simulators_own_prices_are_measured(machine: None, tmp_path: Path, table: str) -> None:
    sim.configure(prices=table)
    found = quick()
    expected = {(call, 0): sim.price(call) for call in NOT_PRICED_BY_SIZE}
    expected |= {(call, size): sim.price(call, size) for call in CALLS if (call, 0) not in expected for size in SIZES}
    assert idle(found) == pytest.approx(expected)
    prices = {call: [sim.price(call, size * MIB) for size in range(2, 200, 3)] for call in CALLS}
    file = found.save(tmp_path / "m.prices")

    sim.configure(prices=file)
    again = {call: [sim.price(call, size * MIB) for size in range(2, 200, 3)] for call in CALLS}
    assert again == {call: pytest.approx(values, abs=0.001) for call, values in prices.items()}
    assert idle(quick()) == pytest.approx(idle(found), abs=0.001)


def test_measuring_leaves_nothing_behind_and_causes_no_finding(machine: None) -> None:
    before = sim.settings()
    quick()
    nothing_is_left()
    assert sim.settings() == before
    assert sim.peak() <= 200 * MIB


@pytest.mark.parametrize("waits", [False, True])
def test_calls_that_wait_for_queued_work_are_reported(machine: None, waits: bool) -> None:
    sim.configure(sync_unmap=waits)
    found = quick()
    waiting = {row.call for row in found.rows if row.load and row.waited == row.load.rounds}
    assert waiting == {"cuMemFree", *(("cuMemSetAccess", "cuMemUnmap") if waits else ())}
    unmap = next(row for row in found.rows if row.call == "cuMemUnmap")
    assert unmap.idle.median == 26
    assert unmap.load is not None
    assert (unmap.load.median > 1000) == waits
    assert waits == (sim.stalled().count > 0)


def test_without_virtual_memory_plain_allocations_are_measured(machine: None, tmp_path: Path) -> None:
    sim.configure(vmm=False)
    found = quick()
    assert {row.call for row in found.rows} == {
        *("cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuEventRecord", "cuEventQuery")
    }
    assert found.facts["virtual_memory"] == "not supported"
    nothing_is_left()


def test_sizes_are_multiples_of_the_granularity(machine: None) -> None:
    sim.configure(granularity="16MiB")
    assert quick().sizes == (32 * MIB, 64 * MIB)


def test_the_facts_say_what_was_measured(machine: None) -> None:
    facts = quick().facts
    assert facts["device"] == "Simulated CUDA device"
    assert facts["driver"] == "CUDA 13.0, simulated, prices a100"
    assert facts["rounds"] == "4 idle, 3 under load"
    assert (facts["clock"], facts["arena"], facts["memory"]) == ("virtual", arena.__version__, "8 GiB")
    assert facts["platform"].startswith("Linux ")
    assert len(facts["measured"]) == len("2026-11-18T10:00:00Z")


def test_too_little_memory_is_reported_before_anything_is_done(machine: None) -> None:
    sim.configure(memory="1GiB", other="900MiB")
    with pytest.raises(arena.UsageError, match="has 124 MiB free, but measuring needs 128 MiB"):
        quick()
    nothing_is_left()
    sim.configure(other="896MiB")
    quick()


MADE = (*CALLS, "cuEventCreate", "cuEventSynchronize", "cuStreamCreate", "cuStreamSynchronize", "cuMemsetD8Async")


@pytest.mark.parametrize("call", MADE)
def test_a_refusal_of_the_driver_is_reported_and_leaves_nothing_behind(started: None, call: str) -> None:
    sim.fail(call, "CUDA_ERROR_NOT_PERMITTED", nth=2)
    with pytest.raises(arena.DriverError, match=f"{call} failed: CUDA_ERROR_NOT_PERMITTED") as error:
        measure(rounds=4)
    assert error.value.call == call
    nothing_is_left()


@pytest.mark.parametrize("call", [*MADE, "cuEventDestroy", "cuStreamDestroy", "cuCtxPopCurrent"])
@pytest.mark.parametrize("nth", [1, 3, 13, 30, 31, 32, 33, 50])
def test_nothing_is_left_whichever_call_the_driver_refuses(started: None, call: str, nth: int) -> None:
    sim.fail(call, "CUDA_ERROR_NOT_PERMITTED", nth=nth)
    with contextlib.suppress(arena.DriverError):
        measure(rounds=3)
    nothing_is_left()


def test_a_device_that_fills_up_in_the_meantime_is_reported(started: None) -> None:
    sim.fail("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", nth=7)
    with pytest.raises(arena.DriverError, match="128 MiB must stay free on device 0"):
        measure(rounds=4)
    nothing_is_left()


def test_an_interrupt_leaves_nothing_behind(started: None) -> None:
    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == "under load" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(rounds=12, progress=interrupt)
    nothing_is_left()
    assert sim.settings().delay == 0


def test_the_time_limit_leaves_three_rounds(started: None) -> None:
    assert measure(seconds=0).facts["rounds"] == "3 idle, 3 under load"


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("5.15.167.4-microsoft-standard-WSL2", "Linux 5.15.167.4-microsoft-standard-WSL2 x86_64, WSL2"),
        ("6.8", "6.8 x86_64"),
    ],
)
def test_wsl_is_recognised(monkeypatch: pytest.MonkeyPatch, started: None, release: str, says: str) -> None:
    monkeypatch.setattr("platform.release", lambda: release)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert measure(rounds=3).facts["platform"].endswith(says)


def test_a_measurement_that_the_driver_ended_can_be_repeated(started: None) -> None:
    timer = _core.CallTimer(_core.default_driver(), 0)
    sim.fail("cuMemMap", nth=2)
    assert len(timer.virtual_round(2 * MIB)) == 7
    with pytest.raises(arena.DriverError, match="cuMemMap failed"):
        timer.virtual_round(2 * MIB)
    times = {call: (size, time) for call, size, time, _, _ in timer.virtual_round(8 * MIB)}
    assert times["cuMemCreate"] == (8 * MIB, pytest.approx(195.4))
    timer.close()
    timer.close()
    with pytest.raises(arena.UsageError, match="closed"):
        timer.other_round()
    nothing_is_left()
