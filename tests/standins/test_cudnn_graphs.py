"""cuDNN's backend interface, used as cudnn-frontend uses it: from tensors to a plan that is executed."""

from __future__ import annotations

import ctypes

import pytest

from arena import sim
from arena._cards import find_card

from ..simulated.cu import Cu
from .library import OK, Library, longs

ENGINE, CONFIG, HEURISTICS, PLAN, FORWARD, GRAPH, PACK, TENSOR = 2, 3, 4, 5, 10, 15, 16, 17
DATA_TYPE, BOOLEAN, INT64, NOTE, DESCRIPTOR, INT32 = 1, 2, 3, 11, 15, 23
NOT_FINALIZED, WRONG_TYPE, NOT_SUPPORTED = 2004, 2010, 3000


class Backend:
    def __init__(self) -> None:
        self.lib = Library("libcudnn.so.9")
        self.handle = self.lib.make("cudnnCreate")

    def make(self, kind: int) -> int:
        made = ctypes.c_size_t()
        assert self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)) == OK
        return made.value

    def set(self, descriptor: int, name: int, kind: int, *values: int) -> None:
        widths = {DATA_TYPE: ctypes.c_int, BOOLEAN: ctypes.c_bool, INT32: ctypes.c_int}
        array = (widths.get(kind, ctypes.c_int64) * len(values))(*values)
        assert self.lib.cudnnBackendSetAttribute(descriptor, name, kind, len(values), array) == OK

    def finalize(self, descriptor: int) -> int:
        assert self.lib.cudnnBackendFinalize(descriptor) == OK
        return descriptor

    def count(self, descriptor: int, name: int, kind: int) -> int:
        count = ctypes.c_int64(-1)
        assert self.lib.cudnnBackendGetAttribute(descriptor, name, kind, 0, ctypes.byref(count), 0) == OK
        return count.value

    def get(self, descriptor: int, name: int, kind: int = INT64) -> int:
        value = ctypes.c_int64(-1)
        assert self.lib.cudnnBackendGetAttribute(descriptor, name, kind, 1, 0, ctypes.byref(value)) == OK
        return value.value

    def child(self, descriptor: int, name: int, kind: int) -> int:
        """What another descriptor has under that name, in a descriptor that the caller makes."""
        made, count = ctypes.c_size_t(self.make(kind)), ctypes.c_int64()
        call = (descriptor, name, DESCRIPTOR, 1, ctypes.byref(count), ctypes.byref(made))
        assert self.lib.cudnnBackendGetAttribute(*call) == OK
        assert count.value == 1
        return made.value

    def tensor(self, number: int, *sizes: int) -> int:
        tensor, strides = self.make(TENSOR), [1]
        for size in reversed(sizes[1:]):
            strides.insert(0, strides[0] * size)
        self.set(tensor, 901, DATA_TYPE, 0)
        self.set(tensor, 902, INT64, *sizes)
        self.set(tensor, 903, INT64, *strides)
        self.set(tensor, 906, INT64, number)
        return self.finalize(tensor)

    def graph(self, batch: int) -> int:
        """A convolution of 3 channels to 8."""
        operation = self.make(FORWARD)
        tensors = self.tensor(1, batch, 3, 32, 32), self.tensor(2, 8, 3, 3, 3), self.tensor(3, batch, 8, 30, 30)
        for name, tensor in zip((704, 703, 705), tensors, strict=True):
            self.set(operation, name, DESCRIPTOR, tensor)
            assert self.lib.cudnnBackendDestroyDescriptor(tensor) == OK  # the operation keeps what it needs
        graph = self.make(GRAPH)
        self.set(graph, 801, DESCRIPTOR, self.finalize(operation))
        return self.finalize(graph)

    def config(self, graph: int) -> int:
        heuristics = self.make(HEURISTICS)
        self.set(heuristics, 201, DESCRIPTOR, graph)
        self.finalize(heuristics)
        assert self.count(heuristics, 202, DESCRIPTOR) == 1
        return self.child(heuristics, 202, CONFIG)

    def plan(self, config: int) -> int:
        plan = self.make(PLAN)
        self.set(plan, 400, 0, self.handle)
        self.set(plan, 401, DESCRIPTOR, config)
        return self.finalize(plan)


def test_a_graph_has_one_engine_and_one_configuration_without_knobs_and_notes() -> None:
    backend = Backend()
    graph = backend.graph(batch=2)
    assert backend.get(graph, 802) == 1
    config = backend.config(graph)
    engine = backend.child(config, 300, ENGINE)
    assert backend.get(engine, 1301) == 0
    assert backend.count(engine, 1302, DESCRIPTOR) == 0
    assert backend.count(engine, 1303, NOTE) == 0
    assert backend.count(config, 302, DESCRIPTOR) == 0


OPERANDS = 4 * (2 * 3 * 32 * 32 + 8 * 3 * 3 * 3 + 2 * 8 * 30 * 30)


