"""The end of CuPy's arrays: during an exception, in other threads, and at interpreter exit."""

from __future__ import annotations

import copy
import pickle
import subprocess
import threading

import pytest

from .. import forked
from .conftest import MIB, MakeArena


def test_an_exception_being_raised_survives_the_end_of_an_array(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    for _ in range(3):
        with pytest.raises(TypeError, match="bad operand type for abs"):
            abs([pool.malloc(1000)])  # type: ignore[arg-type]
    assert pool.stats().live == 0


def test_memory_objects_cannot_be_created_copied_or_redirected(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    pointer = pool.malloc(1000)
    memory = pointer.mem
    with pytest.raises(TypeError, match="cannot create"):
        type(memory)()
    for duplicate in (copy.copy, pickle.dumps):
        with pytest.raises((TypeError, pickle.PicklingError)):
            duplicate(memory)
    memory.ptr, memory.size = 12345, 0  # CuPy lets anyone write to its fields
    del pointer, memory
    assert pool.stats().live == 0


def run(code: str) -> subprocess.CompletedProcess[str]:
    return forked.run(code, imported=("cupy", "arena"), ARENA_DRIVER="sim")


START = """
import gc, sys, threading, time
import arena, cupy
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
cupy.cuda.set_allocator(pool.malloc)
cupy.empty(1 << 20)
array = cupy.empty(1 << 20, dtype="u1")
"""
ENDS = {
    "as it is": "",
    "the pool first": "del pool; cupy.cuda.set_allocator(None)",
    "closed": "pool.close()",
    "in a cycle": "array = [array, pool]; array.append(array); del pool",
    "by exit": "sys.exit(0)",
    "in a class": "class Keeper: array = cupy.empty(1000)",
    "after cupy": "sys.last_array = array; del array",
    "in a thread that goes on": """
def work():
    while True:
        cupy.empty(1000)
        pool.malloc(100_000)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
    "with the default arena": "array = [arena.malloc(1000), arena.malloc(1000)]",
    "in a finalizer": """
class Keeper:
    def __del__(self, array=cupy.empty(1000), empty=cupy.empty):
        empty(1000)
sys.keeper = Keeper()
""",
    "after a reset": "arena.sim.reset()",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_exits_cleanly_with_live_arrays(end: str) -> None:
    done = run(START + ENDS[end])
    assert (done.returncode, done.stderr) == (0, "")


def test_thread_local_arrays_are_freed_with_their_thread(make: MakeArena) -> None:
    code = """
import threading
import arena, cupy
pool = arena.Arena(device="sim:1GiB")
own = threading.local()
def work():
    own.array = pool.malloc(1000)
for _ in range(4):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(pool.stats().live)
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_arrays_can_be_created_and_dropped_while_another_thread_holds_the_lock(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    stop = threading.Event()

    def keep_it_locked() -> None:
        while not stop.is_set():
            pool.validate()  # without the GIL

    thread = threading.Thread(target=keep_it_locked)
    thread.start()
    try:
        for _ in range(300):
            pool.malloc(1000)
            pool.malloc(MIB)
    finally:
        stop.set()
        thread.join()
    assert pool.stats().live == 0
