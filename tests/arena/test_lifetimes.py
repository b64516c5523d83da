"""Buffers, arenas and processes end in any order."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

import arena
from arena import UsageError, sim

from .. import forked
from ..programs import run
from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, Work


def test_a_buffer_is_freed_once_by_free_by_with_or_when_dropped(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    buffer = pool.allocate(1000)
    buffer.free()
    buffer.free()
    with pool.allocate(1000) as other:
        assert other.__cuda_array_interface__["data"] == (other.ptr, False)
    pool.allocate(1000)
    assert pool.stats().live == 0
    with pytest.raises(UsageError, match="this buffer was freed"):
        other.record_stream(0)


def test_buffers_outlive_a_closed_arena_and_go_back_when_freed(make: MakeArena, work: Work) -> None:
    pool = make(cap="8MiB")
    buffer = pool.allocate(MIB)
    pool.close()
    pool.close()
    with pytest.raises(UsageError, match="the arena is closed"):
        pool.allocate(1)
    assert repr(pool) == "<arena.Arena on device 0, closed>"
    work.fill(buffer, 5)
    assert work.holds(buffer, 5)
    buffer.free()
    assert sim.used() == 0


def test_a_buffer_may_be_freed_by_another_thread(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    stream = cu.stream()
    buffer = pool.allocate(4 * MIB, stream)
    with sim.temporarily(delay=2000):
        work.fill(buffer, 1, stream)
        thread = threading.Thread(target=buffer.free)
        thread.start()
        thread.join()
        again = pool.allocate(4 * MIB, stream)  # ordered behind the work of its stream, whichever thread freed it
        work.fill(again, 2, stream)
    assert work.holds(again, 2, stream)
    assert pool.stats().blocks == 1


def test_an_arena_dropped_before_its_buffers_lives_as_long_as_they_do(make: MakeArena, work: Work) -> None:
    buffer = arena.Arena(cap="8MiB").allocate(MIB)
    work.fill(buffer, 5)
    assert work.holds(buffer, 5)
    del buffer
    assert (sim.used(), sim.census().reservations) == (0, 0)


END = """
import os, sys
import arena
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
buffer = pool.allocate(1 << 20)
{end}
"""


@pytest.mark.parametrize(
    "end",
    ["", "del pool", "del buffer", "keep = [pool, buffer]; keep.append(keep)", "sys.exit(0)", "arena.sim.reset()"],
)
def test_the_interpreter_exits_cleanly_in_any_order(end: str) -> None:
    done = forked.run(END.format(end=end), imported=("arena",), ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_may_drop_what_it_inherited() -> None:
    code = END.format(end="child = os.fork()") + "del buffer, pool\nif child: print(os.waitpid(child, 0)[1])\n"
    done = run(code, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("before", ["pool = arena.Arena()", "arena.driver().devices()", "arena.default_arena()"])
def test_a_forked_child_cannot_make_an_arena_if_its_parent_used_cuda(before: str) -> None:
    code = f"""
