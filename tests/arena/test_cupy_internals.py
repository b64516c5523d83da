"""A CuPy whose internals have changed still works: memory is passed to it in another way."""

from __future__ import annotations

import pytest

from ..forked import run

CHANGES = {
    "nothing": ("written", ""),
    "MemoryPointer has another size": (
        "called",
        "class MemoryPointer(memory.MemoryPointer): __slots__ = ('extra',)\nmemory.MemoryPointer = MemoryPointer",
    ),
    "MemoryPointer has other fields": (
        "called",
        """
class MemoryPointer(memory.MemoryPointer):
    __slots__ = ()
    def __init__(self, mem, offset): super().__init__(mem, 0)
memory.MemoryPointer = MemoryPointer
""",
    ),
    "BaseMemory has another size": (
        "generic",
        "class BaseMemory(memory.BaseMemory): __slots__ = ('extra',)\nmemory.BaseMemory = BaseMemory",
    ),
    "BaseMemory is no class": ("generic", "memory.BaseMemory = None"),
    "BaseMemory is gone": ("generic", "del memory.BaseMemory"),
    "hooks cannot be asked for": ("generic", "del memory_hook.__pyx_capi__['_has_memory_hooks']"),
    "hooks are asked for otherwise": (
        "generic",
        """
import ctypes
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
memory_hook.__pyx_capi__['_has_memory_hooks'] = new(1, b"int (void)", None)
""",
    ),
    "streams cannot be asked for": ("written", "stream.__pyx_capi__.clear()"),
    "streams are asked for as before CuPy 14": ("written", "stream.__pyx_capi__.pop('get_stream_ptr', None)"),
    "devices cannot be asked for": ("written", "device.__pyx_capi__.clear()"),
    "no module offers functions": ("generic", "del stream.__pyx_capi__, device.__pyx_capi__, memory_hook.__pyx_capi__"),
    "hooks cannot be watched": ("written", "del memory_hook.MemoryHook.__enter__"),
}
CHECKS = """
import gc, sys
import arena
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
cupy.cuda.set_allocator(pool.malloc)
for _ in range(2):
    array = cupy.empty(1000, dtype="u1")
    view = array[100:200]
    assert array.data.mem.size == 1024 and array.data.device_id == pool.device, array.data.mem.size
    assert view.data.ptr == array.data.ptr + 100
    del array
    assert pool.used_bytes() == 1024
    del view
    assert pool.used_bytes() == 0
calls = []
class Hook(memory_hook.MemoryHook):
    name = "Hook"
    def malloc_postprocess(self, **facts): calls.append(facts)
    def free_postprocess(self, **facts): calls.append(facts)
memory_hook.get_memory_hooks()["Hook"] = Hook()
arena._core.notice_hooks()
cupy.empty(1000)
del memory_hook.get_memory_hooks()["Hook"]
assert len(calls) == 2 and calls[0].pop("size") == 8000 and calls[0] == calls[1], calls
try:
    cupy.empty(1 << 30)
except cupy.cuda.memory.OutOfMemoryError:
    pass
array = arena.malloc(10), arena.malloc(10)
live = arena.default_arena().stats().live
array[0].mem.free()
array[0].mem.free()
assert arena.default_arena().stats().live == live - 512
from arena._cupy import bridge
print(bridge.way)
"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_cupy_that_has_changed_still_gets_its_memory(change: str) -> None:
    way, code = CHANGES[change]
    imports = "import cupy\nfrom cupy.cuda import device, memory, memory_hook\nfrom cupy_backends.cuda import stream\n"
    done = run(imports + code + CHECKS, imported=("cupy", "arena"), ARENA_DRIVER="sim")
    assert (done.stderr, done.stdout) == ("", f"{way}\n")
