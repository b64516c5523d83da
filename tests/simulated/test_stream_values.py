"""Values in memory that streams write and wait for, and attributes of streams."""

from __future__ import annotations

import ctypes
import time

import pytest

from arena import sim

from ..findings import expect
from .cu import INVALID_VALUE, MIB, NOT_READY, PER_THREAD, SUCCESS, Cu
from .test_capture import begin, end
from .test_streams import SLOW

AT_LEAST, EQUAL, AND, NOR = range(4)
WAIT_32, WRITE_32, FLUSH, WAIT_64, WRITE_64, BARRIER = 1, 2, 3, 4, 5, 6
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"


class Operation(ctypes.Structure):
    _fields_ = [
        *(("operation", ctypes.c_uint), ("barrier_flags", ctypes.c_uint), ("address", ctypes.c_uint64)),
        *(("value", ctypes.c_uint64), ("flags", ctypes.c_uint), ("pad", ctypes.c_uint)),
        *(("alias", ctypes.c_uint64), ("rest", ctypes.c_uint64)),
    ]


def word(cu: Cu, address: int, size: int = 4) -> int:
    return int.from_bytes(cu.read(address, size), "little")


def test_a_value_is_written_in_the_order_of_the_stream(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 0xFF, 64, stream)
        cu.ok("cuStreamWriteValue32", stream, address, 7, 0)
        cu.ok("cuStreamWriteValue64", stream, address + 8, 1 << 40, 0)
        assert cu.cuStreamQuery(stream) == NOT_READY
        cu.ok("cuStreamSynchronize", stream)
    assert (word(cu, address), word(cu, address + 4), word(cu, address + 8, 8)) == (7, 0xFFFFFFFF, 1 << 40)


def test_a_stream_waits_for_a_value_that_another_writes(cu: Cu) -> None:
    waiting, writing, address = cu.stream(), cu.stream(), cu.alloc(512)
    cu.ok("cuStreamWaitValue32", waiting, address, 3, EQUAL)
    cu.ok("cuStreamWriteValue32", waiting, address + 64, 1, 0)
    time.sleep(0.02)
    assert (cu.cuStreamQuery(waiting), word(cu, address + 64)) == (NOT_READY, 0)
    cu.ok("cuStreamWriteValue32", writing, address, 3, 0)
    cu.ok("cuStreamSynchronize", waiting)
    assert word(cu, address + 64) == 1


@pytest.mark.parametrize(
    ("condition", "wanted", "unmet", "met"),
    [
        (AT_LEAST, 5, 4, 6),
        (AT_LEAST, 0xFFFFFFFE, 0xFFFFFFF0, 1),  # cyclic
        (EQUAL, 5, 6, 5),
        (AND, 6, 1, 2),
        (NOR, 0x7FFFFFFF, 0x80000000, 1),
    ],
)
def test_what_is_waited_for(cu: Cu, condition: int, wanted: int, unmet: int, met: int) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    cu.ok("cuMemsetD32", address, unmet, 1)
    cu.ok("cuStreamWaitValue32", stream, address, wanted, condition)
    time.sleep(0.01)
    assert cu.cuStreamQuery(stream) == NOT_READY
    cu.write(address, met.to_bytes(4, "little"))
    cu.ok("cuStreamSynchronize", stream)


def test_the_host_can_write_what_a_stream_waits_for(cu: Cu) -> None:
    stream, host = cu.stream(), cu.out("cuMemHostAlloc", 64, 0)
    cu.ok("cuStreamWaitValue64", stream, host, 1 << 40, AT_LEAST)
    ctypes.c_uint64.from_address(host).value = 1 << 41
    cu.ok("cuStreamSynchronize", stream)


def test_waiting_for_a_value_orders_nothing_for_the_race_checker(cu: Cu) -> None:
    """cuda.h: such an order is not visible to CUDA, and has to be expressed with events as well."""
    one, two, address = cu.stream(), cu.stream(), cu.alloc(512)
    cu.ok("cuMemsetD8Async", address, 1, 64, one)
    cu.ok("cuStreamWriteValue32", one, address + 128, 1, 0)
    cu.ok("cuStreamWaitValue32", two, address + 128, 1, EQUAL)
    assert sim.findings() == []  # the value itself is no race
    cu.ok("cuMemcpyDtoDAsync", address + 256, address, 64, two)
    expect("race")


