"""CuPy's memory hooks, which a custom allocator has to call itself."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cupy
import pytest
from cupy.cuda import memory_hooks

import arena
from arena import _core

from ..programs import run
from .conftest import MIB, MakeArena

NAMES = [f"{what}_{when}process" for what in ("malloc", "alloc", "free") for when in ("pre", "post")]


class Recorder(cupy.cuda.MemoryHook):  # type: ignore[misc]
    """Records each call and its keywords."""

    name = "Recorder"

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, int]]] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def note(name: str) -> Any:
    return lambda self, **facts: self.calls.append((name, facts))


for name in NAMES:
    setattr(Recorder, name, note(name))


@pytest.fixture
def pool(make: MakeArena) -> Iterator[arena.Arena]:
    pool = make(cap="64MiB")
    with cupy.cuda.using_allocator(pool.malloc):
        yield pool


def test_hooks_are_called_as_by_cupys_own_pool(pool: arena.Arena) -> None:
    pool.malloc(MIB)
    with Recorder() as hook:
        pointer = pool.malloc(1000)
        facts = {"device_id": 0, "mem_size": 1024}
        ids = {"mem_ptr": pointer.ptr, "pmem_id": id(pointer.mem)}
        assert hook.calls == [
            ("malloc_preprocess", {**facts, "size": 1000}),
            ("malloc_postprocess", {**facts, **ids, "size": 1000}),
        ]
        hook.calls.clear()
        del pointer
        assert hook.calls == [("free_preprocess", {**facts, **ids}), ("free_postprocess", {**facts, **ids})]
    assert pool.stats().live == 0


def test_a_hook_gets_the_same_address_before_and_after_a_free(pool: arena.Arena) -> None:
    with pool.scope("part"):  # which drops all its blocks once they are freed
        pointer = pool.malloc(1000)
    address = pointer.ptr
    with Recorder() as hook:
        del pointer
    assert [(name, facts["mem_ptr"]) for name, facts in hook.calls] == [(name, address) for name in NAMES[4:]]


def test_a_hook_gets_the_size_taken_from_the_device(pool: arena.Arena) -> None:
    with Recorder() as hook:
        pointer = pool.malloc(1000)
        taken = {"device_id": 0, "mem_size": pool.total_bytes()}
        assert hook.names() == [NAMES[0], NAMES[2], NAMES[3], NAMES[1]]
        assert hook.calls[1:3] == [
            ("alloc_preprocess", taken),
            ("alloc_postprocess", {**taken, "mem_ptr": pointer.ptr}),
        ]


def test_a_hook_is_called_for_a_request_that_fails(pool: arena.Arena) -> None:
    with Recorder() as hook, pytest.raises(arena.OutOfMemoryError):
        pool.malloc(65 * MIB)
    assert hook.names() == ["malloc_preprocess", "malloc_postprocess"]
    assert (hook.calls[1][1]["mem_ptr"], hook.calls[1][1]["pmem_id"]) == (0, 0)


def test_a_hook_sees_memory_freed_that_was_allocated_before_it(pool: arena.Arena) -> None:
    array = cupy.empty(1000)
    with Recorder() as hook:
        del array
    assert hook.names() == ["free_preprocess", "free_postprocess"]


def test_a_removed_hook_is_not_called_and_malloc_is_fast_again(
    pool: arena.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder() as hook:
        pool.malloc(1000)
    hook.calls.clear()
    monkeypatch.delattr(arena.Arena, "_malloc_by_python")
    slow = _core.slow_requests()
    pool.malloc(1000)
    assert (hook.calls, _core.slow_requests()) == ([], slow)


def test_a_hook_is_called_in_its_own_thread_only(pool: arena.Arena) -> None:
    pool.malloc(1000)
    with Recorder() as hook:
        thread = threading.Thread(target=pool.malloc, args=(1000,))
        thread.start()
        thread.join()
        assert hook.calls == []
        pool.malloc(1000)
        assert len(hook.calls) == 4


def test_an_error_in_a_hook_loses_no_memory(pool: arena.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = "Broken"

        def free_preprocess(self, **facts: int) -> None:
            raise RuntimeError("in a hook")

    shown: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: shown.append(str(error.exc_value)))
    pointer = pool.malloc(1000)
    with Broken():
        del pointer
    assert (shown, pool.stats().live) == (["in a hook"], 0)


def test_an_exception_being_raised_passes_through_the_hooks(pool: arena.Arena) -> None:
    pool.malloc(1000)
    with Recorder() as hook, pytest.raises(TypeError, match="bad operand type for abs"):
        abs([pool.malloc(1000)])  # type: ignore[arg-type]
    assert hook.names()[-2:] == ["free_preprocess", "free_postprocess"]


def test_the_line_profiler_finds_the_line(pool: arena.Arena) -> None:
    hook = memory_hooks.LineProfileHook()
    with hook:
        cupy.empty(2 * MIB, dtype="u1")
    report = io.StringIO()
    hook.print_report(file=report)
    assert report.getvalue().startswith("_root (2.00MB, ")
    assert "test_the_line_profiler_finds_the_line (2.00MB" in report.getvalue()


def test_a_hook_installed_before_the_arena_is_called_in_every_thread() -> None:
    code = """
import threading, cupy, arena
from tests.arena.test_cupy_hooks import Recorder
first, second = threading.Event(), threading.Event()
pool = arena.Arena(device="sim:1GiB")
def work():
    with Recorder() as hook:
        first.set()
        second.wait()
        pool.malloc(1000)
        print(hook.names())
thread = threading.Thread(target=work)
thread.start()
first.wait()
for _ in range(3):
    pool.malloc(1000)
second.set()
thread.join()
"""
    done = run(code)
    assert (done.stdout, done.stderr) == (f"{[NAMES[0], NAMES[1], *NAMES[4:]]}\n", "")


def test_a_hook_that_inspects_the_stack_finds_no_frame_of_arena(pool: arena.Arena) -> None:
    report = io.StringIO()
    with memory_hooks.LineProfileHook() as hook:
        arrays = [cupy.empty(MIB), cupy.empty(MIB)]  # for new memory, and for a cache hit
        del arrays
    hook.print_report(report)
    last = report.getvalue().splitlines()[-1]  # the innermost frame: where CuPy calls the allocator
    assert "cupy/_creation/basic.py" in last, report.getvalue()
    assert "python/arena" not in report.getvalue()
    assert "site-packages/arena" not in report.getvalue()


def test_a_hook_is_called_for_memory_freed_before_its_array_is_dropped(pool: arena.Arena) -> None:
    pointer = pool.malloc(1000)
    address, number = pointer.ptr, id(pointer.mem)
    with Recorder() as hook:
        pointer.mem.free()
        pointer.mem.free()
        del pointer
    facts = {"device_id": 0, "mem_size": 1024, "mem_ptr": address, "pmem_id": number}
    assert hook.calls == [("free_preprocess", facts), ("free_postprocess", facts)]
