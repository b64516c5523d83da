"""torch.cuda.MemPool and cudagraph trees while PyTorch's memory comes from an arena."""

from __future__ import annotations

import ctypes
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import arena

from .tensors import MIB, holds, mebibytes

pytestmark = pytest.mark.filterwarnings("ignore")
needs_pools = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8), reason="this PyTorch has no such pools"
)


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Functions:
    """An allocator of somebody else, like that of vLLM's sleep mode: functions that call Python."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}
        self.returned: list[int] = []
        self._driver = ctypes.CDLL("libcudart.so.13" if torch.version.cuda.startswith("13") else "libcudart.so.12")
        self._allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(
            self.allocate
        )
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(self.free)
        addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in (self._allocate, self._free))
        self.allocator = torch._C._cuda_customAllocator(*addresses)

    def allocate(self, size: int, device: int, stream: int) -> int:
        address = ctypes.c_void_p()
        if self._driver.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) != 0:
            return 0
        assert address.value is not None
        self.given[address.value] = size
        return address.value

    def free(self, address: int, size: int, device: int, stream: int) -> None:
        assert self.given.pop(address) == size
        self.returned.append(address)
        assert self._driver.cudaFree(ctypes.c_void_p(address)) == 0

    def has(self, x: torch.Tensor) -> bool:
        return any(start <= x.data_ptr() < start + size for start, size in self.given.items())


@pytest.fixture
def functions(pool: arena.Arena) -> Iterator[Functions]:
    torch.cuda.init()
    return Functions()


@needs_pools
def test_tensors_of_a_pool_come_from_its_own_allocator_and_go_back_to_it(
    pool: arena.Arena, functions: Functions
) -> None:
    before = mebibytes(1)
    own = torch.cuda.MemPool(functions.allocator)
    with torch.cuda.use_mem_pool(own):
        x, small = mebibytes(30), torch.zeros(100, device="cuda")
        y = mebibytes(5)
        del y
        z = mebibytes(5)
    after = mebibytes(1)
    assert [functions.has(tensor) for tensor in (x, small, z, before, after)] == [True, True, True, False, False]
    assert [holds(pool, tensor) for tensor in (before, after, x)] == [True, True, False]
    assert len(functions.given) <= 3  # one of them serves several tensors
    assert torch.cuda.memory_allocated() == 37 * MIB + 512
    del x, small, z
    gc.collect()
    assert torch.cuda.memory_allocated() == 2 * MIB
    del own
    gc.collect()
    assert functions.given == {}
    assert len(functions.returned) > 0


@needs_pools
def test_tensors_may_outlive_their_pool(pool: arena.Arena, functions: Functions) -> None:
    own = torch.cuda.MemPool(functions.allocator)
    with torch.cuda.use_mem_pool(own):
        x = torch.full((1000,), 3.0, device="cuda")
    del own
    gc.collect()
    assert functions.has(x)
    x.zero_()
    del x
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert functions.given == {}


@needs_pools
def test_a_snapshot_of_a_pool_has_its_segments(pool: arena.Arena, functions: Functions) -> None:
    own = torch.cuda.MemPool(functions.allocator)
    held = mebibytes(3)
    with torch.cuda.use_mem_pool(own):
        x = mebibytes(30)
    segments = own.snapshot()
    assert {segment["segment_pool_id"] for segment in segments} == {own.id}
    assert {segment["address"] for segment in segments} == set(functions.given)
    assert sum(segment["allocated_size"] for segment in segments) == 30 * MIB
    assert len(torch.cuda.memory_snapshot()) > len(segments)
    del held, x


@needs_pools
def test_an_allocator_without_memory_is_out_of_memory(pool: arena.Arena, functions: Functions) -> None:
    own = torch.cuda.MemPool(Nothing().allocator)
    with torch.cuda.use_mem_pool(own), pytest.raises(torch.OutOfMemoryError):
        mebibytes(1)
    assert mebibytes(1).numel() == MIB


class Nothing(Functions):
    def allocate(self, size: int, device: int, stream: int) -> int:
        return 0


@needs_pools
def test_a_pool_without_an_allocator_is_memory_of_the_arena(pool: arena.Arena) -> None:
    own = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(own):
        x = mebibytes(3)
    assert holds(pool, x)
    assert own.use_count() == 1
    assert [segment["segment_pool_id"] for segment in own.snapshot()] == [own.id]
    address = x.data_ptr()
    del x
    y = mebibytes(3)
    assert y.data_ptr() != address  # the pool keeps its memory
    with torch.cuda.use_mem_pool(own):
        z = mebibytes(3)
    assert z.data_ptr() == address
    del z, own
    gc.collect()
    assert pool.stats().captured == 0


@needs_pools
@pytest.mark.parametrize("option", ["use_on_oom", "no_split"])
def test_options_that_cannot_be_end_with_what_to_do(pool: arena.Arena, option: str) -> None:
    try:
        with pytest.raises(RuntimeError, match=rf"MemPool\({option}=True\) is not supported; make the pool without"):
            torch.cuda.MemPool(**{option: True})
    except TypeError:
        pytest.skip("this PyTorch does not have the option")


def captured(graph: torch.cuda.CUDAGraph, x: torch.Tensor, memory: object) -> torch.Tensor:
    with torch.cuda.graph(graph, pool=memory):
        return x.clone().clone()


def test_a_later_capture_reuses_what_an_earlier_one_in_its_pool_freed(pool: arena.Arena) -> None:
    x = torch.full((MIB,), 2.0).cuda()
    torch.cuda.synchronize()
    graphs = [torch.cuda.CUDAGraph() for _ in range(4)]
    results = [captured(graphs[0], x, None)]
    for graph in graphs[1:]:
        results.append(captured(graph, x, graphs[0].pool()))
    assert len({y.data_ptr() for y in results}) == 4
    assert pool.stats().captured == 4 * MIB  # one copy for all four
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert [y[0].item() for y in results] == [2.0] * 4
    results.clear()
    for graph in graphs:
        graph.reset()
    assert pool.stats().captured == 0
    pool.validate()


def test_the_state_of_a_pool_is_checked_and_restored(pool: arena.Arena) -> None:
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    y = captured(graph, x, None)
    memory = graph.pool()
    address, storage = y.data_ptr(), y.untyped_storage()
    state = torch._C._cuda_getCheckpointState(0, memory)
    assert torch._C._cuda_checkPoolLiveAllocations(0, memory, {address})
    assert not torch._C._cuda_checkPoolLiveAllocations(0, memory, set())
    assert not torch._C._cuda_checkPoolLiveAllocations(0, memory, {address, 1})
    metadata = (storage.nbytes(), y.dtype)
    live = torch.cuda.memory_allocated()
    del y, storage
    assert torch._C._cuda_checkPoolLiveAllocations(0, memory, set())
    assert torch.cuda.memory_allocated() == live - 4 * MIB
    again = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda:0"), metadata[0])
    torch._C._cuda_setCheckpointPoolState(0, state, [], [again._cdata])
    assert torch._C._cuda_checkPoolLiveAllocations(0, memory, {address})
    assert torch.cuda.memory_allocated() == live
    assert torch._C._has_Standard_Deleter(again._cdata)
    other = mebibytes(4)
    assert other.data_ptr() != address
    del again
    assert torch._C._cuda_checkPoolLiveAllocations(0, memory, set())
    assert torch.cuda.memory_allocated() == live
    graph.reset()
    pool.validate()


def trees() -> list[int]:
    """Several graphs in one pool: what follows a replayed graph is recorded from the state after it."""
    from torch._inductor import cudagraph_trees  # in a process of its own: it prints something at the end

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    trained = torch.compile(model, backend="cudagraphs")
    first = torch.compile(lambda x: (x * 2).view(-1)[:1000].clone(), backend="cudagraphs")
    others = [torch.compile(function, backend="cudagraphs") for function in (torch.sin, torch.cos, torch.exp)]
    figures = []
    for step in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        trained(torch.full((16, 64), float(step), device="cuda")).sum().backward()
        model.zero_grad()
        figures.append(torch.cuda.memory_allocated())
    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            x = first(torch.zeros(64, 64, device="cuda"))
            y = others[step % 3](x)
        figures += [torch.cuda.memory_allocated(), y.data_ptr() != x.data_ptr()]
        del x, y
    manager = cudagraph_trees.get_container(0).tree_manager
    assert manager is not None
    return [*figures, manager.debug_checkpointing_counter]


def in_own_process(file: Path, *, with_arena: bool) -> list[int]:
    child = os.fork()
    if child == 0:
        try:
            pool = arena.Arena(cap="256MiB")
            if with_arena:
                arena.torch.use(pool)
            figures = trees()
            pool.validate()
            file.write_text(json.dumps(figures))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(file.read_text())  # type: ignore[no-any-return]


def test_compiled_programs_record_graph_trees_as_with_pytorchs_own_allocator(tmp_path: Path) -> None:
    expected = in_own_process(tmp_path / "native", with_arena=False)
    assert in_own_process(tmp_path / "arena", with_arena=True) == expected
    assert expected[-1] > 0  # checkpoints were restored
