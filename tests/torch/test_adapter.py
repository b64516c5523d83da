"""arena.torch: PyTorch's memory comes from an arena."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import types

import pytest
import torch

import arena
import arena.torch
from arena import sim

from .tensors import MIB, holds, mebibytes, write


def test_a_tensor_is_a_block_of_the_arena(pool: arena.Arena) -> None:
    assert arena.torch.is_in_use()
    x = mebibytes(10)
    assert pool.stats().live == 10 * MIB
    assert holds(pool, x)
    y = x.view(-1)[MIB:]
    del x
    assert pool.stats().live == 10 * MIB
    del y
    assert pool.stats().live == 0


def test_without_an_argument_it_is_the_default_arena() -> None:
    arena.torch.use()
    x = mebibytes(1)
    assert holds(arena.default_arena(), x)


def test_an_empty_tensor_takes_nothing(pool: arena.Arena) -> None:
    x = torch.empty(0, device="cuda")
    assert (x.numel(), pool.stats().blocks) == (0, 0)


def test_out_of_memory_is_pytorchs_error_with_the_arenas_text_and_pytorch_goes_on(pool: arena.Arena) -> None:
    held = mebibytes(200)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory: 100 MiB ") as failed:
        mebibytes(100)
    assert "cap" in str(failed.value)
    assert pool.stats().failures == 1
    del held, failed
    x = mebibytes(200)
    assert x[:10].sum().item() == 0
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    del x
    assert pool.stats().live == 0


def test_garbage_is_collected_before_a_request_fails(pool: arena.Arena) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me, self.memory = self, mebibytes(200)

    gc.disable()
    Cycle()
    x = mebibytes(200)
    assert pool.stats().live == 200 * MIB
    del x


def test_functions_for_out_of_memory_are_called_in_the_thread_that_asks(pool: arena.Arena) -> None:
    held = [mebibytes(200)]
    called: list[tuple[int, int]] = []

    @pool.on_oom
    def make_room(request: arena.OutOfMemoryError) -> None:
        called.append((request.requested, threading.get_ident()))
        held.clear()

    x = mebibytes(100)
    assert called == [(100 * MIB, threading.get_ident())]
    del x


def test_an_error_in_such_a_function_is_shown_and_changes_nothing(
    pool: arena.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = mebibytes(200)
    shown: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: shown.append(str(raised.exc_value)))

    @pool.on_oom
    def fails(request: arena.OutOfMemoryError) -> None:
        raise ValueError("there is nothing to give back")

    with pytest.raises(torch.OutOfMemoryError):
        mebibytes(100)
    assert shown == ["there is nothing to give back"]
    del held
    assert mebibytes(200).numel() == 200 * MIB


def test_backward_runs_in_autograds_thread_and_fails_there_as_elsewhere(pool: arena.Arena) -> None:
    w = torch.zeros(4 * MIB, device="cuda", requires_grad=True)  # 16 MiB
    (w * w).sum().backward()
    assert w.grad is not None
    w.grad = None
    held = mebibytes(195)  # room for the product, not for its gradient as well
    product = w * w
    room = mebibytes(200 - 195 + 8)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory: 16 MiB"):
        product.backward(torch.zeros(1, device="cuda").expand_as(product))
    del held, room
    product = w * w
    product.sum().backward()
    assert pool.stats().live >= 2 * 16 * MIB


def test_functions_for_out_of_memory_are_called_from_autograds_thread(pool: arena.Arena) -> None:
    w = torch.zeros(4 * MIB, device="cuda", requires_grad=True)
    product = w * w
    held = [mebibytes(150), mebibytes(256 - 16 - 16 - 150 - 4)]
    threads: list[int] = []

    @pool.on_oom
    def make_room(request: arena.OutOfMemoryError) -> None:
        threads.append(threading.get_ident())
        held.clear()

    product.backward(torch.zeros(1, device="cuda").expand_as(product))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_record_stream_keeps_memory_until_the_other_stream_is_done(pool: arena.Arena) -> None:
    side = torch.cuda.Stream()
    x = mebibytes(8)
    address = x.data_ptr()
    torch.cuda.synchronize()
    with sim.temporarily(delay=50_000):
        with torch.cuda.stream(side):
            write(x)
        x.record_stream(side)
        del x
        y = mebibytes(8)
        write(y)  # the race checker would see it if this were the same memory
        other = y.data_ptr() != address
    torch.cuda.synchronize()
    assert other or pool.stats().waits > 0


def test_the_race_checker_sees_what_happens_without_record_stream(pool: arena.Arena) -> None:
    side = torch.cuda.Stream()
    x = mebibytes(8)
    torch.cuda.synchronize()
    with sim.temporarily(delay=50_000):
        with torch.cuda.stream(side):
            write(x)
        del x
        write(mebibytes(8))
    torch.cuda.synchronize()
    assert len(sim.races()) > 0
    sim.clear_races()


def churn(streams: list[torch.cuda.Stream]) -> None:
    """Memory goes from stream to stream, so the arena has to know how far each is."""
    with sim.temporarily(delay=200):
        for _ in range(10):
            for stream in streams:
                with torch.cuda.stream(stream):
                    mebibytes(70).zero_()
        torch.cuda.synchronize()


def test_pytorchs_own_streams_are_kept_so_events_are_recorded_in_them(pool: arena.Arena) -> None:
    churn([torch.cuda.Stream() for _ in range(4)])
    assert sim.calls("cuEventRecord") > 0
    assert sim.calls("cuCtxRecordEvent") == 0


def test_a_stream_from_elsewhere_is_not_used_later_and_may_be_destroyed(pool: arena.Arena) -> None:
    torch.cuda.init()
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
    streams = [ctypes.c_void_p() for _ in range(4)]
    for stream in streams:
        assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 0
    before = sim.calls("cuEventRecord")
    churn([torch.cuda.ExternalStream(stream.value) for stream in streams])
    assert sim.calls("cuCtxRecordEvent") > 0  # in the whole context instead
    assert sim.calls("cuEventRecord") - before < sim.calls("cuCtxRecordEvent")
    for stream in streams:
        assert runtime.cudaStreamDestroy(stream) == 0
    mebibytes(200).zero_()
    torch.cuda.synchronize()


def test_threads_share_the_arena(pool: arena.Arena) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                held = []
                for step in range(300):
                    held.append(torch.zeros((number * 37 + step * 101) % 5000 + 1, device="cuda"))
                    if len(held) > 20:
                        held.pop(step % 20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    torch.cuda.synchronize()
    gc.collect()
    assert pool.stats().blocks == 0


def test_a_tensor_of_one_thread_is_freed_in_another(pool: arena.Arena) -> None:
    held = [mebibytes(1) for _ in range(50)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.stats().blocks == 0


def test_tensors_may_outlive_the_arena(pool: arena.Arena) -> None:
    x = mebibytes(8)
    pool.close()
    del x
    with pytest.raises(RuntimeError, match="closed"):
        mebibytes(8)


live_at_exit: list[torch.Tensor] = []


def test_tensors_may_be_alive_when_the_interpreter_exits(pool: arena.Arena) -> None:
    live_at_exit.append(mebibytes(8))  # conftest.py looks at how this process ends


def test_tensors_may_be_alive_in_a_closed_arena_when_the_interpreter_exits(pool: arena.Arena) -> None:
    live_at_exit.append(mebibytes(8))
    pool.close()


def test_a_forked_child_may_drop_tensors_of_its_parent(pool: arena.Arena) -> None:
    x = mebibytes(8)
    child = os.fork()
    if child == 0:
        del x
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.stats().live == 8 * MIB
    x.zero_()
    del x
    assert pool.stats().live == 0


def test_a_forked_child_that_never_used_cuda_before_gets_an_arena_of_its_own() -> None:
    arena.torch.use()
    child = os.fork()
    if child == 0:
        x = mebibytes(8)
        os._exit(0 if holds(arena.default_arena(), x) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert holds(arena.default_arena(), mebibytes(8))


def test_another_arena_serves_a_part_of_the_program(pool: arena.Arena) -> None:
    other = arena.Arena(cap="32MiB")
    with arena.torch.pool(other) as given:
        assert given is other
        x = mebibytes(8)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory: 64 MiB"):
            mebibytes(64)
    y = mebibytes(64)
    assert (holds(other, x), holds(pool, y)) == (True, True)
    del x
    assert (other.stats().live, pool.stats().live) == (0, 64 * MIB)
    del y


def test_such_parts_nest(pool: arena.Arena) -> None:
    outer, inner = arena.Arena(cap="32MiB"), arena.Arena(cap="32MiB")
    with arena.torch.pool(outer):
        with arena.torch.pool(inner):
            x = mebibytes(1)
        y = mebibytes(1)
    assert (holds(inner, x), holds(outer, y)) == (True, True)


@pytest.mark.skipif(not hasattr(getattr(torch.cuda, "MemPool", None), "use_count"), reason="PyTorch 2.6 can do that")
def test_without_use_pytorchs_allocator_takes_its_segments_from_the_arena_in_that_part() -> None:
    mine = arena.Arena(cap="64MiB")
    before = mebibytes(4)
    with arena.torch.pool(mine):
        x = mebibytes(8)
        assert holds(mine, x)
        with pytest.raises(torch.OutOfMemoryError):
            mebibytes(100)
    after = mebibytes(4)
    assert not holds(mine, before)
    assert not holds(mine, after)
    assert mine.stats().live >= 8 * MIB
    del x
    gc.collect()
    torch.cuda.empty_cache()
    assert mine.stats().live == 0


def test_use_after_the_first_tensor_is_refused_with_what_to_do() -> None:
    x = mebibytes(1)
    with pytest.raises(arena.UsageError, match=r"call arena.torch.use\(\) before the first CUDA tensor"):
        arena.torch.use()
    assert not arena.torch.is_in_use()
    assert x.numel() == MIB


def test_use_may_be_called_again_with_the_same_arena_only(pool: arena.Arena) -> None:
    arena.torch.use(pool)
    arena.torch.use()
    with pytest.raises(arena.UsageError, match="uses another arena already"):
        arena.torch.use(arena.Arena(cap="1MiB"))


@pytest.mark.parametrize("given", ["1GiB", 0, object()])
def test_what_is_no_arena_is_refused(given: object) -> None:
    with pytest.raises(arena.UsageError, match=r"is not accepted; give an arena.Arena"):
        arena.torch.use(given)  # type: ignore[arg-type]


def test_a_pytorch_without_cuda_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "version", types.SimpleNamespace(cuda=None))
    with pytest.raises(arena.UsageError, match="is built without CUDA: install a build with it"):
        arena.torch.use()


def test_a_missing_pytorch_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(arena.ArenaError, match="pip install torch"):
        arena.torch.use()


def test_lines_are_the_programs_not_pytorchs(pool: arena.Arena) -> None:
    arena.trace_lines(True)
    layer = torch.nn.Linear(512, 512).cuda()
    x = torch.nn.functional.relu(layer(torch.zeros(64, 512, device="cuda")))
    lines = {line.name for line in pool.report().lines}
    assert lines
    assert {name.partition(":")[0] for name in lines} == {"test_adapter.py"}
    del x


def test_a_report_accounts_for_every_byte(pool: arena.Arena) -> None:
    x = [mebibytes(size) for size in (1, 3, 17)]
    assert "21 MiB" in str(pool.report())
    del x


def test_pressure_is_noticed(pool: arena.Arena) -> None:
    noticed: list[int] = []
    first = mebibytes(1)
    pool.on_pressure(0.5, lambda: noticed.append(1))
    held = mebibytes(200)
    assert noticed == [1]
    del first, held


def test_a_training_step_under_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_VALIDATE", "1")
    pool = arena.Arena(cap="256MiB")
    arena.torch.use(pool)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (8, 64, 16):
        model(torch.zeros(batch, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    del model, optimizer
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    assert pool.stats().live == 0


def test_a_block_of_sim_dryrun_ends_as_usual() -> None:
    with sim.dryrun(card="t4"):  # entered in conftest.py, too
        arena.torch.use()
        x = mebibytes(8)
        del x
    assert arena.default_arena().stats().live == 0