import os, sys
import arena
{before}
child = os.fork()
if child == 0:
    calls = (
        arena.Arena, arena.default_arena, lambda: arena.Arena(device="sim:1GiB"), lambda: arena.driver().devices(),
        lambda: arena.Driver.open("sim"),
    )
    for call in calls:
        try:
            print("made", call())
        except arena.UsageError as error:
            assert "before the process was forked" in str(error) and '"spawn"' in str(error), error
    print("refused", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(arena.Arena().allocate(1000).nbytes)
"""
    done = forked.run(code, imported=("arena",), ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("refused\n1000\n", "")


def test_a_forked_child_can_make_an_arena_if_its_parent_has_not_used_cuda() -> None:
    code = """
import os
import arena
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0  # or the two would print at the same time
print(arena.Arena().allocate(1000).nbytes, flush=True)
"""
    done = forked.run(code, imported=("arena",), ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("1000\n1000\n", "")


def test_a_forked_child_cannot_use_its_parents_arena() -> None:
    """Not even if another thread of the parent held the arena's lock at the fork."""
    code = """
import os, sys, threading
import arena
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
kept = pool.allocate(1000)
stop = threading.Event()
def work():
    while not stop.is_set():
        pool.allocate(1000).free()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            kept.free()
            for call in (lambda: pool.allocate(1), pool.stats, pool.trim, pool.snapshot, lambda: pool.scope("x")):
                try:
                    call()
                except arena.UsageError as error:
                    assert "before the process was forked" in str(error), error
                else:
                    assert call is not pool.stats
            pool.close()
            del pool
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
pool.validate()
print(pool.stats().blocks)
"""
    done = run(code, timeout=60, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_importing_arena_opens_no_driver() -> None:
    done = run("import arena, os; print('libcudasim' in open('/proc/self/maps').read())")
    assert done.stdout == "False\n"


@pytest.mark.parametrize("settings", ["", ", vmm=False"], ids=["virtual", "plain"])
def test_the_interpreter_exits_while_a_daemon_thread_allocates(settings: str) -> None:
    code = f"""
import threading, time
import arena
pool = arena.Arena(cap="64MiB", device="sim:1GiB"{settings})
def work():
    while True:
        pool.allocate(3 << 20).free()
        pool.trim()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(4):
        done = run(code, timeout=30, ARENA_DRIVER="sim")
        assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_exits_while_a_daemon_thread_is_in_an_upstream_function() -> None:
    code = """
import threading, time
import arena
from tests.simulated.cu import Cu
cu = Cu()
context = cu.start()
class Given:
    def __init__(self, size):
        time.sleep(0.001)
        cu.ok("cuCtxSetCurrent", context)
        self.ptr = cu.alloc(size)
    def __del__(self):
        time.sleep(0.001)
        cu.ok("cuMemFree", self.ptr)
pool = arena.Arena(cap="64MiB", upstream=Given)
def work():
    while True:
        pool.allocate(3 << 20).free()
        pool.trim()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(4):
        done = run(code, timeout=30, ARENA_DRIVER="sim")
        assert (done.returncode, done.stderr) == (0, "")


def test_a_buffer_can_be_neither_copied_nor_pickled(make: MakeArena) -> None:
    buffer = make(cap="8MiB").allocate(512)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can be neither copied nor pickled"):
            duplicate(buffer)


@pytest.mark.parametrize("before", ["", "import arena"])
def test_importing_arena_in_a_sub_interpreter_is_a_clear_error(before: str) -> None:
    code = f"""
{before}
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = "try:\\n  import arena\\nexcept ImportError as error:\\n  print(error, flush=True)"
interpreters.run_string(interpreters.create(), code)
"""
    done = run(code, timeout=30, ARENA_DRIVER="sim")
    # Python 3.12 refuses by itself, because of ctypes, which arena needs.
    said = ("arena works only in the main interpreter of a process", "does not support loading in subinterpreters")
    assert any(text in done.stdout for text in said), done.stdout
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_an_arena_that_cannot_wait_at_its_end_leaks_memory_rather_than_unmap_it(
    cu: Cu, monkeypatch: pytest.MonkeyPatch, vmm: bool
) -> None:
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    pool = arena.Arena(
        cap="8MiB", vmm=vmm
    )  # in a context that others use too: the arena's own would take the memory with it
    buffer = pool.allocate(MIB, cu.stream())
    before, used = sim.census(), sim.used()
    for function in ("cuCtxRecordEvent", "cuCtxSynchronize"):
        sim.fail(function, "CUDA_ERROR_UNKNOWN", times=2)
    del pool, buffer
    sim.clear_planned()
    after = sim.census()
    assert (after.mappings, after.allocations) == (before.mappings, before.allocations)
    assert sim.used() == used > 0
    assert sim.races() == []


@pytest.mark.parametrize("moment", ["re-backing", "end"])
def test_a_python_function_in_a_stream_does_not_hang_the_arena(moment: str) -> None:
    code = """
import ctypes, sys
import arena
from arena import sim
from tests.simulated.cu import Cu, MIB
sim.configure(delay=20_000)
cu = Cu()
cu.start()
pool = arena.Arena(cap="64MiB")
buffers = [pool.allocate(2 * MIB) for _ in range(8)]
del buffers[1::2]
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(data):
    print("called")
cu.ok("cuLaunchHostFunc", cu.stream(), host, 0)
if sys.argv[1] == "re-backing":
    pool.allocate(56 * MIB)
pool.close()
del buffers, pool
"""
    done = run(code, moment, timeout=30, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("called\n", "")
