"""Run by instructions.py under valgrind: pairs of calls through the bindings, counted for two lengths.

python benchmarks/count_calls.py LIBRARY malloc|allocate|torch FEW MANY
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from itertools import repeat
from typing import Any

import arena
from arena import _core

SIZE = 64 << 10


def pairs(make: Callable[[int], Any]) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in repeat(None, count):
            make(SIZE)

    return run


def torch_pairs(library: ctypes.CDLL, pool: arena.Arena) -> Callable[[int], None]:
    _core.connect_torch(lambda device: pool, lambda device, stream: True, lambda fraction, device: None)
    functions = ctypes.CDLL(_core.__file__)
    addresses = [
        ctypes.cast(getattr(functions, name), ctypes.c_void_p) for name in ("arena_torch_alloc", "arena_torch_free")
    ]
    return lambda count: library.torch_pairs(*addresses, ctypes.c_size_t(SIZE), count)


def main() -> None:
    library, question = ctypes.CDLL(sys.argv[1]), sys.argv[2]
    pool = arena.Arena(cap="64MiB", device="sim")
    if question == "malloc":
        import cupy  # noqa: F401  # the first malloc() inspects it

        run = pairs(pool.malloc)
    else:
        run = pairs(pool.allocate) if question == "allocate" else torch_pairs(library, pool)
    gc.disable()
    run(100)
    for count in sys.argv[3:]:
        library.begin_count()
        run(int(count))
        library.end_count()


if __name__ == "__main__":
    main()
