"""Live data moves in trainings: which threads of PyTorch allow it, and which do not.

Tensors of known contents are checked after each attempt, and the race checker is on.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader, TensorDataset

import arena
import arena.torch
from arena import sim
from arena._pool import registered

from ..arena.native import compile_with_driver
from ..arena.test_auto_compact import LAUNCHER
from ..threads import thread_in_native_code
from .stranded import Stranded
from .trainings import train

# PyTorch 2.9 warns of what its own loader does.
pytestmark = pytest.mark.filterwarnings("ignore:The argument 'device' of Tensor:DeprecationWarning")

GRANULE = 2 << 20
MOVED, THREADS = "moved", 'another thread may launch work (compact="auto")'
NCCL = 'NCCL may have registered its pages (compact="auto")'


def start_autograd() -> None:
    """Start autograd's threads by a small backward pass."""
    x = torch.zeros(1, device="cuda", requires_grad=True)
    (x * 2).sum().backward()


def mean_of(size: int) -> torch.Tensor:
    """A result whose gradient takes so many bytes. The forward pass takes none of that."""
    return torch.zeros((), device="cuda", requires_grad=True).expand(size // 4).mean()


class Wait(torch.autograd.Function):
    """A node that calls a function in its backward pass."""

    called: Any = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Wait.called()
        return gradient


def backward_through(called: Any) -> None:
    Wait.called = called
    Wait.apply(torch.zeros(1, device="cuda", requires_grad=True)).sum().backward()


@contextmanager
def backward_elsewhere(called: Any) -> Iterator[None]:
    """Another thread runs a backward pass, and is in a node that calls this function."""
    thread = threading.Thread(target=backward_through, args=(called,))
    thread.start()
    time.sleep(0.2)
    try:
        yield
    finally:
        thread.join()


def test_live_data_is_moved_while_autograds_threads_are_idle() -> None:
    stranded = Stranded()
    start_autograd()
    assert stranded.attempt() == MOVED


def test_live_data_is_moved_by_autograds_thread_in_the_middle_of_a_node_without_the_gil() -> None:
    stranded = Stranded()
    loss = mean_of(stranded.size)
    loss.backward()  # the main thread waits for it
    assert stranded.moved > 0
    stranded.check()


def test_live_data_is_moved_by_a_hook_in_python() -> None:
    stranded = Stranded()
    found: list[tuple[str, int]] = []
    x = torch.zeros(1, device="cuda", requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: found.append((stranded.attempt(), threading.get_ident())))
    y.sum().backward()
    assert [outcome for outcome, _ in found] == [MOVED]
    assert found[0][1] != threading.get_ident()


@pytest.mark.parametrize("depth", [1, 3, 70])
def test_live_data_is_moved_in_a_backward_pass_inside_of_others(depth: int) -> None:
    """From the sixtieth on, the engine continues in another thread."""
    stranded = Stranded()
    found: list[str] = []

    def nest(left: int) -> None:
        if left == 0:
            found.append(stranded.attempt())
        else:
            with torch.enable_grad():
                Nested.apply(torch.zeros(1, device="cuda", requires_grad=True), left).sum().backward()

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, left: int) -> torch.Tensor:
            ctx.left = left
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            nest(ctx.left - 1)
            return gradient, None

    nest(depth)
    assert found == [MOVED]
    stranded.check()


def test_live_data_is_moved_while_another_thread_waits_for_a_backward_pass_in_python() -> None:
    stranded = Stranded()
    start_autograd()
    go = threading.Event()
    with backward_elsewhere(go.wait):
        outcome = stranded.attempt()
        go.set()
    assert outcome == MOVED


def test_live_data_is_not_moved_while_a_node_of_another_backward_pass_runs_native_code() -> None:
    stranded = Stranded()
    start_autograd()
    with backward_elsewhere(lambda: ctypes.CDLL(None).usleep(3_000_000)):
        assert stranded.attempt() == THREADS


def test_live_data_is_not_moved_while_a_node_of_another_backward_pass_computes() -> None:
    stranded = Stranded()
    start_autograd()
    x = torch.randn(1500, 1500)
    over = time.monotonic() + 3

    def compute() -> None:
        while time.monotonic() < over:
            x @ x

    with backward_elsewhere(compute):
        assert stranded.attempt() == THREADS


def test_live_data_is_not_moved_beside_a_thread_in_native_code() -> None:
    stranded = Stranded()
    start_autograd()
    with thread_in_native_code():
        assert stranded.attempt() == THREADS
        before = stranded.moved
        with pytest.raises(RuntimeError, match="another thread may launch work"):
            mean_of(stranded.size).backward()
        assert stranded.moved == before
    assert stranded.attempt() == MOVED


