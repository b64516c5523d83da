"""The race checker finds everything that is not ordered, whatever the timing, and nothing else."""

from __future__ import annotations

import ctypes
import itertools
import random
import re
import threading

import pytest

from arena import sim

from ..programs import run
from .cu import LEGACY, MIB, Cu


class Pool:
    """A pool of equal blocks. The wrong kind gives a block to any stream at once, the right kind behind a wait."""

    def __init__(self, cu: Cu, blocks: int, *, waits: bool) -> None:
        self.cu, self.waits = cu, waits
        self.free = [(cu.alloc(4096), None) for _ in range(blocks)]

    def take(self, stream: int) -> int:
        block, freed_on = self.free.pop()
        if self.waits and freed_on not in (None, stream):
            event = self.cu.event()
            self.cu.ok("cuEventRecord", event, freed_on)
            self.cu.ok("cuStreamWaitEvent", stream, event, 0)
            self.cu.ok("cuEventDestroy", event)
        return block

    def give(self, block: int, stream: int) -> None:
        self.free.append((block, stream))


def use_two_streams(cu: Cu, seed: int, *, waits: bool) -> None:
    """Take, fill and return blocks on two streams at random; at least one block changes its stream."""
    choose = random.Random(seed)
    streams = [cu.stream(), cu.stream()]
    pool = Pool(cu, 3, waits=waits)
    for stream in [*streams, *choose.choices(streams, k=20)]:
        block = pool.take(stream)
        cu.ok("cuMemsetD8Async", block, choose.randrange(256), choose.randrange(1, 4096), stream)
        pool.give(block, stream)
    cu.ok("cuCtxSynchronize_v2", 0)


def test_a_pool_that_reuses_memory_too_early_is_found_in_every_trial(cu: Cu) -> None:
    found = 0
    for seed in range(100):
        use_two_streams(cu, seed, waits=False)
        found += sim.race_count() > 0
        sim.clear_races()
    assert found == 100


def test_a_pool_that_waits_is_never_accused(cu: Cu) -> None:
    for seed in range(100):
        use_two_streams(cu, seed, waits=True)
        assert sim.races() == []


