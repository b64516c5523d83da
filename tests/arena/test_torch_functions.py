"""The C functions that PyTorch calls for memory, without PyTorch."""

from __future__ import annotations

import ctypes

import pytest

from arena import _core, sim

from ..programs import run
from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, check

FORK_WHILE_ANOTHER_THREAD_ALLOCATES = """
import ctypes, os, signal, threading
import arena
from arena import _core

pool = arena.Arena(device="sim", cap="64MiB")
_core.connect_torch(lambda device: pool, lambda device, stream: True, lambda fraction, device: None)
lib = ctypes.CDLL(_core.__file__)
lib.arena_torch_alloc.restype = ctypes.c_void_p
lib.arena_torch_alloc.argtypes = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
lib.arena_torch_free.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
lib.arena_torch_free.restype = None
held = [lib.arena_torch_alloc(512, 0, None) for _ in range(64)]
stop = threading.Event()

def allocate():
    while not stop.is_set():
        address = lib.arena_torch_alloc(512, 0, None)
        lib.arena_torch_free(address, 512, 0, None)

threads = [threading.Thread(target=allocate) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # if it waits for a lock that the parent's thread held
        for address in held:
            lib.arena_torch_free(address, 512, 0, None)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        break
stop.set()
for thread in threads:
    thread.join()
live = pool.stats().live
for address in held:
    lib.arena_torch_free(address, 512, 0, None)
print(status, live, pool.stats().live)
"""


def test_a_forked_child_drops_tensors_while_the_parents_threads_allocate() -> None:
    """As PyTorch's DataLoader does: the child's copies are the parent's memory, and stay."""
    done = run(FORK_WHILE_ANOTHER_THREAD_ALLOCATES, timeout=60)
    assert (done.stdout, done.returncode) == (f"0 {64 * 512} 0\n", 0), done.stderr


RECORD_STREAM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(_core.torch_functions()["record_stream"])


@pytest.mark.parametrize(("start", "is_noted"), [(0, True), (5000, True), (MIB - 1, True), (MIB, False)])
def test_a_stream_is_noted_for_the_block_that_an_address_lies_in(
    make: MakeArena, cu: Cu, start: int, is_noted: bool
) -> None:
    """As in a tensor that came from CuPy: PyTorch did not allocate it."""
    make(cap="64MiB")
    pool, own, other = make(cap="64MiB"), cu.stream(), cu.stream()
    with sim.temporarily(delay=20_000):
        buffer = pool.allocate(MIB, stream=own)
        cu.ok("cuMemsetD8Async", buffer.ptr, 0, MIB, other)
        RECORD_STREAM(buffer.ptr + start, other)
        buffer.free()
        again = pool.allocate(MIB, stream=own)
        cu.ok("cuMemsetD8Async", again.ptr, 0, MIB, own)
        cu.ok("cuCtxSynchronize_v2", 0)
    again.free()
    assert (len(sim.races()) == 0) == is_noted
    sim.clear_races()
    RECORD_STREAM(12345, other)  # nobody's
    check(pool)
