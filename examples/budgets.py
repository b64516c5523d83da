"""Give each tenant of a service a budget, so that one of them cannot take the memory of the others.

python examples/budgets.py
"""

from __future__ import annotations

import cupy

import arena

MIB = 1 << 20
pool = arena.Arena(cap="1GiB")
cupy.cuda.set_allocator(pool.malloc)


def answer(tenant: str, size: int) -> str:
    try:
        with pool.scope(tenant, budget="300MiB") as scope:
            image = cupy.empty(size, "u1")
            copy = cupy.empty_like(image)
            del image, copy
        return f"{scope.peak // MIB} MiB at the peak"
    except arena.OutOfMemoryError as error:
        return f"refused: {error.verdict}, {error.budget_used // MIB} of {error.budget // MIB} MiB used"


for tenant, size in [("small", 20 * MIB), ("large", 200 * MIB), ("small", 90 * MIB)]:
    print(f"{tenant}: {answer(tenant, size)}")
print(f"{pool.stats().live} bytes are left behind")
