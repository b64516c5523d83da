"""The C functions that PyTorch calls for memory, without PyTorch."""

from __future__ import annotations

from ..programs import run

FORK_WHILE_ANOTHER_THREAD_ALLOCATES = """
import ctypes, os, signal, threading
import arena
from arena import _core

pool = arena.Arena(device="sim", cap="64MiB")
_core.connect_torch(lambda device: pool, lambda device, stream: True)
lib = ctypes.CDLL(_core.__file__)
lib.arena_torch_alloc.restype = ctypes.c_void_p
lib.arena_torch_alloc.argtypes = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
lib.arena_torch_free.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
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
