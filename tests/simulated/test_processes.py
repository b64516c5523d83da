"""What the driver withstands: large devices, many handles, threads, forks, and interpreter exit."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import threading
import time
from functools import partial

import pytest

from arena import sim

from ..programs import run
from ..threads import run_together
from .cu import GIB, ILLEGAL_ADDRESS, MIB, SUCCESS, Cu

GRANULE = 2 * MIB


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_an_80_gib_device_costs_only_what_is_touched(machine: None) -> None:
    sim.configure(memory="80GiB")
    cu = Cu()
    cu.start()
    before = resident()
    address = cu.reserve(160 * GIB)
    for i in range(80):
        cu.map(address + 2 * i * GIB, cu.create(GIB), GIB)
        assert cu.allow(address + 2 * i * GIB, GIB) == SUCCESS
    assert sim.used() == 80 * GIB
    for i in range(80):
        cu.write(address + (2 * i + 1) * GIB - 5, b"touch")
        assert cu.read(address + (2 * i + 1) * GIB - 5, 5) == b"touch"
    assert resident() - before < 64 * MIB


def kernel_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)


@pytest.fixture
def huge(machine: None) -> Cu:
    sim.configure(memory="256GiB", races=False)
    cu = Cu()
    cu.start()
    return cu


def map_shuffled(cu: Cu, address: int, handles: list[int], seed: int) -> None:
    places = list(range(len(handles)))
    random.Random(seed).shuffle(places)
    for handle, place in zip(handles, places, strict=True):
        cu.map(address + place * GRANULE, handle)
        assert cu.allow(address + place * GRANULE) == SUCCESS


def test_100_000_handles_are_mapped_at_once_in_any_order(huge: Cu) -> None:
    cu, count = huge, 100_000
    address = cu.reserve(count * GRANULE)
    handles = [cu.create() for _ in range(count)]
    map_shuffled(cu, address, handles, seed=1)
    assert sim.census().mappings == count
    assert kernel_mappings() < 5_000
    for i in range(0, count, 9_973):
        cu.write(address + i * GRANULE, i.to_bytes(4, "little"))
    assert all(cu.read(address + i * GRANULE, 4) == i.to_bytes(4, "little") for i in range(0, count, 9_973))
    cu.ok("cuMemUnmap", address, count * GRANULE)
    map_shuffled(cu, address, handles, seed=2)  # each at another address than before
    assert sim.census().mappings == count
    assert kernel_mappings() < 60_000


def test_handles_that_hold_data_can_be_mapped_in_another_order(huge: Cu) -> None:
    cu, count = huge, 50_000
    address = cu.reserve(count * GRANULE)
    handles = [cu.create() for _ in range(count)]
    for i, handle in enumerate(handles):
        cu.map(address + i * GRANULE, handle)
    assert cu.allow(address, count * GRANULE) == SUCCESS
    for i in range(count):
        cu.ok("cuMemsetD8Async", address + i * GRANULE, i % 251, 1, 0)
    cu.ok("cuMemUnmap", address, count * GRANULE)
    order = list(range(count))
    random.Random(3).shuffle(order)
    for place, i in enumerate(order):
        cu.map(address + place * GRANULE, handles[i])
        assert cu.allow(address + place * GRANULE) == SUCCESS
    assert kernel_mappings() < 65_000
    sample = range(0, count, 499)
    assert [cu.read(address + place * GRANULE, 1)[0] for place in sample] == [order[p] % 251 for p in sample]


def test_released_memory_is_returned_to_the_host(cu: Cu) -> None:
    address = cu.alloc(256 * MIB)
    cu.ok("cuMemsetD8", address, 1, 256 * MIB)
    cu.ok("cuCtxSynchronize_v2", 0)
    full = shared_memory()
    cu.ok("cuMemFree", address)
    assert full - shared_memory() > 250 * MIB


def shared_memory() -> int:
    """Host memory used by the files behind simulated memory."""
    open_files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    ours = [path for path in open_files if os.path.islink(path) and "memfd:cudasim" in os.readlink(path)]
    return sum(os.stat(path).st_blocks * 512 for path in ours)


def test_8_threads_allocate_copy_and_free_side_by_side(cu: Cu) -> None:
    context = cu.out("cuCtxGetCurrent")

    def work(number: int) -> None:
        choose = random.Random(number)
        cu.ok("cuCtxSetCurrent", context)
        stream = cu.stream()
        for _ in range(60):
            size = choose.choice([512, 70_000, 3 * MIB])
            address = cu.alloc(size)
            mapped, handle = cu.mapped()
            cu.ok("cuMemsetD8Async", address, number, size, stream)
            cu.ok("cuMemcpyDtoDAsync", mapped, address, min(size, GRANULE), stream)
            out = ctypes.create_string_buffer(512)
            cu.ok("cuMemcpyDtoHAsync", out, mapped, 512, stream)
            cu.ok("cuStreamSynchronize", stream)
            assert out.raw == bytes([number]) * 512
            cu.ok("cuMemUnmap", mapped, GRANULE)
            cu.ok("cuMemAddressFree", mapped, GRANULE)
            cu.ok("cuMemRelease", handle)
            cu.ok("cuMemFree", address)
        cu.ok("cuStreamDestroy", stream)

    run_together(*[partial(work, number) for number in range(8)])
    census = sim.census()
    assert (sim.used(), census.handles, census.mappings, census.reservations, census.streams) == (
        0,
        0,
        0,
        0,
        0,
    )


FORK = """
import os, sys
from tests.simulated.cu import Cu, MIB
cu = Cu()
context = cu.start()
stream = cu.stream()
address = cu.alloc(8 * MIB)
{busy}
child = os.fork()
if child == 0:
    results = [cu.cuInit(0), cu.cuCtxSetCurrent(context), cu.cuMemFree(address), cu.cuStreamSynchronize(stream)]
    import ctypes
    version = ctypes.c_int()
    known = cu.cuDriverGetVersion(ctypes.byref(version))
    from arena import sim
    for ask in (sim.census, sim.used, sim.call_table, sim.clock):
        try:
            ask()
        except ValueError as error:
            assert "forked" in str(error)
        else:
            print("answered", ask)
    print(sorted(set(results)), known, version.value, flush=True)
    try:
        sim.configure(delay=0)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
