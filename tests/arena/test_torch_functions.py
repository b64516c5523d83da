"""The C functions that PyTorch calls for memory, without PyTorch."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from arena import _core, sim

from ..programs import run
from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, check
from .native import compile_with_driver

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


STEADY = """
import sys, warnings
import arena
from arena import sim
from tests.arena.torch_functions import TorchFunctions, refuse_virtual_memory

case, stream = sys.argv[1], None
pool = arena.Arena(device="sim:1GiB", cap="512MiB", vmm=case != "plain", growth="2MiB")
functions = TorchFunctions(pool)
if case == "fallback":
    refuse_virtual_memory()
    warnings.simplefilter("always")
if case == "watched":
    pool.on_pressure(0.9, lambda: print("fired"), rearm=0.5)
    pool.on_pressure(0.9, lambda: print("fired"), of="live", rearm=0.5)
functions.miss(2)  # finds the arena, and warns of the platform
print(pool.vmm, *functions.miss(40))
"""


@pytest.mark.parametrize(
    ("case", "expected"), [("virtual", "True"), ("watched", "True"), ("plain", "False"), ("fallback", "False")]
)
def test_a_steady_miss_takes_neither_the_slow_path_nor_the_gil(case: str, expected: str) -> None:
    done = run(STEADY, case)
    assert (done.stdout, done.returncode) == (f"{expected} 40 0 0\n", 0), done.stderr
    assert done.stderr.count("RuntimeWarning") == (case == "fallback"), done.stderr


NEWS = """
import arena
from arena import _core
from tests.arena.torch_functions import TorchFunctions

pool = arena.Arena(device="sim:1GiB", cap="100MiB")
functions = TorchFunctions(pool)
fired = []
for of in ("reserved", "live"):
    pool.on_pressure(0.5, lambda of=of: fired.append((of, pool.stats().live >> 20)), of=of, rearm=0.25)
functions.miss(3)
before = _core.torch_python_calls()
for _ in range(2):
    addresses = [functions.allocate(10 << 20, 0, None) for _ in range(8)]
    for address in addresses:
        functions.free(address, 0, 0, None)
    pool.trim()
print(fired, _core.torch_python_calls() - before)
"""


def test_functions_for_pressure_take_the_gil_only_when_they_are_due() -> None:
    """Both fire once in each round; all other requests are served without Python."""
    done = run(NEWS)
    fired = [("reserved", 60), ("live", 60)] * 2
    assert (done.stdout, done.returncode) == (f"{fired} 2\n", 0), done.stderr


HOLD_THE_GIL = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <time.h>
typedef void* (*allocate_t)(size_t, int, void*);
typedef void (*free_t)(void*, size_t, int, void*);
struct work { allocate_t allocate; free_t free; int count; int done; };
static struct work work;
static void* run(void* unused) {
  for (int i = 0; i < work.count; ++i) {
    void* held[2];
    for (int j = 0; j < 2; ++j) held[j] = work.allocate((size_t)(work.done % 50 + i + j + 1) << 21, 0, NULL);
    for (int j = 0; j < 2; ++j) work.free(held[j], 0, 0, NULL);
  }
  ++work.done;
  return unused;
}
/* How often the work was done. The caller holds the GIL, or not. */
int serve(allocate_t allocate, free_t free_, int count) {
  pthread_t thread;
  struct timespec until;
  work.allocate = allocate; work.free = free_; work.count = count;
  pthread_create(&thread, NULL, run, NULL);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  pthread_timedjoin_np(thread, NULL, &until);
  return work.done;
}
"""

SERVE = """
import ctypes, os, sys
import arena
from tests.arena.torch_functions import TorchFunctions

pool = arena.Arena(device="sim:1GiB", cap="512MiB", growth="2MiB", compact=sys.argv[2] == "auto" and "auto")
functions = TorchFunctions(pool)
arguments = [ctypes.cast(one, ctypes.c_void_p) for one in (functions.allocate, functions.free)]
print(ctypes.CDLL(sys.argv[1]).serve(*arguments, 8), flush=True)
pool.trim()
misses = pool.stats().allocations - pool.stats().hits
print(ctypes.PyDLL(sys.argv[1]).serve(*arguments, 8), flush=True)
print(pool.stats().allocations - pool.stats().hits > misses, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("compact", ["auto", "never"])
def test_misses_of_a_thread_are_served_while_another_holds_the_gil(tmp_path: Path, compact: str) -> None:
    done = run(SERVE, str(compile_with_driver(HOLD_THE_GIL, tmp_path)), compact)
    assert (done.stdout, done.returncode) == ("1\n2\nTrue\n", 0), done.stderr


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "not recorded"])
def test_default_streams_of_other_devices_are_noted_too(make: MakeArena, number: int, is_recorded: bool) -> None:
    """PyTorch passes the same numbers for those of all devices, in the context of the memory's."""
    fresh(devices=2, races=True)
    cu = Cu()
    there, here = cu.start(1), cu.start(0)
    pool = make(device=0, cap="8MiB")
    buffer = pool.allocate(8 * MIB)
    with sim.temporarily(delay=50_000):
        cu.ok("cuCtxSetCurrent", there)
        cu.ok("cuMemsetD8Async", buffer.ptr, 0, 8 * MIB, number)
        cu.ok("cuCtxSetCurrent", here)
        if is_recorded:
            RECORD_STREAM(buffer.ptr, number)
        buffer.free()
        again = pool.allocate(8 * MIB)
        cu.ok("cuMemsetD8Async", again.ptr, 0, 8 * MIB, 0)
        cu.ok("cuCtxSynchronize_v2", 0)
    again.free()
    assert (len(sim.races()) == 0) == is_recorded
    sim.clear_races()
    check(pool)


def test_a_device_that_nobody_uses_stays_unused_when_a_default_stream_is_noted(make: MakeArena) -> None:
    fresh(devices=2)
    cu = Cu()
    cu.start(0)
    pool = make(device=0, cap="8MiB")
    buffer = pool.allocate(MIB)
    RECORD_STREAM(buffer.ptr, 0)
    is_active = ctypes.c_int()
    cu.ok("cuDevicePrimaryCtxGetState", 1, ctypes.byref(ctypes.c_uint()), ctypes.byref(is_active))
    assert is_active.value == 0
    buffer.free()
    assert pool.stats().waits == 0
