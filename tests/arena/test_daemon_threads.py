"""The interpreter exits while a daemon thread is inside a call of arena that runs Python.

Before Python 3.14 such a thread is ended where it next wants the GIL, and its stack unwound without it: see
src/bindings/ending_threads.cpp. The process must end silently and with its own exit code.
"""

from __future__ import annotations

import pytest

from .. import forked

PROCESSES = 20
START = """
import sys, threading, time
import arena
pool = arena.Arena(cap="8MiB", device="sim:1GiB")
"""
END = """
def work():
    while True:
        call()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.03)
sys.exit(3)
"""
CALLS = {
    "a request that fails": """
def call():
    try:
        pool.allocate(64 << 20)
    except MemoryError:
        pass
""",
    "a function for out of memory": """
@pool.on_oom
def make_room(request):
    time.sleep(0.0001)
def call():
    try:
        pool.allocate(64 << 20)
    except MemoryError:
        pass
""",
    "a function for memory pressure": """
pool.on_pressure(0.2, lambda: time.sleep(0.0001), of="live", rearm=0.1)
def call():
    pool.allocate(3 << 20).free()
""",
    "a stream object written in Python": """
class Stream:
    def __cuda_stream__(self):
        time.sleep(0.0001)
        return 0, 0
def call():
    pool.allocate(1000, stream=Stream()).free()
""",
    "a size that is an object": """
class Size:
    def __index__(self):
        time.sleep(0.0001)
        return 1000
def call():
    pool.allocate(Size()).free()
""",
    "a stream object that is dropped": """
from tests.simulated.cu import Cu
cu = Cu()
cu.start()
number = cu.stream()
class Stream:
    def __cuda_stream__(self):
        return 0, number
    def __del__(self):
        time.sleep(0.0001)
def call():
    pool.allocate(1000, stream=Stream()).free()
""",
    "a report": """
buffer = pool.allocate(1000)
def call():
    str(pool.report())
""",
}
CUPY = {
    "a request of CuPy's that fails": """
cupy.cuda.set_allocator(pool.malloc)
def call():
    try:
        cupy.empty(64 << 20, dtype="u1")
    except MemoryError:
        pass
""",
    "a memory hook of CuPy's": """
cupy.cuda.set_allocator(pool.malloc)
class Hook(cupy.cuda.MemoryHook):
    name = "test"
    def malloc_preprocess(self, **facts):
        time.sleep(0.0001)
def call():
    with Hook():
        cupy.empty(1000)
""",
    "an array's end": """
cupy.cuda.set_allocator(pool.malloc)
class Array(cupy.ndarray):
    def __del__(self):
        time.sleep(0.0001)
def call():
    Array((3 << 20,), dtype="u1")
""",
}


def exits_as_usual(code: str, *modules: str) -> None:
    for _ in range(PROCESSES):
        done = forked.run(code, imported=modules, ARENA_DRIVER="sim")
        assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("call", CALLS)
def test_the_process_ends_as_usual_during(call: str) -> None:
    exits_as_usual(START + CALLS[call] + END, "arena")


@pytest.mark.parametrize("call", CUPY)
def test_the_process_ends_as_usual_with_cupy_during(call: str) -> None:
    exits_as_usual(START + "import cupy" + CUPY[call] + END, "cupy", "arena")