cu.ok("cuStreamSynchronize", stream)
cu.write(address, b"parent")
print(cu.read(address, 6))
"""


@pytest.mark.parametrize("busy", ["", 'cu.ok("cuMemsetD8Async", address, 1, 8 * MIB, stream)'], ids=["idle", "busy"])
def test_a_forked_child_gets_a_clean_error_and_the_parent_continues(busy: str) -> None:
    done = run(FORK.format(busy=busy), CUDASIM_DELAY="20000" if busy else "0")
    assert done.stdout.splitlines() == [
        "['CUDA_ERROR_NOT_INITIALIZED'] CUDA_SUCCESS 13000",
        "UsageError the driver was initialised before this process was forked",
        "b'parent'",
    ], done.stderr


def test_a_child_forked_before_initialisation_can_use_the_driver() -> None:
    code = """
import os
from tests.simulated.cu import Cu
cu = Cu()
assert cu.cuDriverGetVersion(__import__("ctypes").byref(__import__("ctypes").c_int())) == "CUDA_SUCCESS"
child = os.fork()
cu.start()
cu.write(cu.alloc(512), b"mine")
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("both")
"""
    assert run(code).stdout == "both\n"


def test_a_childs_stray_write_does_not_reach_the_parents_device() -> None:
    code = """
import ctypes, os
from tests.simulated.cu import Cu
cu = Cu()
cu.start()
address = cu.alloc(4096)
cu.write(address, b"parent")
child = os.fork()
if child == 0:
    ctypes.memmove(address, b"child!", 6)
    os._exit(0)
print(os.waitpid(child, 0)[1], cu.read(address, 6))
"""
    assert run(code).stdout == "11 b'parent'\n"


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise SystemExit(3)", "os._exit(3)", "os.kill(os.getpid(), 15)"])
def test_the_interpreter_exits_with_work_queued(end: str) -> None:
    code = f"""
