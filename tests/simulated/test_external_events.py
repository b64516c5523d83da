"""Events that a graph records and waits for when it is launched, and not when it is captured."""

from __future__ import annotations

import ctypes

import pytest

from arena import sim

from .cu import INVALID_VALUE, NOT_READY, SUCCESS, Cu
from .test_capture import begin, end
from .test_graphs import kind, listed
from .test_streams import SLOW

EXTERNAL = 1
WAIT_EVENT, EVENT_RECORD = 6, 7


def instantiated(cu: Cu, stream: int) -> int:
    result, graph = end(cu, stream)
    assert result == SUCCESS
    return cu.out("cuGraphInstantiateWithFlags", graph, 0)


def test_an_external_event_is_recorded_at_each_launch(cu: Cu) -> None:
    stream, event, address = cu.stream(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", address, 7, 64, stream)
    cu.ok("cuEventRecordWithFlags", event, stream, EXTERNAL)
    launched = instantiated(cu, stream)
    assert cu.cuEventQuery(event) == SUCCESS  # it was not recorded yet
    for _ in range(2):
        with sim.temporarily(delay=SLOW):
            cu.ok("cuGraphLaunch", launched, stream)
        assert cu.cuEventQuery(event) == NOT_READY
        cu.ok("cuEventSynchronize", event)
        assert cu.read(address, 64) == b"\x07" * 64


def test_a_graph_waits_for_where_an_external_event_was_recorded_last(cu: Cu) -> None:
    sim.configure(races=True)
    stream, other, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuStreamWaitEvent", stream, event, EXTERNAL)
    cu.ok("cuMemcpyDtoDAsync", address + 64, address, 64, stream)
    launched = instantiated(cu, stream)
    for value in (1, 2):
        with sim.temporarily(delay=SLOW):
            cu.ok("cuMemsetD8Async", address, value, 64, other)
            cu.ok("cuEventRecord", event, other)
        cu.ok("cuGraphLaunch", launched, stream)
        cu.ok("cuStreamSynchronize", stream)
        assert cu.read(address + 64, 64) == bytes([value]) * 64
    assert sim.races() == []


def test_a_time_between_external_events_is_measured_after_each_launch(cu: Cu) -> None:
    stream, first, last, address = cu.stream(), cu.event(), cu.event(), cu.alloc(512)
    passed = ctypes.c_float()
    begin(cu, stream)
    cu.ok("cuEventRecordWithFlags", first, stream, EXTERNAL)
    cu.ok("cuMemsetD8Async", address, 7, 64, stream)
    cu.ok("cuEventRecordWithFlags", last, stream, EXTERNAL)
    launched = instantiated(cu, stream)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuGraphLaunch", launched, stream)
    cu.ok("cuStreamSynchronize", stream)
    cu.ok("cuEventElapsedTime", ctypes.byref(passed), first, last)
    assert passed.value > 0


def test_external_events_are_nodes_of_the_graph(cu: Cu) -> None:
    stream, event = cu.stream(), cu.event()
    begin(cu, stream)
    cu.ok("cuEventRecordWithFlags", event, stream, EXTERNAL)
    cu.ok("cuStreamWaitEvent", stream, event, EXTERNAL)
    result, graph = end(cu, stream)
    assert result == SUCCESS
    record, wait = listed(cu, "cuGraphGetNodes", graph)
    assert (kind(cu, record), kind(cu, wait)) == (EVENT_RECORD, WAIT_EVENT)
    assert listed(cu, "cuGraphNodeGetDependencies", wait) == [record]


@pytest.mark.parametrize("call", ["record", "wait"])
def test_external_events_exist_in_captures_only(cu: Cu, call: str) -> None:
    stream, event = cu.stream(), cu.event()
    result = {
        "record": lambda: cu.cuEventRecordWithFlags(event, stream, EXTERNAL),
        "wait": lambda: cu.cuStreamWaitEvent(stream, event, EXTERNAL),
    }[call]()
    assert result == INVALID_VALUE