def test_values_are_where_they_can_be(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    managed = cu.out("cuMemAllocManaged", 512, 1)
    for call, at, flags in (
        ("cuStreamWriteValue32", address + 2, 0),
        ("cuStreamWriteValue64", address + 4, 0),
        ("cuStreamWriteValue32", address, 1),  # no flag in the second version
        ("cuStreamWaitValue32", address, 4),
        ("cuStreamWriteValue32", managed, 0),
        ("cuStreamWaitValue32", managed, 0),
        ("cuStreamWriteValue32", 0x1000, 0),
        ("cuStreamWriteValue32", address + 512, 0),
    ):
        assert getattr(cu, call)(stream, at, 1, flags) == INVALID_VALUE, (call, at, flags)
    cu.ok("cuStreamSynchronize", stream)


def test_a_batch_of_operations_runs_in_order_or_not_at_all(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    batch = (Operation * 4)(
        Operation(WRITE_32, 0, address, 5),
        Operation(WAIT_32, 0, address, 5, EQUAL),
        Operation(BARRIER),
        Operation(WRITE_64, 0, address + 8, 6),
    )
    cu.ok("cuStreamBatchMemOp", stream, 4, batch, 0)
    cu.ok("cuStreamSynchronize", stream)
    assert (word(cu, address), word(cu, address + 8, 8)) == (5, 6)
    bad = (Operation * 2)(Operation(WRITE_32, 0, address, 9), Operation(WRITE_32, 0, address + 1, 9))
    assert cu.cuStreamBatchMemOp(stream, 2, bad, 0) == INVALID_VALUE
    assert word(cu, address) == 5
    assert cu.cuStreamBatchMemOp(stream, 256, batch, 0) == cu.cuStreamBatchMemOp(stream, 1, batch, 1) == INVALID_VALUE
    assert cu.cuStreamBatchMemOp(stream, 1, (Operation * 1)(Operation(FLUSH)), 0) == NOT_SUPPORTED
    assert cu.cuStreamBatchMemOp(stream, 1, (Operation * 1)(Operation(99, 0, address)), 0) == INVALID_VALUE


def test_a_value_is_written_when_the_graph_is_launched(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuStreamWriteValue32", stream, address, 9, 0)
    result, graph = end(cu, stream)
    assert (result, word(cu, address)) == (SUCCESS, 0)
    cu.ok("cuGraphLaunch", cu.out("cuGraphInstantiateWithFlags", graph, 0), stream)
    cu.ok("cuStreamSynchronize", stream)
    assert word(cu, address) == 9


def test_a_wait_that_never_ends_does_not_keep_a_reset_from_ending(machine: None) -> None:
    cu = Cu()
    cu.start()
    cu.ok("cuStreamWaitValue32", cu.stream(), cu.alloc(512), 1, EQUAL)
    sim.reset()


def test_attributes_of_a_stream_are_kept_and_copied(cu: Cu) -> None:
    stream, other = cu.stream(), cu.stream()
    value = (ctypes.c_uint * 16)()
    cu.ok("cuStreamGetAttribute", stream, 3, value)
    assert value[0] == 1  # the policy is automatic
    value[0] = 4
    cu.ok("cuStreamSetAttribute", stream, 3, value)
    cu.ok("cuStreamCopyAttributes", other, stream)
    value[0] = 0
    cu.ok("cuStreamGetAttribute", other, 3, value)
    assert value[0] == 4
    value[0] = 5
    assert cu.cuStreamSetAttribute(stream, 3, value) == INVALID_VALUE
    assert cu.cuStreamGetAttribute(stream, 2, value) == INVALID_VALUE  # of launches
    assert cu.cuStreamSetAttribute(stream, 8, value) == INVALID_VALUE  # fixed when it is created
    urgent = cu.out("cuStreamCreateWithPriority", 1, -3 & 0xFFFFFFFF)
    cu.ok("cuStreamGetAttribute", urgent, 8, value)
    assert ctypes.c_int(value[0]).value == -3


def test_managed_memory_is_attached_whole_and_not_singly_to_the_null_stream(cu: Cu) -> None:
    managed, device, stream = cu.out("cuMemAllocManaged", 8192, 1), cu.alloc(512), cu.stream()
    for flags in (1, 2, 4):
        cu.ok("cuStreamAttachMemAsync", stream, managed, 0, flags)
    cu.ok("cuStreamAttachMemAsync", stream, managed, 8192, 4)
    attach = cu.cuStreamAttachMemAsync
    assert attach(0, managed, 0, 4) == attach(stream, managed, 4096, 4) == attach(stream, device, 0, 1) == INVALID_VALUE
    assert attach(stream, managed, 0, 3) == INVALID_VALUE
    cu.ok("cuStreamAttachMemAsync", PER_THREAD, managed, 0, 4)


def test_synchronous_calls_on_memory_can_be_made_to_wait(cu: Cu) -> None:
    address, on = cu.alloc(2 * MIB), ctypes.c_uint(1)
    cu.ok("cuPointerSetAttribute", ctypes.byref(on), 6, address + 100)
    assert cu.out("cuPointerGetAttribute", 6, address, kind=ctypes.c_uint) == 1
    with sim.temporarily(delay=SLOW):
        start = time.perf_counter()
        cu.ok("cuMemsetD8", address, 1, 64)
        assert time.perf_counter() - start > 0.9 * SLOW * 1e-6
    cu.ok("cuMemFree", address)  # nothing is removed under queued work
    assert cu.cuPointerSetAttribute(ctypes.byref(on), 6, address) == INVALID_VALUE
    assert cu.cuPointerSetAttribute(ctypes.byref(on), 7, cu.alloc(512)) == INVALID_VALUE


def test_the_profiler_is_started_and_stopped_without_effect(cu: Cu) -> None:
    cu.ok("cuProfilerStart")
    cu.ok("cuProfilerStop")