import ctypes, os, sys
from tests.simulated.cu import Cu
cu = Cu()
cu.start()
address = cu.alloc(1 << 20)
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(data):
    pass
for _ in range(20):
    stream = cu.stream()
    for i in range(20):
        cu.ok("cuMemsetD8Async", address, i, 1 << 20, stream)
    cu.ok("cuLaunchHostFunc", stream, host, 0)
print("queued", flush=True)
{end}
"""
    begin = time.perf_counter()
    done = run(code, CUDASIM_DELAY="3000", timeout=20)
    assert done.stdout == "queued\n"
    assert done.stderr == ""
    assert done.returncode == {"": 0, "os.kill(os.getpid(), 15)": -15}.get(end, 3)
    assert time.perf_counter() - begin < 15


def test_no_python_function_is_called_once_the_interpreter_ends() -> None:
    code = """
import atexit, time
seen = []
atexit.register(lambda: (time.sleep(0.5), print(seen)))  # after all that comes later
import ctypes
from tests.simulated.cu import Cu
cu = Cu()
cu.start()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(data):
    time.sleep(0.2)
    seen.append(data)
stream = cu.stream()
cu.ok("cuLaunchHostFunc", stream, host, 1)
cu.ok("cuLaunchHostFunc", stream, host, 2)
time.sleep(0.1)  # the first is under way
"""
    assert run(code).stdout == "[1]\n"


def test_memory_unmapped_under_running_work_is_an_error_and_no_crash(cu: Cu) -> None:
    sim.configure(races=False)
    stream = cu.stream()
    results = set()
    for _ in range(20):
        address, handle = cu.mapped(64 * MIB)
        cu.cuMemsetD8Async(address, 1, 64 * MIB, stream)
        cu.ok("cuMemUnmap", address, 64 * MIB)
        cu.ok("cuMemRelease", handle)
        results.add(cu.cuStreamSynchronize(stream))
        if ILLEGAL_ADDRESS in results:
            break
    assert results <= {SUCCESS, ILLEGAL_ADDRESS}


@pytest.mark.parametrize("kind", ["plain", "mapped"])
def test_short_lived_memory_leaves_no_mappings_in_the_kernel(cu: Cu, kind: str) -> None:
    sim.configure(races=False)

    def once() -> None:
        if kind == "plain":
            cu.ok("cuMemFree", cu.alloc(3 * MIB))
            return
        address, handle = cu.mapped()
        cu.ok("cuMemUnmap", address, GRANULE)
        cu.ok("cuMemRelease", handle)
        cu.ok("cuMemAddressFree", address, GRANULE)

    once()
    before = kernel_mappings()
    for _ in range(300):
        once()
    assert kernel_mappings() - before < 10


def test_a_reset_waits_for_work_and_accepts_no_more(cu: Cu) -> None:
    context = cu.out("cuCtxGetCurrent")
    results: set[str] = set()
    stop = threading.Event()

    def work() -> None:
        cu.cuCtxSetCurrent(context)
        stream = ctypes.c_uint64()
        cu.cuStreamCreate(ctypes.byref(stream), 1)
        address = ctypes.c_uint64()
        cu.cuMemAlloc(ctypes.byref(address), 8 * MIB)
        while not stop.is_set():
            results.add(cu.cuMemsetD8Async(address.value, 1, 8 * MIB, stream.value))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    sim.reset()
    stop.set()
    for thread in threads:
        thread.join()
    assert results == {SUCCESS, "CUDA_ERROR_NOT_INITIALIZED"}


def test_a_reset_from_a_host_function_is_refused(cu: Cu) -> None:
    stream, said = cu.stream(), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def host(data: int | None) -> None:
        try:
            sim.reset()
        except ValueError as error:
            said.append(str(error))

    cu.ok("cuLaunchHostFunc", stream, host, 0)
    cu.ok("cuStreamSynchronize", stream)
    assert "it would wait for itself" in said[0]