def test_a_report_names_both_operations_their_streams_and_the_addresses(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(8192)
    other = cu.alloc(8192)
    cu.ok("cuMemsetD8Async", address, 1, 4096, one)
    cu.ok("cuMemcpyDtoDAsync", other, address + 1000, 5000, two)
    [race] = sim.races()
    sim.clear_races()
    assert (race.kind, race.first.operation, race.second.operation) == (
        "race",
        "cuMemsetD8Async",
        "cuMemcpyDtoDAsync",
    )
    assert (race.first.stream, race.second.stream) == (one, two)
    assert (race.first.access, race.second.access) == ("write", "read")
    assert (race.first.begin, race.first.end) == (address + 1000, address + 4096)
    assert (race.second.begin, race.second.end) == (address + 1000, address + 4096)
    assert race.first.number < race.second.number
    text = str(race)
    assert all(
        word in text for word in ("cuMemsetD8Async", "cuMemcpyDtoDAsync", hex(one), hex(two), hex(address + 1000))
    )


def test_a_write_after_a_read_is_a_race_and_two_reads_are_not(cu: Cu) -> None:
    one, two, address, other = cu.stream(), cu.stream(), cu.alloc(4096), cu.alloc(8192)
    cu.ok("cuMemcpyDtoDAsync", other, address, 4096, one)
    cu.ok("cuMemcpyDtoDAsync", other + 4096, address, 4096, two)
    assert sim.races() == []
    cu.ok("cuMemsetD8Async", address, 1, 4096, two)
    [race] = sim.races()
    assert (race.first.access, race.second.access, race.first.stream) == ("read", "write", one)
    sim.clear_races()


def test_neighbouring_accesses_do_not_race(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(4096)
    cu.ok("cuMemsetD8Async", address, 1, 100, one)
    cu.ok("cuMemsetD8Async", address + 100, 2, 100, two)
    assert sim.races() == []


def test_waiting_on_the_host_orders_accesses(cu: Cu) -> None:
    one, two, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(4096)
    waits = [
        lambda: cu.ok("cuStreamSynchronize", one),
        lambda: cu.ok("cuCtxSynchronize_v2", 0),
        lambda: (cu.ok("cuEventRecord", event, one), cu.ok("cuEventSynchronize", event)),
        lambda: (cu.ok("cuEventRecord", event, one), poll(cu, "cuEventQuery", event)),
        lambda: poll(cu, "cuStreamQuery", one),
    ]
    for wait in waits:
        cu.ok("cuMemsetD8Async", address, 1, 4096, one)
        wait()
        cu.ok("cuMemsetD8Async", address, 2, 4096, two)
        cu.ok("cuStreamSynchronize", two)
        assert sim.races() == []


def poll(cu: Cu, function: str, handle: int) -> None:
    while getattr(cu, function)(handle) != "CUDA_SUCCESS":
        pass


def test_an_event_orders_only_what_came_before_its_record(cu: Cu) -> None:
    one, two, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(4096)
    cu.ok("cuEventRecord", event, one)
    cu.ok("cuMemsetD8Async", address, 1, 4096, one)
    cu.ok("cuStreamWaitEvent", two, event, 0)
    cu.ok("cuMemsetD8Async", address, 2, 4096, two)
    assert sim.race_count() == 1
    sim.clear_races()


def test_a_chain_of_events_orders_accesses(cu: Cu) -> None:
    streams, address = [cu.stream() for _ in range(5)], cu.alloc(4096)
    cu.ok("cuMemsetD8Async", address, 1, 4096, streams[0])
    for before, after in itertools.pairwise(streams):
        event = cu.event()
        cu.ok("cuEventRecord", event, before)
        cu.ok("cuStreamWaitEvent", after, event, 0)
    cu.ok("cuMemsetD8Async", address, 2, 4096, streams[-1])
    assert sim.races() == []


def test_the_legacy_stream_orders_blocking_streams_and_not_others(cu: Cu) -> None:
    blocking, free, address = cu.stream(non_blocking=False), cu.stream(), cu.alloc(4096)
    cu.ok("cuMemsetD8Async", address, 1, 4096, blocking)
    cu.ok("cuMemsetD8Async", address, 2, 4096, LEGACY)
    assert sim.races() == []
    cu.ok("cuMemsetD8Async", address, 3, 4096, free)
    assert sim.race_count() >= 1
    sim.clear_races()


def test_unmapping_under_queued_work_is_reported(cu: Cu) -> None:
    stream = cu.stream()
    address, _ = cu.mapped()
    cu.ok("cuMemsetD8Async", address, 1, 64, stream)
    cu.ok("cuMemUnmap", address, 2 * MIB)
    [race] = sim.races()
    sim.clear_races()
    assert (race.kind, race.first.operation, race.first.stream) == ("removed", "cuMemsetD8Async", stream)
    assert (race.second.operation, race.second.begin) == ("cuMemUnmap", address)


def test_unmapping_after_waiting_is_not_reported(cu: Cu) -> None:
    stream = cu.stream()
    address, _ = cu.mapped()
    cu.ok("cuMemsetD8Async", address, 1, 64, stream)
    cu.ok("cuStreamSynchronize", stream)
    cu.ok("cuMemUnmap", address, 2 * MIB)
    assert sim.races() == []


def test_a_handle_carries_its_history_to_another_address(cu: Cu) -> None:
    one, two = cu.stream(), cu.stream()
    address, handle = cu.mapped()
    alias = cu.reserve(2 * MIB)
    cu.map(alias, handle)
    cu.allow(alias)
    cu.ok("cuMemsetD8Async", address, 1, 64, one)
    cu.ok("cuMemsetD8Async", alias, 2, 64, two)
    [race] = sim.races()
    assert (race.first.begin, race.second.begin) == (address, alias)
    sim.clear_races()


def test_pool_memory_used_on_another_stream_before_its_allocation_is_reached_is_reported(cu: Cu) -> None:
    one, two = cu.stream(), cu.stream()
    address = cu.out("cuMemAllocAsync", MIB, one)
    cu.ok("cuMemsetD8Async", address, 1, MIB, two)
    assert [race.first.operation for race in sim.races()] == ["cuMemAllocAsync"]
    sim.clear_races()
    cu.ok("cuMemFreeAsync", address, one)  # and so is a free that does not wait for that use
    assert [(r.first.operation, r.second.operation) for r in sim.races()] == [("cuMemsetD8Async", "cuMemFreeAsync")]
    sim.clear_races()


def test_work_from_before_the_checker_was_on_is_never_reported(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(4096)
    sim.configure(races=False)
    cu.ok("cuMemsetD8Async", address, 1, 4096, one)
    sim.configure(races=True)
    cu.ok("cuMemsetD8Async", address, 2, 4096, two)
    assert sim.races() == []


def test_many_short_lived_streams_cost_nothing_in_the_end(cu: Cu) -> None:
    address = cu.alloc(4096)
    for i in range(2000):
        stream = cu.stream()
        cu.ok("cuMemsetD8Async", address, i % 256, 4096, stream)
        cu.ok("cuStreamSynchronize", stream)
        cu.ok("cuStreamDestroy", stream)
    assert sim.races() == []
    assert sim.census().streams == 0


def test_only_the_first_thousand_reports_are_kept_and_all_are_counted(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(4096)
    for i in range(600):
        cu.ok("cuMemsetD8Async", address, i % 256, 64, one)
        cu.ok("cuMemsetD8Async", address, i % 256, 64, two)
    assert sim.race_count() == 1199
    assert len(sim.races()) == 1000
    sim.clear_races()
    assert sim.race_count() == 0


PRINTED = """
from tests.simulated.cu import Cu
cu = Cu()
cu.start()
one, two, address = cu.stream(), cu.stream(), cu.alloc(512)
cu.ok("cuMemsetD8Async", address, 1, 512, one)
cu.ok("cuMemsetD8Async", address, 1, 512, two)
"""


def test_reports_can_be_printed_as_they_come() -> None:
    done = run(PRINTED, CUDASIM_RACES="print")
    assert re.fullmatch(
        r"cudasim: race: cuMemsetD8Async \(write of \[0x\w+, 0x\w+\), stream 0x\w+\) "
        r"is not ordered after cuMemsetD8Async \(write of \[0x\w+, 0x\w+\), stream 0x\w+\)\n",
        done.stderr,
    )
    assert run(PRINTED, CUDASIM_RACES="1").stderr == ""


@pytest.mark.parametrize("delay", [0, 200])
def test_random_ordered_programs_give_no_report_and_the_right_bytes(cu: Cu, delay: int) -> None:
    choose = random.Random(delay)
    streams, size = [cu.stream() for _ in range(4)], 16 * 512
    address, model = cu.alloc(size), bytearray(size)
    last: dict[int, int] = {}  # slot → stream that touched it last
    with sim.temporarily(delay=delay):
        for _ in range(150):
            stream, slot, value = choose.choice(streams), choose.randrange(16), choose.randrange(256)
            if last.get(slot, stream) != stream:
                event = cu.event()
                cu.ok("cuEventRecord", event, last[slot])
                cu.ok("cuStreamWaitEvent", stream, event, 0)
                cu.ok("cuEventDestroy", event)
            cu.ok("cuMemsetD8Async", address + slot * 512, value, 512, stream)
            model[slot * 512 : slot * 512 + 512] = bytes([value]) * 512
            last[slot] = stream
        cu.ok("cuCtxSynchronize_v2", 0)
    assert cu.read(address, size) == bytes(model)
    assert sim.race_count() == 0


@pytest.mark.parametrize("function", ["cuMemsetD8", "cuMemcpyDtoD", "cuMemcpyHtoD"])
def test_a_synchronous_call_that_stays_on_the_device_does_not_count_as_a_wait(cu: Cu, function: str) -> None:
    (address, _), source = cu.mapped(), cu.alloc(4096)
    argument = {"cuMemsetD8": 1, "cuMemcpyDtoD": source, "cuMemcpyHtoD": b"x" * 4096}[function]
    cu.ok(function, address, argument, 4096)
    cu.ok("cuMemUnmap", address, 2 * MIB)
    assert [(race.kind, race.first.operation) for race in sim.races()] == [("removed", function)]
    sim.clear_races()
    sim.reset()  # the work may have met the unmapped address


def test_a_copy_to_the_host_or_from_pinned_memory_counts_as_a_wait(cu: Cu) -> None:
    pinned = cu.out("cuMemHostAlloc", 4096, 0)
    for use in (lambda a: cu.read(a, 64), lambda a: cu.ok("cuMemcpyHtoD", a, ctypes.c_void_p(pinned), 64)):
        address, _ = cu.mapped()
        use(address)
        cu.ok("cuMemUnmap", address, 2 * MIB)
        assert sim.races() == []


def test_unmapping_one_of_two_addresses_does_not_wait_for_work_at_the_other(cu: Cu) -> None:
    stream = cu.stream()
    address, handle = cu.mapped()
    alias = cu.reserve(2 * MIB)
    cu.map(alias, handle)
    cu.allow(alias)
    cu.ok("cuMemsetD8Async", address, 1, 64, stream)
    cu.ok("cuMemUnmap", alias, 2 * MIB)
    assert sim.races() == []


def test_removing_access_under_queued_work_is_reported(cu: Cu) -> None:
    stream = cu.stream()
    address, _ = cu.mapped()
    with sim.temporarily(delay=20_000):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        assert cu.allow(address, flags=0) == "CUDA_SUCCESS"
    assert [race.second.operation for race in sim.races()] == ["cuMemSetAccess"]
    sim.clear_races()
    sim.reset()


def test_a_host_function_is_ordered_after_what_came_before_it(cu: Cu) -> None:
    stream, called = cu.stream(), threading.Event()
    address, _ = cu.mapped()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def host(data: int | None) -> None:
        called.set()

    cu.ok("cuMemsetD8Async", address, 1, 64, stream)
    cu.ok("cuLaunchHostFunc", stream, host, 0)
    assert called.wait(10)
    cu.ok("cuMemUnmap", address, 2 * MIB)
    assert sim.races() == []
    cu.ok("cuStreamSynchronize", stream)


def test_turning_the_checker_off_for_a_while_loses_no_order(cu: Cu) -> None:
    one, two, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(4096)
    cu.ok("cuMemsetD8Async", address, 1, 4096, one)
    cu.ok("cuEventRecord", event, one)
    sim.configure(races=False)
    cu.ok("cuStreamWaitEvent", two, event, 0)
    sim.configure(races=True)
    cu.ok("cuMemsetD8Async", address, 2, 4096, two)
    assert sim.races() == []
