"""What every adapter promises: one suite for CuPy, PyTorch, Numba, cuda.core and RMM, on the real libraries.

Each check is a function of an :class:`~tests.clients.adapters.Adapter`. It leaves nothing allocated, so all of them can
run one after the other in one process, except for the last one, which closes the arena. Neither pytest nor any of the
libraries is imported here: `run_checks` works anywhere, in a worker of Dask as well:

    client.submit(run_checks, "cuda_core").result()  # {}, or what went wrong

The arena should have a cap of about 64 MiB, because some checks fill it. The race checker has to be on.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

import arena
from arena import sim

from .adapters import ADAPTERS, Adapter, Held

MIB = 1 << 20
ROOT = Path(__file__).parent.parent.parent
SLOW = 30_000  # microseconds that the device takes for each piece of work

Check = Callable[[Adapter], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def checks_for(name: str) -> dict[str, Check]:
    """The checks that apply to a library."""
    return {key: function for key, function in CHECKS.items() if name not in INAPPLICABLE.get(key, ())}


def settle(adapter: Adapter) -> None:
    """Check that nothing is left, that the account adds up, and that the device has found no mistake."""
    gc.collect()
    adapter.pool.validate()
    s = adapter.pool.stats()
    assert (s.live, s.blocks) == (0, 0)
    assert s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare
    assert s.peak_reserved <= s.cap
    assert [str(race) for race in sim.races()] == []
    assert [str(finding) for finding in sim.findings()] == []


def run_checks(name: str, pool: arena.Arena | None = None, *, skip: Set[str] = frozenset()) -> dict[str, str]:
    """Run the checks one after the other for a library. Returns the failed ones, each with its traceback.

    Without ``pool``, on the default arena. ``skip`` names checks to leave out: `FORKS` in a process that must not fork,
    `LAST` to keep the arena open.
    """
    adapter = ADAPTERS[name](pool or arena.default_arena())
    problems = {}
    for key, function in checks_for(name).items():
        if key in skip:
            continue
        try:
            function(adapter)
            if key not in LAST:
                settle(adapter)
        except Exception:
            problems[key] = traceback.format_exc()
    return problems


@contextlib.contextmanager
def refused(kind: type[BaseException], *texts: str) -> Iterator[list[BaseException]]:
    """Expect an error with these texts. Gives a list that has it afterwards, without what its frames refer to."""
    found: list[BaseException] = []
    try:
        yield found
    except kind as error:
        found.append(error.with_traceback(None))
    assert found, f"no {kind.__name__} was raised"
    missing = [text for text in texts if text not in str(found[0])]
    assert not missing, f"{missing} not in {found[0]}"


def share(adapter: Adapter, part: float) -> int:
    """A part of the cap."""
    return int(adapter.pool.stats().cap * part) // MIB * MIB


def in_threads(adapter: Adapter, *functions: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def call(function: Callable[[], object]) -> None:
        try:
            adapter.enter_thread()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@check
def memory_comes_from_the_arena_and_goes_back(adapter: Adapter) -> None:
    held = adapter.allocate(1000, None)
    assert (adapter.pool.stats().requested, adapter.pool.stats().blocks) == (1000, 1)
    (piece,) = [piece for piece in adapter.pool.snapshot().pieces if piece.state == "live"]
    assert piece.address == adapter.address(held.memory)
    held.free()
    assert adapter.pool.stats().live == 0


@check
def memory_goes_back_with_its_last_reference(adapter: Adapter) -> None:
    held = adapter.allocate(1000, None)
    held.drop()
    gc.collect()
    assert adapter.pool.stats().live == 0


@check
def pieces_of_any_size_are_aligned_and_do_not_overlap(adapter: Adapter) -> None:
    sizes = (1, 255, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1)
    held = [adapter.allocate(size, None) for size in sizes]
    places = sorted((adapter.address(one.memory), size) for one, size in zip(held, sizes, strict=True))
    assert all(address % 512 == 0 for address, _ in places)
    for (address, size), (following, _) in itertools.pairwise(places):
        assert address + size <= following
    for one in held:
        adapter.fill(one.memory, None)
        one.free()


@check
def memory_may_be_freed_in_any_order(adapter: Adapter) -> None:
    chance = random.Random(1)
    held: list[Held] = []
    for _ in range(300):
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held))).free()
        else:
            held.append(adapter.allocate(chance.randrange(1, 200_000), None))
        adapter.pool.validate()
    assert adapter.pool.stats().blocks == len(held)
    for one in held:
        one.free()


@check
def out_of_memory_is_the_librarys_error_with_arenas_text_and_passes(adapter: Adapter) -> None:
    held = adapter.allocate(share(adapter, 0.6), None)
    with refused(adapter.error, "out of memory: ", "cap reached; the largest request that would pass is") as found:
        adapter.allocate(share(adapter, 0.5), None)
    if adapter.is_arenas_error:
        (error,) = found
        assert isinstance(error, arena.OutOfMemoryError)
        assert error.largest == adapter.pool.stats().cap - share(adapter, 0.6)
        assert isinstance(pickle.loads(pickle.dumps(error)), arena.OutOfMemoryError)
    adapter.pool.validate()
    held.free()
    adapter.allocate(share(adapter, 0.5), None).free()
    with refused(adapter.error, "out of memory: "):
        adapter.allocate(1 << 45, None)


@check
def garbage_is_collected_before_a_request_fails(adapter: Adapter) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me, self.held = self, adapter.allocate(share(adapter, 0.6), None)

    gc.disable()
    try:
        Cycle()
        adapter.allocate(share(adapter, 0.5), None).free()
    finally:
        gc.enable()


@check
def on_oom_functions_make_room(adapter: Adapter) -> None:
    held = [adapter.allocate(share(adapter, 0.6), None)]
    asked: list[tuple[int, int]] = []

    def make_room(error: arena.OutOfMemoryError) -> None:
        if held:
            assert isinstance(error, arena.OutOfMemoryError)
            asked.append((error.requested, threading.get_ident()))
            held.pop().free()

    adapter.pool.on_oom(make_room)
    adapter.allocate(share(adapter, 0.5), None).free()
    assert asked == [(share(adapter, 0.5), threading.get_ident())]


@check
def an_error_in_an_on_oom_function_is_shown_and_changes_nothing(adapter: Adapter) -> None:
    held = adapter.allocate(share(adapter, 0.6), None)
    shown: list[str] = []
    is_on = [True]

    def fail(error: arena.OutOfMemoryError) -> None:
        if is_on:
            raise ValueError("there is nothing to give back")

    adapter.pool.on_oom(fail)
    before, sys.unraisablehook = sys.unraisablehook, lambda raised: shown.append(str(raised.exc_value))
    try:
        with refused(adapter.error, "out of memory: "):
            adapter.allocate(share(adapter, 0.5), None)
    finally:
        sys.unraisablehook = before
        is_on.clear()
    assert set(shown) == {"there is nothing to give back"}  # Numba tries twice
    held.free()


@check
def threads_may_allocate_and_free_at_once(adapter: Adapter) -> None:
    def work(seed: int) -> None:
        chance = random.Random(seed)
        held: list[Held] = []
        for _ in range(200):
            held.append(adapter.allocate(chance.randrange(1, 100_000), None))
            if len(held) > 10:
                held.pop(chance.randrange(len(held))).free()
        for one in held:
            one.free()

    in_threads(adapter, *(lambda seed=seed: work(seed) for seed in range(4)))  # type: ignore[misc]


@check
def a_thread_may_free_what_another_has_allocated(adapter: Adapter) -> None:
    held: list[Held] = []
    in_threads(adapter, lambda: held.extend(adapter.allocate(50_000, None) for _ in range(50)))
    assert adapter.pool.stats().blocks == 50
    in_threads(adapter, lambda: [one.free() for one in held])
    assert adapter.pool.stats().blocks == 0


@check
def streams_reuse_memory_only_after_the_last_one_has_passed(adapter: Adapter) -> None:
    """Without waits, the race checker would see two streams write to the same memory."""
    streams = [adapter.new_stream() for _ in range(3)]
    before = adapter.pool.stats().waits
    with sim.temporarily(delay=SLOW):
        for size in (1000, 100_000, share(adapter, 0.6)):  # from a cache, from a gap, and all there is
            for stream in streams:
                held = adapter.allocate(size, stream)
                adapter.fill(held.memory, stream)
                held.free()
        assert adapter.pool.stats().waits > before or not adapter.names_streams  # then the host waits
        adapter.pool._open.synchronize()


@check
def a_stream_reuses_its_own_memory_at_once(adapter: Adapter) -> None:
    stream = adapter.new_stream()
    before = adapter.pool.stats().waits
    with sim.temporarily(delay=SLOW):
        addresses = set()
        for _ in range(3):
            held = adapter.allocate(share(adapter, 0.6), stream)
            adapter.fill(held.memory, stream)
            addresses.add(adapter.address(held.memory))
            held.free()
        adapter.pool._open.synchronize()
    assert (len(addresses), adapter.pool.stats().waits) == (1, before)


@check
def streams_of_several_threads_do_not_disturb_each_other(adapter: Adapter) -> None:
    def work(seed: int) -> None:
        chance = random.Random(seed)
        stream = adapter.new_stream()
        for _ in range(30):
            held = adapter.allocate(chance.choice((700, 90_000, 3 * MIB)), stream)
            adapter.fill(held.memory, stream)
            held.free()

    with sim.temporarily(delay=200):
        in_threads(adapter, *(lambda seed=seed: work(seed) for seed in range(3)))  # type: ignore[misc]
        adapter.pool._open.synchronize()


@check
def lines_are_the_programs_own_and_the_framework_is_named(adapter: Adapter) -> None:
    arena.trace_lines(True)
    try:
        held = adapter.allocate(3000, None)
        report = adapter.pool.report()
        (line,), (framework,) = report.lines, report.frameworks
        assert line.name.startswith("adapters.py:"), line.name
        assert (framework.name, framework.bytes) == (adapter.framework, 3072)
        held.free()
    finally:
        arena.trace_lines(False)


@check
def scopes_count_and_bound_what_the_library_allocates(adapter: Adapter) -> None:
    with adapter.pool.scope("work", budget="1MiB") as scope:
        held = adapter.allocate(1000, None)
        with refused(adapter.error, "out of memory: ", "work"):
            adapter.allocate(2 * MIB, None)
        held.free()
    assert (scope.peak, scope.leaked) == (1024, 0)


@check
def a_forked_child_cannot_use_its_parents_memory_and_does_no_harm(adapter: Adapter) -> None:
    held = adapter.allocate(MIB, None)
    adapter.fill(held.memory, None)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, if there are other threads
        child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        answer = "allocated"
        try:
            adapter.allocate(1000, None)
        except Exception:
            answer = "refused"
        held.free()
        gc.collect()
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert (os.waitpid(child, 0)[1], said.replace(adapter.warning_in_child, "")) == (0, "refused")
    assert adapter.pool.stats().live == MIB
    adapter.fill(held.memory, None)
    held.free()


def run_program(adapter: Adapter, code: str) -> None:
    """Run a program with the library, which must print "end" and then exit silently."""
    begin = f"from tests.clients.adapters import start\nadapter = start({adapter.name!r})\n"
    variables = {name: value for name, value in os.environ.items() if name != "CUDASIM_DEAD"}
    done = subprocess.run(
        [sys.executable, "-c", begin + code + "\nprint('end')"],
        cwd=ROOT,
        env={**variables, "CUDASIM_DEAD": "abort", "ARENA_DRIVER": "sim"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)


@check
def memory_may_be_alive_when_the_interpreter_exits(adapter: Adapter) -> None:
    code = """
