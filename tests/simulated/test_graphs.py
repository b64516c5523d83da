"""Graphs that are built, asked about, copied and updated; what they keep alive."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from arena import sim

from ..findings import expect
from .cu import INVALID_VALUE, NOT_READY, SUCCESS, Cu
from .images import Kernel, cubin
from .test_capture import begin, end
from .test_launches import launch
from .test_modules import function, load
from .test_pitched import DEVICE, UNIFIED, Copy3D
from .test_streams import SLOW

KERNEL, MEMCPY, MEMSET, HOST_NODE, GRAPH, EMPTY, MEM_OPS = 0, 1, 2, 3, 4, 5, 12
SIZE = ctypes.c_size_t
IMAGE = cubin(Kernel("given", params=(8, 4)), Kernel("free"))


class KernelNode(ctypes.Structure):
    _fields_ = [
        *(("function", ctypes.c_uint64), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3)),
        *(("shared", ctypes.c_uint), ("params", ctypes.POINTER(ctypes.c_void_p)), ("extra", ctypes.c_void_p)),
        *(("kernel", ctypes.c_uint64), ("context", ctypes.c_uint64)),
    ]


class MemsetNode(ctypes.Structure):
    _fields_ = [
        *(("dst", ctypes.c_uint64), ("pitch", SIZE), ("value", ctypes.c_uint)),
        *(("element", ctypes.c_uint), ("width", SIZE), ("height", SIZE)),
    ]


class HostNode(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("data", ctypes.c_void_p)]


class UpdateInfo(ctypes.Structure):
    _fields_ = [("result", ctypes.c_uint), ("node", ctypes.c_uint64), ("from_node", ctypes.c_uint64)]


def nodes_of(*nodes: int) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(nodes))(*nodes)


class Builder:
    """A graph and short names for what is added to it."""

    def __init__(self, cu: Cu) -> None:
        self.cu, self.graph = cu, cu.out("cuGraphCreate", 0)
        self.context = cu.out("cuCtxGetCurrent")

    def add(self, call: str, after: tuple[int, ...], *arguments: object) -> int:
        return self.cu.out(call, self.graph, nodes_of(*after), len(after), *arguments)

    def empty(self, *after: int) -> int:
        return self.add("cuGraphAddEmptyNode", after)

    def memset(self, address: int, value: int, *after: int, width: int = 8, height: int = 1, pitch: int = 0) -> int:
        given = MemsetNode(address, pitch, value, 1, width, height)
        return self.add("cuGraphAddMemsetNode", after, ctypes.byref(given), self.context)

    def memcpy(self, dst: int, src: int, size: int, *after: int) -> int:
        given = Copy3D(src_type=DEVICE, src_device=src, dst_type=UNIFIED, dst_device=dst, width=size, height=1, depth=1)
        return self.add("cuGraphAddMemcpyNode", after, ctypes.byref(given), self.context)

    def host(self, call: object, *after: int) -> int:
        given = HostNode(ctypes.cast(call, ctypes.c_void_p))  # type: ignore[arg-type]
        return self.add("cuGraphAddHostNode", after, ctypes.byref(given))

    def kernel(self, given: KernelNode, *after: int) -> int:
        return self.add("cuGraphAddKernelNode", after, ctypes.byref(given))

    def instantiate(self, flags: int = 0) -> int:
        return self.cu.out("cuGraphInstantiateWithFlags", self.graph, flags)

    def run(self) -> None:
        self.cu.ok("cuGraphLaunch", self.instantiate(), stream := self.cu.stream())
        self.cu.ok("cuStreamSynchronize", stream)


def listed(cu: Cu, call: str, what: int) -> list[int]:
    count = SIZE()
    cu.ok(call, what, None, *((None,) if "Get" in call and "Dependen" in call else ()), ctypes.byref(count))
    found = (ctypes.c_uint64 * (count.value + 1))(*([1] * (count.value + 1)))
    room = SIZE(count.value + 1)
    edges = (ctypes.c_ubyte * (8 * (count.value + 1)))()
    cu.ok(call, what, found, *((edges,) if "Dependen" in call else ()), ctypes.byref(room))
    assert (room.value, found[count.value]) == (count.value, 0)  # the rest is null
    return list(found)[: count.value]


def edges_of(cu: Cu, graph: int) -> set[tuple[int, int]]:
    count = SIZE(16)
    before, after = (ctypes.c_uint64 * 16)(), (ctypes.c_uint64 * 16)()
    cu.ok("cuGraphGetEdges", graph, before, after, None, ctypes.byref(count))
    return set(list(zip(before, after, strict=True))[: count.value])


def kind(cu: Cu, node: int) -> int:
    found = ctypes.c_uint()
    cu.ok("cuGraphNodeGetType", node, ctypes.byref(found))
    return found.value


def test_a_graph_that_was_built_runs_in_the_order_of_its_dependencies(cu: Cu) -> None:
    address, build, seen = cu.alloc(512), Builder(cu), []
    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(cu.cuCtxGetDevice(None, 0)))
    copied = build.memcpy(address + 64, address, 8)  # added first, and last to run
    told = build.host(note)
    filled = build.memset(address, 7)
    cu.ok("cuGraphAddDependencies", build.graph, nodes_of(filled, told), nodes_of(told, copied), None, 2)
    build.run()
    assert cu.read(address + 64, 8) == b"\x07" * 8
    assert seen == ["CUDA_ERROR_NOT_PERMITTED"]
    assert [kind(cu, node) for node in (copied, told, filled)] == [MEMCPY, HOST_NODE, MEMSET]
    cu.ok("cuGraphDestroy", build.graph)


def test_nodes_and_edges_can_be_asked_for(cu: Cu) -> None:
    build = Builder(cu)
    one = build.empty()
    two, three = build.empty(one), build.empty(one)
    four = build.empty(two, three)
    assert listed(cu, "cuGraphGetNodes", build.graph) == [one, two, three, four]
    assert listed(cu, "cuGraphGetRootNodes", build.graph) == [one]
    assert listed(cu, "cuGraphNodeGetDependencies", four) == [two, three]
    assert listed(cu, "cuGraphNodeGetDependentNodes", one) == [two, three]
    assert edges_of(cu, build.graph) == {(one, two), (one, three), (two, four), (three, four)}
    cu.ok("cuGraphRemoveDependencies", build.graph, nodes_of(two), nodes_of(four), None, 1)
    cu.ok("cuGraphDestroyNode", three)
    assert edges_of(cu, build.graph) == {(one, two)}
    assert cu.cuGraphNodeGetType(three, ctypes.byref(ctypes.c_uint())) == INVALID_VALUE
    expect("dead graph node")


def test_dependencies_are_of_one_graph_new_and_without_a_cycle(cu: Cu) -> None:
    build, other = Builder(cu), Builder(cu)
    one, two = build.empty(), build.empty()
    elsewhere = other.empty()
    link = lambda before, after: cu.cuGraphAddDependencies(build.graph, nodes_of(before), nodes_of(after), None, 1)  # noqa: E731
    assert (link(one, two), link(one, two)) == (SUCCESS, INVALID_VALUE)
    assert link(one, one) == link(elsewhere, two) == INVALID_VALUE
    edge = (ctypes.c_ubyte * 8)(1, 0, 1)
    assert cu.cuGraphAddDependencies(build.graph, nodes_of(two), nodes_of(one), edge, 1) == "CUDA_ERROR_NOT_SUPPORTED"
    twice = cu.cuGraphAddEmptyNode(ctypes.byref(ctypes.c_uint64()), build.graph, nodes_of(one, one), 2)
    assert twice == INVALID_VALUE
    assert link(two, one) == SUCCESS
    assert cu.cuGraphInstantiateWithFlags(ctypes.byref(ctypes.c_uint64()), build.graph, 0) == INVALID_VALUE


def test_a_kernel_node_keeps_its_arguments(cu: Cu) -> None:
    build, given = Builder(cu), function(cu, load(cu, IMAGE), b"given")
    values = (ctypes.c_uint64(1 << 40), ctypes.c_uint(7))
    params = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    node = build.kernel(KernelNode(given, (2, 1, 1), (32, 1, 1), 0, params))
    values[0].value = values[1].value = 0
    found = KernelNode()
    cu.ok("cuGraphKernelNodeGetParams", node, ctypes.byref(found))
    assert (found.function, list(found.grid), found.block[0]) == (given, [2, 1, 1], 32)
    assert ctypes.c_uint64.from_address(found.params[0]).value == 1 << 40
    assert ctypes.c_uint.from_address(found.params[1]).value == 7
    found.grid[0] = 5
    cu.ok("cuGraphKernelNodeSetParams", node, ctypes.byref(found))
    again = KernelNode()
    cu.ok("cuGraphKernelNodeGetParams", node, ctypes.byref(again))
    assert (again.grid[0], ctypes.c_uint.from_address(again.params[1]).value) == (5, 7)
    bad = KernelNode(given, (0, 1, 1), (32, 1, 1), 0, params)
    made = ctypes.c_uint64()
    assert cu.cuGraphAddKernelNode(ctypes.byref(made), build.graph, None, 0, ctypes.byref(bad)) == INVALID_VALUE
    assert cu.cuGraphMemsetNodeGetParams(node, ctypes.byref(MemsetNode())) == INVALID_VALUE  # another kind
    build.run()


def test_captured_work_becomes_nodes_that_depend_on_each_other(cu: Cu) -> None:
    stream, side, fork, join, address = cu.stream(), cu.stream(), cu.event(), cu.event(), cu.alloc(512)
    free = function(cu, load(cu, IMAGE), b"free")
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", address, 7, 64, stream)
    cu.ok("cuEventRecord", fork, stream)
    cu.ok("cuStreamWaitEvent", side, fork, 0)
    cu.ok("cuMemcpyDtoDAsync", address + 64, address, 64, side)
    cu.ok("cuEventRecord", join, side)
    assert launch(cu, free, stream=stream) == SUCCESS
    cu.ok("cuStreamWaitEvent", stream, join, 0)
    cu.ok("cuStreamWriteValue32", stream, address + 256, 1, 0)
    result, graph = end(cu, stream)
    assert result == SUCCESS
    nodes = listed(cu, "cuGraphGetNodes", graph)
    kinds = {kind(cu, node): node for node in nodes}
    assert sorted(kinds) == [KERNEL, MEMCPY, MEMSET, MEM_OPS]
    fill, copy, kernel, value = (kinds[one] for one in (MEMSET, MEMCPY, KERNEL, MEM_OPS))
    assert edges_of(cu, graph) == {(fill, copy), (fill, kernel), (copy, value), (kernel, value)}
    described = MemsetNode()
    cu.ok("cuGraphMemsetNodeGetParams", fill, ctypes.byref(described))
    assert (described.dst, described.value, described.width, described.element) == (address, 7, 64, 1)
    box = Copy3D()
    cu.ok("cuGraphMemcpyNodeGetParams", copy, ctypes.byref(box))
    assert (box.dst_device, box.src_device, box.width) == (address + 64, address, 64)


def test_a_capture_shows_its_graph_and_what_comes_next(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", address, 1, 8, stream)
    status, graph, count = ctypes.c_uint(), ctypes.c_uint64(), SIZE()
    nodes = ctypes.POINTER(ctypes.c_uint64)()
    ask = cu.lib.cuStreamGetCaptureInfo_v3
    info = (ctypes.byref(status), None, ctypes.byref(graph), ctypes.byref(nodes), None, ctypes.byref(count))
    assert ask(ctypes.c_uint64(stream), *info) == 0
    fill = nodes[0]
    assert (count.value, listed(cu, "cuGraphGetNodes", graph.value)) == (1, [fill])
    assert cu.cuGraphDestroy(graph.value) == INVALID_VALUE  # not before the capture ends
    empty = cu.out("cuGraphAddEmptyNode", graph.value, nodes_of(fill), 1)
    cu.ok("cuStreamUpdateCaptureDependencies", stream, nodes_of(empty), None, 1, 1)
    cu.ok("cuMemsetD8Async", address, 2, 8, stream)
    assert ask(ctypes.c_uint64(stream), *info) == 0
    assert listed(cu, "cuGraphNodeGetDependencies", nodes[0]) == [empty]
    assert end(cu, stream) == (SUCCESS, graph.value)
    idle = cu.cuStreamUpdateCaptureDependencies(stream, None, None, 0, 0)
    assert idle == "CUDA_ERROR_ILLEGAL_STATE"


def test_a_stream_is_captured_into_a_graph_that_exists(cu: Cu) -> None:
    build, stream, address = Builder(cu), cu.stream(), cu.alloc(512)
    first = build.memset(address, 1)
    cu.ok("cuStreamBeginCaptureToGraph", stream, build.graph, nodes_of(first), None, 1, 0)
    cu.ok("cuMemcpyDtoDAsync", address + 64, address, 8, stream)
    assert end(cu, stream) == (SUCCESS, build.graph)
    second = listed(cu, "cuGraphGetNodes", build.graph)[1]
    assert edges_of(cu, build.graph) == {(first, second)}
    build.run()
    assert cu.read(address + 64, 8) == b"\x01" * 8


def test_a_clone_is_changed_by_itself(cu: Cu) -> None:
    build, address = Builder(cu), cu.alloc(512)
    one = build.memset(address, 1)
    two = build.empty(one)
    clone = cu.out("cuGraphClone", build.graph)
    copies = listed(cu, "cuGraphGetNodes", clone)
    assert edges_of(cu, clone) == {(copies[0], copies[1])}
    assert cu.out("cuGraphNodeFindInClone", two, clone) == copies[1]
    cu.ok("cuGraphDestroyNode", copies[1])
    assert len(listed(cu, "cuGraphGetNodes", build.graph)) == 2
    outer = Builder(cu)
    outer.add("cuGraphAddChildGraphNode", (), build.graph)
    assert kind(cu, listed(cu, "cuGraphGetNodes", outer.graph)[0]) == GRAPH
    cu.ok("cuGraphDestroy", build.graph)  # the child is a copy
    outer.run()
    assert cu.read(address, 8) == b"\x01" * 8


def test_what_can_be_launched_is_updated_from_a_graph_of_the_same_shape(cu: Cu) -> None:
    address, info = cu.alloc(512), UpdateInfo()

    def built(value: int, extra: bool = False, copies: bool = False) -> Builder:
        build = Builder(cu)
        first = build.memcpy(address, address + 128, 8) if copies else build.memset(address, value)
        second = build.empty(first)
        if extra:
            build.empty(second)
        return build

    stream, exec_ = cu.stream(), built(1).instantiate()
    update = lambda build: cu.cuGraphExecUpdate(exec_, build.graph, ctypes.byref(info))  # noqa: E731
    assert (update(built(2)), info.result) == (SUCCESS, 0)
    cu.ok("cuGraphLaunch", exec_, stream)
    cu.ok("cuStreamSynchronize", stream)
    assert cu.read(address, 8) == b"\x02" * 8
    assert (update(built(3, extra=True)), info.result) == ("CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", 2)
    assert (update(other := built(3, copies=True)), info.result) == ("CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", 3)
    assert info.node == listed(cu, "cuGraphGetNodes", other.graph)[0]


def test_an_update_compares_the_graphs_in_a_graph(cu: Cu) -> None:
    address, info = cu.alloc(512), UpdateInfo()

    def with_child(value: int, extra: bool = False) -> Builder:
        inner, outer = Builder(cu), Builder(cu)
        first = inner.memset(address, value)
        if extra:
            inner.empty(first)
        outer.add("cuGraphAddChildGraphNode", (), inner.graph)
        return outer

    exec_ = with_child(1).instantiate()
    cu.ok("cuGraphExecUpdate", exec_, with_child(2).graph, ctypes.byref(info))
    refused = cu.cuGraphExecUpdate(exec_, with_child(3, extra=True).graph, ctypes.byref(info))
    assert (refused, info.result) == ("CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", 2)


def test_flags_of_an_instantiation_are_kept(cu: Cu) -> None:
    build, flags = Builder(cu), ctypes.c_uint64()
    cu.ok("cuGraphExecGetFlags", build.instantiate(9), ctypes.byref(flags))
    assert flags.value == 9
    instantiate = lambda flags: cu.cuGraphInstantiateWithFlags(ctypes.byref(ctypes.c_uint64()), build.graph, flags)  # noqa: E731
    assert (instantiate(4), instantiate(16)) == ("CUDA_ERROR_NOT_SUPPORTED", INVALID_VALUE)
    assert instantiate(2) == INVALID_VALUE  # an upload needs a stream


def test_an_upload_is_ordered_behind_earlier_launches(cu: Cu) -> None:
    build, one, two = Builder(cu), cu.stream(), cu.stream()
    build.memset(cu.alloc(512), 1)
    exec_ = build.instantiate()
    with sim.temporarily(delay=SLOW):
        cu.ok("cuGraphLaunch", exec_, one)
        cu.ok("cuGraphUpload", exec_, two)
        assert cu.cuStreamQuery(two) == NOT_READY
        cu.ok("cuStreamSynchronize", two)
        assert cu.cuStreamQuery(one) == SUCCESS


def test_a_graph_is_drawn(cu: Cu, tmp_path: Path) -> None:
    build = Builder(cu)
    kernel = build.kernel(KernelNode(function(cu, load(cu, IMAGE), b"free"), (1, 1, 1), (1, 1, 1)))
    last = build.empty(kernel)
    cu.ok("cuGraphDebugDotPrint", build.graph, str(tmp_path / "graph.dot").encode(), 0)
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    assert "KERNEL\\nfree" in text
    assert f'"{kernel:#x}" -> "{last:#x}"' in text
    assert cu.cuGraphDebugDotPrint(build.graph, str(tmp_path).encode(), 0) == "CUDA_ERROR_OPERATING_SYSTEM"


def test_a_graph_whose_kernel_was_unloaded_faults_when_it_runs(cu: Cu) -> None:
    build, module, stream = Builder(cu), load(cu, IMAGE), cu.stream()
    build.kernel(KernelNode(function(cu, module, b"free"), (1, 1, 1), (1, 1, 1)))
    exec_ = build.instantiate()
    cu.ok("cuModuleUnload", module)
    cu.ok("cuGraphLaunch", exec_, stream)
    expect("module gone")
    assert cu.cuStreamSynchronize(stream) == "CUDA_ERROR_ILLEGAL_INSTRUCTION"


def test_a_finding_may_quote_a_kernel_with_any_name(cu: Cu) -> None:
    name = 'a"b\\c\n\x1b]52;\x85\u2028\u202e'
    build, module, stream = Builder(cu), load(cu, cubin(Kernel(name))), cu.stream()
    build.kernel(KernelNode(function(cu, module, name.encode()), (1, 1, 1), (1, 1, 1)))
    exec_ = build.instantiate()
    cu.ok("cuModuleUnload", module)
    cu.ok("cuGraphLaunch", exec_, stream)
    (finding,) = expect("module gone")
    assert name in finding.text
    assert str(finding).isprintable()
    assert cu.cuStreamSynchronize(stream) == "CUDA_ERROR_ILLEGAL_INSTRUCTION"


@pytest.fixture
def destroyed() -> tuple[threading.Event, Callable[[object], None]]:
    done = threading.Event()
    return done, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: done.set())


def test_a_user_object_goes_with_its_last_reference(
    cu: Cu, destroyed: tuple[threading.Event, Callable[[object], None]]
) -> None:
    done, destroy = destroyed
    thing = cu.out("cuUserObjectCreate", None, destroy, 1, 1)
    cu.ok("cuUserObjectRetain", thing, 2)
    cu.ok("cuUserObjectRelease", thing, 2)
    assert not done.wait(0.05)
    cu.ok("cuUserObjectRelease", thing, 1)
    assert done.wait(5)
    assert cu.cuUserObjectRetain(thing, 1) == INVALID_VALUE
    expect("dead user object")
    make = lambda *how: cu.cuUserObjectCreate(ctypes.byref(ctypes.c_uint64()), None, *how)  # noqa: E731
    assert make(destroy, 0, 1) == make(destroy, 1, 0) == make(None, 1, 1) == INVALID_VALUE


def test_graphs_keep_user_objects_alive(cu: Cu, destroyed: tuple[threading.Event, Callable[[object], None]]) -> None:
    done, destroy = destroyed
    build, stream = Builder(cu), cu.stream()
    build.memset(cu.alloc(512), 1)
    thing = cu.out("cuUserObjectCreate", None, destroy, 1, 1)
    cu.ok("cuGraphRetainUserObject", build.graph, thing, 1, 1)  # moved: it is the graph's now
    exec_ = build.instantiate()
    cu.ok("cuGraphDestroy", build.graph)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuGraphLaunch", exec_, stream)
        cu.ok("cuGraphExecDestroy", exec_)
        assert not done.is_set()  # the launch still needs it
        cu.ok("cuStreamSynchronize", stream)
    assert done.wait(5)


def test_a_graph_gives_back_only_references_that_it_has(
    cu: Cu, destroyed: tuple[threading.Event, Callable[[object], None]]
) -> None:
    done, destroy = destroyed
    build = Builder(cu)
    thing = cu.out("cuUserObjectCreate", None, destroy, 1, 1)
    assert cu.cuGraphReleaseUserObject(build.graph, thing, 1) == INVALID_VALUE
    cu.ok("cuGraphRetainUserObject", build.graph, thing, 2, 0)
    cu.ok("cuGraphReleaseUserObject", build.graph, thing, 2)
    cu.ok("cuUserObjectRelease", thing, 1)
    assert done.wait(5)


def test_graphs_own_no_memory(cu: Cu) -> None:
    value = ctypes.c_uint64(1)
    for what in range(4):
        cu.ok("cuDeviceGetGraphMemAttribute", 0, what, ctypes.byref(value))
        assert value.value == 0
    cu.ok("cuDeviceSetGraphMemAttribute", 0, 1, ctypes.byref(value))
    assert cu.cuDeviceSetGraphMemAttribute(0, 0, ctypes.byref(value)) == INVALID_VALUE
    cu.ok("cuDeviceGraphMemTrim", 0)
    assert cu.cuDeviceGraphMemTrim(9) == "CUDA_ERROR_INVALID_DEVICE"


def test_a_memset_node_is_checked(cu: Cu) -> None:
    build, address = Builder(cu), cu.alloc(512)
    made = ctypes.c_uint64()
    for given in (
        MemsetNode(address, 0, 1, 3, 1, 1),
        MemsetNode(address + 1, 0, 1, 2, 1, 1),
        MemsetNode(address, 2, 1, 1, 4, 2),
    ):
        result = cu.cuGraphAddMemsetNode(ctypes.byref(made), build.graph, None, 0, ctypes.byref(given), build.context)
        assert result == INVALID_VALUE
    assert listed(cu, "cuGraphGetNodes", build.graph) == []
