"""PyTorch with its own allocator on the simulated card: memory, copies, streams, events, graphs, processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from arena import sim

from ..programs import run
from .models import captured_training_step

MIB = 1 << 20


def test_the_device_is_the_card() -> None:
    card, found = sim.card("t4"), torch.cuda.get_device_properties(0)
    assert (found.name, found.total_memory, found.multi_processor_count) == ("Tesla T4", card.memory, 40)
    assert (found.major, found.minor) == (7, 5)
    assert torch.cuda.device_count() == 1
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    free, total = torch.cuda.mem_get_info()
    assert (total - free, total) == (card.context, card.memory)


def test_every_allocation_is_one_of_the_driver_and_cached_memory_is_returned() -> None:
    before = sim.used()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 64 * MIB
    used = sim.used() - before
    del x
    torch.cuda.empty_cache()
    assert used >= 64 * MIB
    assert torch.cuda.memory_reserved() == 0


def test_out_of_memory_is_pytorchs_error_and_it_goes_on() -> None:
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 100.00 GiB. GPU 0 has a total capacity of 14.74"
    ):
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    assert torch.empty(8 << 30, dtype=torch.uint8, device="cuda").numel() == 8 << 30


def test_what_is_copied_is_there() -> None:
    x = torch.arange(10_000)
    there = x.cuda()
    assert torch.equal(there.cpu(), x)
    assert torch.equal(there.clone().cpu(), x)
    pinned = torch.empty(10_000, dtype=torch.int64, pin_memory=True)
    pinned.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(pinned, x)
    assert pinned.is_pinned()


def test_kernels_of_large_tensors_compute_nothing() -> None:
    x = torch.zeros(1 << 17, device="cuda")
    assert (x + 1).cpu().sum() == 0
    assert (x[:10] + 1).cpu().sum() == 10


def test_streams_and_events_keep_their_order() -> None:
    side, done = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    begun = torch.cuda.Event(enable_timing=True)
    host = torch.arange(1000).pin_memory()
    with sim.temporarily(delay=20_000), torch.cuda.stream(side):
        begun.record()
        x = host.to("cuda", non_blocking=True)
        done.record()
        assert not done.query()
    torch.cuda.current_stream().wait_event(done)
    y = x.clone()  # the race checker would see it if this did not wait
    x.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert (side.query(), done.query(), begun.elapsed_time(done) > 0) == (True, True, True)
    assert torch.equal(y.cpu(), host)


def test_streams_have_priorities() -> None:
    assert torch.cuda.Stream(priority=-1).priority == -1
    assert torch.cuda.Stream().priority == 0


def test_peak_statistics_are_kept() -> None:
    torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() == 10 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert "Allocated memory" in torch.cuda.memory_summary()


SEGMENTS = """
import torch
from arena import sim
x = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (30, 50, 70)]
assert torch.cuda.memory.get_allocator_backend() == "native"
segments = torch.cuda.memory_snapshot()
print(len(segments), {segment["is_expandable"] for segment in segments}, torch.cuda.memory_reserved() >> 20)
del x
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved(), sim.used() - sim.card("t4").context)
y = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.parametrize("expandable", [False, True])
def test_pytorchs_allocator_runs_with_and_without_expandable_segments(tmp_path: Path, expandable: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(SEGMENTS)
    done = subprocess.run(
        [sys.executable, "-m", "arena", "dryrun", "--card", "t4", "--allocator", "native", str(program)],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"},
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    assert said == ["1 {True} 160" if expandable else "3 {False} 150", "0 0"], done.stderr
    assert done.returncode == 0
    assert "PyTorch's allocator: at most 200 MiB live" in done.stderr


def test_asynchronous_allocation_of_cuda_itself_runs(tmp_path: Path) -> None:
    code = """
import arena
with arena.sim.dryrun(card="t4"):
    import torch
    x = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory.get_allocator_backend(), torch.cuda.memory_allocated())
    del x
"""
    done = run(code, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert done.stdout == f"cudaMallocAsync {30 * MIB}\n", done.stderr


def test_a_captured_graph_is_replayed() -> None:
    source, target = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(source)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = source.clone()
        target.copy_(middle)
    for value in (1.0, 2.0):
        source.copy_(torch.full((1 << 20,), value))
        graph.replay()
        torch.cuda.synchronize()
        assert target[:3].cpu().tolist() == [value] * 3
    graph.reset()
    del middle


def test_a_training_step_is_captured_and_replayed() -> None:
    graph, _kept = captured_training_step()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_data_is_loaded_by_worker_processes() -> None:
    data = TensorDataset(torch.arange(64.0).view(64, 1))
    total = 0.0
    for (batch,) in DataLoader(data, batch_size=16, num_workers=2, pin_memory=True):
        there = batch.cuda(non_blocking=True)
        total += there.cpu().sum().item()
    assert total == sum(range(64))


def test_workers_work_after_cuda_was_used() -> None:
    held = torch.zeros(MIB, device="cuda")
    data = TensorDataset(torch.arange(8.0))
    assert sum(batch.numel() for (batch,) in DataLoader(data, batch_size=2, num_workers=1)) == 8
    del held


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        (lambda x: torch.fft.rfft2(x), (64, 33)),
        (lambda x: torch.linalg.qr(x)[0], (64, 64)),
        (lambda x: torch.linalg.svdvals(x), (64,)),
        (lambda x: torch.linalg.solve(x + torch.eye(64, device="cuda"), x), (64, 64)),
        (lambda x: x.to_sparse_csr() @ x, (64, 64)),
        (lambda x: torch.sort(x, dim=1).values, (64, 64)),
        (lambda x: torch.cumsum(x, 0), (64, 64)),
        (lambda x: torch.topk(x, 5).values, (64, 5)),
        (lambda x: torch.einsum("ij,kj->ik", x, x), (64, 64)),
        (lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2), (1, 1, 128, 128)),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_other_libraries_run(operation: object, shape: tuple[int, ...]) -> None:
    assert callable(operation)
    assert operation(torch.zeros(64, 64, device="cuda")).shape == shape


def test_random_numbers_are_asked_for() -> None:
    torch.manual_seed(1)
    state = torch.cuda.get_rng_state()
    assert torch.randn(100, device="cuda").shape == (100,)
    assert torch.nn.functional.dropout(torch.zeros(100, device="cuda")).shape == (100,)
    torch.cuda.set_rng_state(state)


def test_torch_compile_says_what_is_missing() -> None:
    """It compiles for the device, and is out of scope: docs/dryrun-pytorch.md."""

    @torch.compile
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(Exception, match=r"libcuda\.so"):
        double(torch.zeros(10, device="cuda"))


def test_memory_is_returned_at_the_end() -> None:
    x = [torch.zeros(size << 10, device="cuda") for size in range(1, 50)]
    del x
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert sim.used() == sim.card("t4").context