import arena, builtins
kept = adapter.allocate(1000, None)
adapter.fill(kept.memory, None)
builtins.kept = adapter.allocate(1000, None).memory
arena.kept = [adapter.allocate(1000, None).memory]
arena.kept.append(arena.kept)
"""
    run_program(adapter, code)


@check
def memory_may_be_alive_in_a_closed_arena_when_the_interpreter_exits(adapter: Adapter) -> None:
    run_program(adapter, "kept = adapter.allocate(1000, None)\nadapter.pool.close()")


@check
def a_daemon_thread_may_be_allocating_when_the_interpreter_exits(adapter: Adapter) -> None:
    code = """
import threading, time
def work():
    adapter.enter_thread()
    while True:
        adapter.allocate(1000, None).free()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""
    run_program(adapter, code)


@check
def memory_may_be_freed_after_the_arena_was_closed(adapter: Adapter) -> None:
    pool: Any = adapter.pool
    gc.collect()
    pool.trim()
    others = sim.used(pool.device) - pool.stats().reserved
    first, second = adapter.allocate(5 * MIB, None), adapter.allocate(1000, None)
    adapter.fill(first.memory, None)
    pool.close()
    with refused(Exception, "the arena is closed"):
        adapter.allocate(1000, None)
    adapter.fill(second.memory, None)
    first.free()
    second.drop()
    gc.collect()
    assert sim.used(pool.device) == others
    assert [str(problem) for problem in (*sim.races(), *sim.findings())] == []


LAST = frozenset({"memory_may_be_freed_after_the_arena_was_closed"})  # closes the arena
FORKS = frozenset({"a_forked_child_cannot_use_its_parents_memory_and_does_no_harm"})  # this process
INAPPLICABLE = {
    # Numba does not say which stream uses memory, so it is kept until all have passed.
    "a_stream_reuses_its_own_memory_at_once": {"numba"},
    # Before Python 3.14, a daemon thread is ended where it next needs the GIL. In the C++ code of these libraries that
    # aborts the process, with any allocator.
    "a_daemon_thread_may_be_allocating_when_the_interpreter_exits": {"cuda_core", "rmm", "torch"},
}
