"""What reaches the host from unknown memory: zeros, what was expected, a report; and waiting for what is queued."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from arena import sim

from ..findings import expect
from .cu import LEGACY, MIB, NOT_READY, PER_THREAD, SUCCESS, Cu
from .test_capture import begin, end
from .test_modules import function, load
from .test_pitched import DEVICE, HOST, Copy2D
from .test_streams import SLOW
from .values import (
    ALL,
    CAPTURING,
    DONE,
    IMAGE,
    NO_STREAM,
    NONE,
    UNKNOWN,
    Values,
    captured,
    dirty,
    launch,
    word,
)


def test_fresh_memory_is_unknown_and_reads_as_zeros(cu: Cu, values: Values) -> None:
    cu.ok("cuMemFree", dirty(cu, values, MIB))
    address = cu.alloc(MIB)
    assert (values.query(address, MIB), cu.read(address, MIB)) == (NONE, bytes(MIB))
    assert values.reads == [(address, MIB, MIB)]


def test_leftovers_never_reach_the_host(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 100_000)
    cu.write(address + 1000, b"known")
    read = cu.read(address, 100_000)
    assert read == bytes(1000) + b"known" + bytes(100_000 - 1005)
    assert values.reads == [(address, 100_000, 100_000 - 5)]


def test_a_copy_of_known_bytes_is_not_reported(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 4096)
    cu.write(address + 3, b"abc")
    assert (cu.read(address + 3, 3), values.reads) == (b"abc", [])


def test_zeros_take_the_place_that_was_unknown_when_the_copy_was_queued(cu: Cu, values: Values) -> None:
    address, stream = dirty(cu, values, 4096), cu.stream()
    pinned = cu.out("cuMemAllocHost", 4096)
    ctypes.memset(pinned, 1, 4096)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemcpyDtoHAsync", pinned, address, 4096, stream)
        cu.ok("cuMemcpyHtoDAsync", address, b"later", 5, stream)
        assert cu.cuStreamQuery(stream) == NOT_READY
        assert (values.query(address, 5), values.reads) == (ALL, [(address, 4096, 4096)])
        cu.ok("cuStreamSynchronize", stream)
    assert ctypes.string_at(pinned, 4096) == bytes(4096)
    assert cu.read(address, 5) == b"later"


def test_known_bytes_arrive_although_a_launch_follows_the_copy(cu: Cu, values: Values) -> None:
    address, stream = dirty(cu, values, 512), cu.stream()
    pinned = cu.out("cuMemAllocHost", 512)
    kernel = function(cu, load(cu, IMAGE), b"writes")
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemcpyHtoDAsync", address, b"known", 5, stream)
        cu.ok("cuMemcpyDtoHAsync", pinned, address, 5, stream)
        launch(cu, kernel, word(address), ctypes.c_uint(0), stream=stream)
        cu.ok("cuStreamSynchronize", stream)
    assert (ctypes.string_at(pinned, 5), values.query(address, 5)) == (b"known", NONE)


def test_copies_of_rectangles_mark_and_replace_their_rows_alone(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 4096)
    source = ctypes.create_string_buffer(b"abcdef", 6)
    up = Copy2D(src_type=HOST, src_host=ctypes.addressof(source), src_pitch=3, dst_type=DEVICE, dst_device=address)
    up.dst_x, up.dst_pitch, up.width, up.height = 2, 16, 3, 2
    cu.ok("cuMemcpy2D", ctypes.byref(up))
    row = [0, 0, 1, 1, 1, *[0] * 11]
    assert values.known(address, 48) == row * 2 + [0] * 16
    back = ctypes.create_string_buffer(b"\xff" * 30, 30)
    down = Copy2D(src_type=DEVICE, src_device=address, src_pitch=16, dst_type=HOST, dst_host=ctypes.addressof(back))
    down.src_x, down.dst_pitch, down.width, down.height = 1, 10, 5, 3
    cu.ok("cuMemcpy2D", ctypes.byref(down))
    gap = b"\xff" * 5
    assert back.raw == b"\0abc\0" + gap + b"\0def\0" + gap + bytes(5) + gap
    assert values.reads == [(address + 1, 15, 9)]


def test_expected_bytes_replace_the_next_unknown_copy_of_their_size(cu: Cu, values: Values) -> None:
    address, known = dirty(cu, values, 512), cu.alloc(512)
    cu.write(known, b"12345678")
    values.expect(b"expected")
    values.expect(b"four")
    values.expect(b"next one")
    assert (cu.read(known, 8), cu.read(address, 7)) == (b"12345678", bytes(7))  # not unknown; another size
    assert (cu.read(address, 8), cu.read(address, 4), cu.read(address, 8)) == (b"expected", b"four", b"next one")
    assert cu.read(address, 8) == bytes(8)
    assert values.reads == [(address, 7, 7), (address, 8, 8)]
    assert values.query(address, 8) == NONE
    values.expect(b"forgotten")
    values.forget()
    assert cu.read(address, 9) == bytes(9)


def test_expected_bytes_arrive_with_a_delayed_copy_and_are_for_one_thread(cu: Cu, values: Values) -> None:
    address, stream = dirty(cu, values, 512), cu.stream()
    pinned = cu.out("cuMemAllocHost", 8)
    found = []

    def elsewhere() -> None:
        cu.start()
        found.append(cu.read(address, 8))

    values.expect(b"expected")
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemcpyAsync", pinned, address, 8, stream)
        cu.ok("cuStreamSynchronize", stream)
    assert (found, ctypes.string_at(pinned, 8)) == ([bytes(8)], b"expected")


def test_a_copy_of_a_graph_takes_nothing_that_a_call_expects(cu: Cu, values: Values) -> None:
    address, pinned = dirty(cu, values, 512), cu.out("cuMemAllocHost", 8)
    graph = captured(cu, lambda stream: cu.ok("cuMemcpyDtoHAsync", pinned, address, 8, stream))
    values.expect(b"expected")
    cu.ok("cuGraphLaunch", graph, LEGACY)
    cu.ok("cuStreamSynchronize", LEGACY)
    assert (ctypes.string_at(pinned, 8), cu.read(address, 8)) == (bytes(8), b"expected")


def test_the_callback_may_call_the_driver(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 512)
    seen: list[tuple[int, bytes]] = []

    @ctypes.CFUNCTYPE(None, *[ctypes.c_ulonglong] * 3)
    def callback(where: int, size: int, unknown: int) -> None:
        values.settle(where, size)
        values.lib.cudasimValuesOnRead(None)
        seen.append((threading.get_ident(), cu.read(where, 1)))

    values.lib.cudasimValuesOnRead(callback)
    assert cu.read(address, 3) == bytes(3)
    assert seen == [(threading.get_ident(), b"\0")]


def test_a_refused_copy_reports_and_marks_nothing(cu: Cu, values: Values) -> None:
    address = cu.alloc(4096)
    cu.write(address, b"known")
    buffer = ctypes.create_string_buffer(8192)
    assert cu.cuMemcpyDtoH(buffer, address, 8192) != SUCCESS
    sim.fail("cuMemsetD8")
    assert cu.cuMemsetD8(address, 0, 4096) != SUCCESS
    assert (values.reads, values.known(address, 6)) == ([], [1] * 5 + [0])


def test_draining_waits_for_a_stream_without_being_seen(cu: Cu, values: Values) -> None:
    address, stream = cu.alloc(512), cu.stream()
    sim.fail("cuStreamSynchronize")
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 512, stream)
        before = (sim.call_table(), sim.clock(), sim.planned())
        assert values.drain(stream) == DONE
        assert ctypes.string_at(address, 2) == b"\x01\x01"
    assert (sim.call_table(), sim.clock(), sim.planned()) == before
    sim.clear_planned()


def test_draining_is_no_wait_for_the_race_checker(cu: Cu, values: Values) -> None:
    address, stream, other = cu.alloc(512), cu.stream(), cu.stream()
    cu.ok("cuMemsetD8Async", address, 1, 512, stream)
    assert values.drain(stream) == DONE
    cu.ok("cuMemsetD8Async", address, 1, 512, other)
    expect("race")


@pytest.mark.parametrize("default", [0, LEGACY])
def test_draining_the_legacy_stream_waits_for_blocking_streams(cu: Cu, values: Values, default: int) -> None:
    address = cu.alloc(512)
    blocking, free = cu.stream(non_blocking=False), cu.stream()
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 8, blocking)
        cu.ok("cuMemsetD8Async", address + 8, 1, 8, free)
        cu.ok("cuMemsetD8Async", address + 16, 1, 8, free)
        begin_time = time.perf_counter()
        assert values.drain(default) == DONE
        assert (time.perf_counter() - begin_time) * 1e6 > 0.5 * SLOW
        assert cu.cuStreamQuery(blocking) == SUCCESS
        cu.ok("cuStreamSynchronize", LEGACY)


def test_draining_says_what_it_cannot_wait_for(cu: Cu, values: Values) -> None:
    stream = cu.stream()
    assert [values.drain(handle) for handle in (0, LEGACY, PER_THREAD, stream)] == [DONE] * 4
    begin(cu, stream)
    assert values.drain(stream) == CAPTURING
    end(cu, stream)
    gone = cu.stream()
    cu.ok("cuStreamDestroy", gone)
    assert [values.drain(handle) for handle in (gone, 0x1234)] == [NO_STREAM] * 2
    assert sim.findings() == []
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(values.drain(0)))  # no context is current there
    thread.start()
    thread.join()
    assert found == [NO_STREAM]


def test_threads_copy_and_mark_at_the_same_time(cu: Cu, values: Values) -> None:
    shared = dirty(cu, values, 64 << 10)
    wrong: list[bytes] = []

    def work(number: int) -> None:
        cu.start()
        stream, mine = cu.stream(), shared + (number * 32 << 10)
        for turn in range(60):
            size = 100 + 411 * turn
            cu.ok("cuMemcpyHtoDAsync", mine, bytes([number + 1]) * size, size, stream)
            values.mark(mine + size // 2, size // 4, UNKNOWN)
            buffer = ctypes.create_string_buffer(size)
            cu.ok("cuMemcpyDtoHAsync", buffer, mine, size, stream)
            half, quarter = size // 2, size // 4
            rest = size - half - quarter
            if buffer.raw != bytes([number + 1]) * half + bytes(quarter) + bytes([number + 1]) * rest:
                wrong.append(buffer.raw)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
