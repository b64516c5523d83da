"""CuPy's current device and the arena's device; simulated arenas and a CuPy that drives a real card.

There is no CUDA runtime here, so the test programs imitate one: they answer what CuPy asks it in Python and in C.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from .. import forked

RUNTIME = """
import ctypes
import cupy
from cupy.cuda import device as backend
from cupy_backends.cuda import stream as streams
import arena
from arena import sim

sim.configure(devices=2)
current = [0]
cupy.cuda.runtime.getDevice = lambda: current[0]
cupy.cuda.get_current_stream = lambda device=-1: 0
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
name = ctypes.pythonapi.PyCapsule_GetName
name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
kept = []

def answer(module, function, arguments, result):
    kind = ctypes.PYFUNCTYPE(ctypes.c_ssize_t if "stream" in function else ctypes.c_int, *arguments)
    kept.append(kind(result))
    signature = name(module.__pyx_capi__[function])
    kept.append(signature)
    module.__pyx_capi__[function] = new(ctypes.cast(kept[-2], ctypes.c_void_p), signature, None)

answer(backend, "get_device_id", [ctypes.c_int], lambda skip: current[0])
if "get_stream_ptr" in streams.__pyx_capi__:
    answer(streams, "get_stream_ptr", [ctypes.c_int], lambda device: 0)

def say(call):
    try:
        return call().device_id
    except arena.UsageError as error:
        return error
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run(code, imported=("cupy", "arena"), ARENA_DRIVER="sim", **environment)


def test_an_arena_allocates_nothing_while_another_device_is_current() -> None:
    code = """
pool = arena.Arena(cap="64MiB", device=1)
current[0] = 1
pool.malloc(1 << 20)  # and gives it back: what follows could be done without Python
print(pool.malloc(1 << 20).device_id)
current[0] = 0
print(say(lambda: pool.malloc(1 << 20)))
print(pool.stats().live)
current[0] = 1
print(say(lambda: pool.malloc(1 << 20)))
"""
    done = run(RUNTIME + code)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "1",
        "CuPy's current device is 0, and this arena's memory is on device 1; use it in `with cupy.cuda.Device(1):`, "
        "create an arena on device 0, or give CuPy arena.malloc, which serves the current device",
        "0",
        "1",
    ]


def test_the_default_malloc_serves_the_current_device() -> None:
    code = """
arrays = []
for device in (0, 1, 0, 1):
    current[0] = device
    arrays.append(arena.malloc(1 << 20))
print([array.device_id for array in arrays], [arena.default_arena(d).stats().live >> 20 for d in (0, 1)])
"""
    done = run(RUNTIME + code, ARENA_CAP="64MiB")
    assert (done.stdout, done.stderr) == ("[0, 1, 0, 1] [2, 2]\n", "")


def build_real_driver(folder: Path) -> Path:
    """A library called libcuda.so.1 that is not the simulated driver stands in for the real one."""
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text("int cuInit(unsigned flags) { return 100; }\n")
    subprocess.run(["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    return library


def test_a_cupy_that_drives_a_real_card_gets_no_simulated_memory(tmp_path: Path) -> None:
    code = f"""
import ctypes
real = ctypes.CDLL({str(build_real_driver(tmp_path))!r})
{RUNTIME}
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
pool.allocate(1 << 20).free()
for _ in range(2):
    print(say(lambda: pool.malloc(1 << 20)))
print(pool.stats().live)
"""
    done = run(code)
    line = (
        "this arena is simulated, and CuPy runs on a real device, where simulated addresses are invalid; use an "
        "arena of that device: arena.Arena(device=0), or arena.malloc without ARENA_DRIVER=sim"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [line, line, "0"]


def test_a_runtime_that_is_not_ready_yet_does_not_allow_simulated_memory_forever(tmp_path: Path) -> None:
    code = f"""
import ctypes
real = ctypes.CDLL({str(build_real_driver(tmp_path))!r})
{RUNTIME}
def fail():
    raise cupy.cuda.runtime.CUDARuntimeError(3)  # cudaErrorInitializationError

works, cupy.cuda.runtime.getDevice = cupy.cuda.runtime.getDevice, fail
pool = arena.Arena(cap="64MiB")
pool.malloc(1 << 20)
cupy.cuda.runtime.getDevice = works
print(type(say(lambda: pool.malloc(1 << 20))).__name__)
"""
    done = run(code)
    assert (done.stdout, done.stderr) == ("UsageError\n", "")


def test_without_a_real_driver_a_cupy_that_has_a_runtime_gets_simulated_memory() -> None:
    code = """
pool = arena.Arena(cap="64MiB", device=0)
print(say(lambda: pool.malloc(1 << 20)), arena._core.is_real_driver_here())
"""
    done = run(RUNTIME + code)
    assert (done.stdout, done.stderr) == ("0 False\n", "")
