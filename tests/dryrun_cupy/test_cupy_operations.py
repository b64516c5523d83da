"""CuPy's operations in a dry run: the right shapes and dtypes, and exactly the memory that their results need."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import pytest

from .dry_process import NVRTC, needs_cupy, run_dry
from .operations import OWN, SHARED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_cupy]  # the first of them builds

ALLOCATORS = ("cupy", "async", "arena")
NAMES = sorted({**SHARED, **OWN})
# One of each way to have a kernel compiled.
COMPILED = ("raw_kernel", "raw_module", "elementwise_kernel", "reduction_kernel", "fused", "jit_kernel", "add", "sum")


@functools.cache
def facts_of(allocator: str, *names: str, nvrtc: bool = False) -> dict[str, Any]:
    done = run_dry("-W", "ignore::FutureWarning", "-m", "tests.dryrun_cupy.worker", allocator, *names, nvrtc=nvrtc)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rounded(allocator: str, size: int, unit: int) -> int:
    if size == 0 and allocator == "arena":
        return unit  # every request has an address of its own
    return -(-size // unit) * unit


def check(result: dict[str, Any], allocator: str, unit: int) -> None:
    assert "error" not in result, result["error"]
    assert result["given"] == result["expected"]
    assert result["held"] == sum(rounded(allocator, size, unit) for size in result["bytes"])
    assert result["left"] == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_an_operation_holds_what_its_results_need(allocator: str, name: str) -> None:
    facts = facts_of(allocator)
    check(facts["operations"][name], allocator, facts["unit"])


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_all_operations_together_leave_nothing_and_do_nothing_undefined(allocator: str) -> None:
    facts = facts_of(allocator)
    assert set(facts["operations"]) == set(NAMES)
    assert facts["left"] == 0
    assert facts["races"] == []
    assert facts["findings"] == []
    assert facts["launches"] > len(NAMES)
    assert len(facts["modules"]) == 4
    assert all("/arena/cupy/" in file for file in facts["modules"].values())
    census = facts["census"]
    assert census["allocations"] == 0
    if allocator == "cupy":  # an arena and a pool of the driver keep some
        assert {census[kind] for kind in ("handles", "mappings", "reservations", "streams", "events")} == {0}


SIZES = """
import cupy

class Sizes(cupy.cuda.MemoryHook):
    name = "sizes"
    found = []
    def malloc_preprocess(self, device_id, size, mem_size):
        self.found.append(size)

def sizes_of(function, *arguments):
    with Sizes() as hook:
        hook.found.clear()
        function(*arguments)
        return list(hook.found)

row, table = cupy.zeros(1000, "float32"), cupy.zeros((10, 100), "float32")
print(sizes_of(cupy.ndarray.sort, row), sizes_of(cupy.ndarray.sort, table), sizes_of(cupy.ndarray.argsort, row))
pool = cupy.get_default_memory_pool()
pool.free_all_blocks()
pool.set_limit(size=pool.total_bytes())
try:
    row.sort()
except MemoryError:
    print("out of memory")
print(pool.used_bytes())
"""


def test_a_sort_takes_a_second_copy_of_what_it_sorts_and_gives_it_back() -> None:
    done = run_dry("-c", SIZES)
    # 4,000 bytes. In rows: the number of each element's row, and then pairs of both. Indices: 8 bytes each.
    assert done.stdout.splitlines() == ["[4000] [8000, 16000] [4000, 8000, 12000]", "out of memory", "8192"], (
        done.stderr
    )


def test_processes_that_a_program_starts_run_dry_too() -> None:
    program = (
        "import multiprocessing as mp, cupy\nprint(mp.get_context('spawn').Pool(1).map(cupy.arange, [3])[0].nbytes)"
    )
    done = run_dry("-c", program)
    assert done.stdout == "24\n", done.stderr


def test_kernels_are_compiled_by_nvidias_compiler_where_it_is_installed() -> None:
    if not NVRTC.exists():
        assert not os.environ.get("CI"), f"{NVRTC} is missing"
        pytest.skip(f"make .venv/.nvrtc installs NVIDIA's compiler into {NVRTC}")
    facts = facts_of("cupy", *COMPILED, nvrtc=True)
    for name in COMPILED:
        check(facts["operations"][name], "cupy", facts["unit"])
    assert (facts["races"], facts["findings"]) == ([], [])


def test_a_mistake_in_a_kernel_is_found_by_nvidias_compiler() -> None:
    if not NVRTC.exists():
        assert not os.environ.get("CI"), f"{NVRTC} is missing"
        pytest.skip(f"make .venv/.nvrtc installs NVIDIA's compiler into {NVRTC}")
    program = """import cupy; cupy.RawKernel('extern "C" __global__ void f() { nonsense; }', "f").compile()"""
    done = run_dry("-c", program, nvrtc=True)
    assert "CompileException" in done.stderr
    assert 'identifier "nonsense" is undefined' in done.stderr