def test_live_data_is_moved_beside_idle_pools_of_pytorch() -> None:
    stranded = Stranded()
    start_autograd()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit will go some day
        function = torch.jit.script(forked)
    function(torch.zeros(3))
    x = torch.randn(600, 600)
    (x @ x).sum()
    time.sleep(0.1)
    assert "PTThreadPool" in names_of_threads()
    assert stranded.attempt() == MOVED


def forked(x: torch.Tensor) -> torch.Tensor:
    future = torch.jit.fork(torch.neg, x)
    return torch.jit.wait(future)


def test_live_data_is_moved_beside_the_pinning_thread_of_a_loader() -> None:
    stranded = Stranded()
    start_autograd()
    data = TensorDataset(torch.arange(64.0).reshape(64, 1))
    batches = iter(DataLoader(data, batch_size=8, num_workers=1, pin_memory=True, persistent_workers=True))
    batch = next(batches)[0]
    assert batch.is_pinned()
    time.sleep(0.2)
    assert batches._pin_memory_thread.is_alive()
    assert stranded.attempt() == MOVED


def names_of_threads() -> set[str]:
    return {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}


def trained(cap: int, compact: bool | str) -> int:
    """Train in a fork. Return the live bytes at the peak, or 0 if memory ran out."""
    answer = Path(f"/proc/self/fd/{os.memfd_create('live')}")
    child = os.fork()
    if child == 0:
        pool = arena.Arena(cap=cap, compact=compact)
        arena.torch.use(pool)
        try:
            train()
            answer.write_text(str(pool.stats().peak_live))
        except RuntimeError as error:
            answer.write_text("0" if "out of memory" in str(error) else f"{error}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return int(answer.read_text())


def test_a_training_fits_by_moving_live_data_where_it_does_not_without() -> None:
    """Forward, backward and optimizer; checkpoints, hooks, and a loader whose batches a thread pins."""
    live = trained(1 << 30, compact=False)
    caps = (int(live * (1 + percent / 100)) // GRANULE * GRANULE for percent in range(12, 0, -1))
    cap = next(cap for cap in caps if not trained(cap, compact=False))
    pool = arena.Arena(cap=cap)
    arena.torch.use(pool)
    train()
    assert pool.stats().rebacked > 0
    assert sim.findings() == []


def test_live_data_is_not_moved_while_nccl_has_a_communicator() -> None:
    stranded = Stranded()
    start_autograd()
    nccl = ctypes.CDLL("libnccl.so.2")
    communicators = (ctypes.c_void_p * 2)()
    assert nccl.ncclCommInitAll(communicators, 2, None) == 0
    time.sleep(0.1)
    assert stranded.attempt() == NCCL
    for communicator in communicators:
        assert nccl.ncclCommDestroy(ctypes.c_void_p(communicator)) == 0
    time.sleep(0.1)
    assert stranded.attempt() == MOVED


def test_the_backends_of_real_process_groups_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/arena/test_registered_pages.py has groups of other backends, which are made up."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    assert registered.libraries_in_use() == ()
    monkeypatch.setattr(registered, "_WITHOUT_PAGES", set())
    assert registered.libraries_in_use() == ("torch.distributed with gloo",)
    distributed.destroy_process_group()
    assert registered.libraries_in_use() == ()


class Launcher:
    """Launches work by the driver, without the GIL, in threads."""

    def __init__(self, folder: Path) -> None:
        self.launch = ctypes.CDLL(str(compile_with_driver(LAUNCHER, folder))).launch
        self.launch.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int]
        self.failed = 0

    def work(self, tensor: torch.Tensor, value: int, times: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda.synchronize()  # makes the context current in this thread
            self.failed |= self.launch(tensor.data_ptr(), value, tensor.nbytes, stream.cuda_stream, times)

    def start(self, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=self.work, args=arguments)
        thread.start()
        return thread


def test_data_is_never_moved_under_a_thread_that_launches_work_beside_backward_passes(tmp_path: Path) -> None:
    """The same with compact=True loses data."""
    launcher, stranded = Launcher(tmp_path), Stranded()
    start_autograd()
    found: list[str] = []
    chance = random.Random(5)
    over = time.monotonic() + 10
    while time.monotonic() < over:
        index, times = chance.randrange(4), chance.choice([0, 1, 50, 500, 3000])
        thread = launcher.start(stranded.live[index], index + 1, times)
        time.sleep(chance.choice([0, 0.001, 0.003]))
        backward_through(lambda: found.append(stranded.ask()))
        thread.join()
        stranded.check()
        stranded.strand()
    assert launcher.failed == 0
    assert set(found) == {MOVED, THREADS}