def test_a_plan_wants_copies_of_its_tensors_where_kernels_need_another_layout() -> None:
    backend = Backend()
    config = backend.config(backend.graph(batch=2))
    assert backend.get(config, 303) == OPERANDS
    assert backend.get(backend.plan(config), 402) == OPERANDS


@pytest.mark.parametrize(("card", "copies"), [("v100-16", 0), ("t4", 0), ("a100-80", 1), ("h100-80", 1)])
def test_what_a_convolution_in_single_precision_wants_depends_on_the_card(card: str, copies: int) -> None:
    sim.configure(card=find_card(card).path)
    sim.enable()
    Cu().start()
    backend = Backend()
    assert backend.get(backend.plan(backend.config(backend.graph(batch=2))), 402) == copies * OPERANDS


def test_a_cudnn_that_cannot_be_loaded_is_reported_and_the_estimate_used(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDASIM_WORKSPACE_CUDNN_LIBRARY", "/nowhere/libcudnn_graph.so.9")
    backend = Backend()
    for _ in range(2):
        assert backend.get(backend.plan(backend.config(backend.graph(batch=2))), 402) == OPERANDS
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "CUDASIM_WORKSPACE_CUDNN_LIBRARY: /nowhere/libcudnn_graph.so.9: " in said


def test_of_several_descriptors_the_count_is_how_many_were_given() -> None:
    backend = Backend()
    operations = [backend.make(18), backend.make(18)]  # two of some kind
    graph = backend.make(GRAPH)
    backend.set(graph, 801, DESCRIPTOR, *(backend.finalize(one) for one in operations))
    assert backend.count(backend.finalize(graph), 801, DESCRIPTOR) == 2
    backend.child(graph, 801, 18)


def test_a_plan_is_executed_with_a_variant_pack() -> None:
    backend = Backend()
    plan, pack = backend.plan(backend.config(backend.graph(batch=2))), backend.make(PACK)
    backend.set(pack, 1000, INT64, 1, 2, 3)
    assert backend.lib.cudnnBackendExecute(backend.handle, plan, pack) == NOT_FINALIZED
    backend.finalize(pack)
    assert backend.lib.cudnnSetStream(backend.handle, 2) == OK
    assert backend.lib.cudnnBackendExecute(backend.handle, plan, pack) == OK
    assert backend.lib.cudnnBackendExecute(0, plan, pack) == 2000
    assert backend.lib.cudnnBackendDestroyDescriptor(plan) == OK
    assert backend.lib.cudnnBackendExecute(backend.handle, plan, pack) == NOT_FINALIZED


def test_an_engine_chosen_by_number_makes_a_plan_too() -> None:
    backend = Backend()
    engine, config = backend.make(ENGINE), backend.make(CONFIG)
    backend.set(engine, 1300, DESCRIPTOR, backend.graph(batch=2))
    backend.set(engine, 1301, INT64, 0)
    backend.set(config, 300, DESCRIPTOR, backend.finalize(engine))
    assert backend.get(backend.plan(backend.finalize(config)), 402) > 0


def test_a_tensor_gives_back_its_attributes_and_how_many_there_are() -> None:
    backend = Backend()
    tensor, sizes, count = backend.tensor(7, 2, 3, 5), longs(*[-1] * 8), ctypes.c_int64()
    assert backend.count(tensor, 902, INT64) == 3
    assert backend.lib.cudnnBackendGetAttribute(tensor, 902, INT64, 8, ctypes.byref(count), sizes) == OK
    assert (count.value, list(sizes)) == (3, [2, 3, 5, -1, -1, -1, -1, -1])
    assert backend.lib.cudnnBackendGetAttribute(tensor, 902, INT32, 8, ctypes.byref(count), sizes) == WRONG_TYPE
    assert backend.lib.cudnnBackendGetAttribute(tensor, 905, INT64, 1, ctypes.byref(count), sizes) == NOT_SUPPORTED
    assert count.value == 0


def test_what_is_not_final_can_neither_be_read_nor_used() -> None:
    backend = Backend()
    tensor, operation = backend.make(TENSOR), backend.make(FORWARD)
    assert backend.lib.cudnnBackendGetAttribute(tensor, 902, INT64, 0, 0, 0) == NOT_FINALIZED
    assert backend.lib.cudnnBackendSetAttribute(operation, 704, DESCRIPTOR, 1, longs(tensor)) == NOT_FINALIZED
    backend.set(tensor, 902, INT64, 4)
    backend.finalize(tensor)
    assert backend.lib.cudnnBackendSetAttribute(tensor, 902, INT64, 1, longs(5)) == 1001  # too late
    assert backend.lib.cudnnBackendInitialize(tensor) == OK  # as new
    backend.set(tensor, 902, INT64, 5)
    assert backend.get(backend.finalize(tensor), 902) == 5
