"""What an error says about moving live data: whether it would have helped, by how much, and how to allow it.

Each piece of advice is tried.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, sim

from ..programs import ROOT, run
from ..simulated.cu import Cu
from ..threads import thread_in_native_code
from .conftest import MIB, MakeArena, Work, check
from .test_graphs import Captured
from .test_safe_point import LARGE, check_data, stranded

OFF = r"Live data may not be moved: compact=False\."
THREADS = r'Live data may not be moved: another thread may launch work \(compact="auto"\)\.'
GAIN = r" Moving it would have freed {:,} bytes, and this request would have passed\."

every_mode = pytest.mark.parametrize("compact", [True, False, "auto"])


def failed(pool: arena.Arena, size: int = LARGE, stream: Any = 0) -> OutOfMemoryError:
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(size, stream)
    return caught.value


def says(error: OutOfMemoryError, text: str) -> bool:
    return re.search(text, str(error)) is not None


def is_no_way_out(error: OutOfMemoryError) -> bool:
    """Whether the error's advice does not mention moving."""
    advice = str(error).partition("  reserved ")[2]
    return error.set_free_by_moving == 0 and not any(word in advice for word in ("safe_point", "compact=", "oving"))


def check_gain(pool: arena.Arena, error: OutOfMemoryError, before: arena.Stats) -> None:
    """A safe point frees exactly as many bytes as the error says, and then the request passes."""
    gain = error.set_free_by_moving
    assert gain == before.compactable > 0
    assert pool.safe_point(budget="10s") == gain
    after = pool.stats()
    assert (after.live, after.compactable) == (before.live, 0)
    assert before.stranded - after.stranded == gain
    assert before.reserved - after.reserved + after.releasable + after.spare - before.releasable - before.spare == gain
    assert after.largest_without_moving == after.largest_with_moving == error.largest_with_moving
    pool.allocate(error.requested).free()
    pool.allocate(error.largest_with_moving).free()


def test_the_error_says_how_much_moving_would_have_freed(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    with thread_in_native_code():
        before = pool.stats()
        error = failed(pool)
        assert (error.verdict, error.moving) == ("re-backing not allowed", "other threads")
        assert says(error, THREADS + GAIN.format(error.set_free_by_moving))
        assert says(error, r'Next: call pool\.safe_point\(budget="1s"\), or arena\.safe_point\(budget="1s"\)')
        assert says(error, r"; or create the arena with compact=True, if you can guarantee")
        assert (error.largest, error.largest_with_moving) == (6 * MIB, 48 * MIB)
        assert says(error, "would pass is 6 MiB without moving live data, 48 MiB with moving")
        check_gain(pool, error, before)
    check_data(work, kept)
    check(pool)


def test_the_document_shows_the_error_as_it_is(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    with thread_in_native_code():
        text = " ".join(str(failed(pool)).split())
    shown = re.search(r"^    out of memory: 30 MiB.*?request\.$", (ROOT / "docs" / "arena.md").read_text(), re.M | re.S)
    assert shown is not None
    parts = [" ".join(part.split()) for part in shown[0].split("...")]
    assert len(parts) == 2
    assert text.startswith(parts[0])
    assert text.endswith(parts[1])
    check_data(work, kept)


def test_where_moving_is_off_the_error_says_how_to_turn_it_on(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work, compact=False)
    error = failed(pool)
    assert (error.verdict, error.moving) == ("re-backing not allowed", "switched off")
    assert says(error, OFF + GAIN.format(error.set_free_by_moving))
    assert says(error, r'Next: create the arena with compact="auto" and call pool\.safe_point\(budget="1s"\), ')
    assert says(error, r"; or with compact=True, if you can guarantee")
    assert error.set_free_by_moving == pool.stats().compactable
    check_data(work, kept)
    check(pool)


@pytest.mark.parametrize("compact", ["auto", True])
def test_following_the_advice_from_the_start_avoids_the_error(make: MakeArena, work: Work, compact: bool | str) -> None:
    pool, kept = stranded(make, work, compact=False)
    error = failed(pool)
    kept.clear()
    pool.close()
    again, kept = stranded(make, work, compact=compact)
    with thread_in_native_code():
        if compact == "auto":
            assert again.safe_point(budget="1s") == error.set_free_by_moving
        again.allocate(error.requested).free()
    check_data(work, kept)


def test_a_single_threaded_program_gets_what_moving_frees() -> None:
    """In its own process, so that no other thread runs."""
    code = """
import arena
pool = arena.Arena(cap="64MiB", growth="16MiB", reserve="64MiB", device="sim:1GiB")
blocks = [pool.allocate(2 << 20) for _ in range(32)]
kept = blocks[::4]
del blocks
stats = pool.stats()
print(stats.largest == stats.largest_with_moving, stats.largest_without_moving >> 20, stats.largest_with_moving >> 20)
try:
    pool.allocate(60 << 20)
except arena.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
    print(str(error).splitlines()[-1])
    print(error.moving, error.set_free_by_moving, error.largest == error.largest_with_moving)
pool.allocate(30 << 20)
print(pool.stats().rebacked > 0)
"""
    done = run(code, ARENA_DRIVER="sim", check=True)
    assert done.stdout.splitlines() == [
        "True 6 48",
        "out of memory: 60 MiB requested, cap reached; the largest request that would pass is 48 MiB with moving live "
        "data, 6 MiB without moving",
        "Next: raise the cap with set_cap(), or free something first.",
        "allowed 0 True",
        "True",
    ]


@every_mode
def test_moving_is_not_advised_for_a_request_that_is_too_large_anyway(
    make: MakeArena, work: Work, compact: bool | str
) -> None:
    pool, kept = stranded(make, work, compact=compact)
    with thread_in_native_code():
        error = failed(pool, 50 * MIB)
        assert error.moving == {True: "allowed", False: "switched off", "auto": "other threads"}[compact]
    assert error.verdict == "cap reached"
    assert is_no_way_out(error)
    check_data(work, kept)


def test_moving_is_not_advised_where_there_is_nothing_to_move(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="2MiB", compact=False)
    kept = [pool.allocate(2 * MIB) for _ in range(32)]
    error = failed(pool)
    assert is_no_way_out(error)
    assert says(error, r"the largest request that would pass is 0 B\n")
    assert (error.largest_with_moving, error.moving) == (0, "switched off")
    kept.clear()


@pytest.mark.parametrize("upstream", [False, True], ids=["plain", "upstream"])
def test_plain_segments_are_never_moved(make: MakeArena, cu: Cu, upstream: bool) -> None:
    class Given:
        def __init__(self, size: int) -> None:
            self.ptr = cu.alloc(size)

        def __del__(self) -> None:
            cu.ok("cuMemFree", self.ptr)

    kind = {"upstream": Given} if upstream else {"vmm": False}
    pool = make(cap="64MiB", growth="16MiB", reserve="64MiB", **kind)
    blocks = [pool.allocate(2 * MIB) for _ in range(32)]
    kept = blocks[::4]
    del blocks[:]
    error = failed(pool)
    assert (error.verdict, error.moving) == ("fragmented", "plain segments")
    assert is_no_way_out(error)
    assert error.largest == error.largest_with_moving
    kept.clear()


def test_moving_does_not_help_a_request_over_its_scopes_budget(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work, compact=False)
    with pool.scope("small", budget="20MiB"):
        error = failed(pool)
    assert is_no_way_out(error)
    assert error.largest_with_moving == 20 * MIB
    check_data(work, kept)


@contextmanager
def pinned(pool: arena.Arena, blocks: list[arena.Buffer]) -> Iterator[None]:
    for block in blocks:
        pool.pin(block)
    yield
    for block in blocks:
        pool.unpin(block)


def test_pinned_memory_is_not_counted_as_freeable_by_moving(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    with thread_in_native_code(), pinned(pool, kept[:2]):  # on one of four handles
        before = pool.stats()
        error = failed(pool)
        assert error.set_free_by_moving == 36 * MIB
        check_gain(pool, error, before)
    check_data(work, kept)


@every_mode
def test_pinned_memory_must_be_unpinned_and_may_then_still_need_moving(
    make: MakeArena, work: Work, compact: bool | str
) -> None:
    pool, kept = stranded(make, work, compact=compact)
    with thread_in_native_code():
        with pinned(pool, kept):
            error = failed(pool)
        assert (error.verdict, error.set_free_by_moving) == ("pinned memory kept", 0)
        assert says(error, r"unpin\(\) what does not have to stay in place")
        assert says(error, OFF) is (compact is False)
        assert says(error, THREADS) is (compact == "auto")
        assert says(error, r"both are needed to make room.*safe_point") is (compact is not True)
        if compact == "auto":
            failed(pool)  # unpinned, but nothing moves it
            pool.safe_point(budget="1s")
        if compact is not False:
            pool.allocate(LARGE).free()
    check_data(work, kept)


@every_mode
def test_during_a_capture_the_error_says_to_move_before_it(
    make: MakeArena, work: Work, cu: Cu, compact: bool | str
) -> None:
    pool, kept = stranded(make, work, compact=compact)
    stream, graph = cu.owned_stream(), Captured(cu)
    with graph.of(stream):
        error = failed(pool, LARGE, stream)
    cu.ok("cuGraphExecDestroy", graph.launchable)
    assert error.verdict == "a stream is being captured"
    assert says(error, r"Live data is not moved during a capture\." + GAIN.format(48 * MIB))
    assert says(error, r"before the capture begins\. Or make room before the capture begins: raise the cap")
    assert says(error, 'create the arena with compact="auto"') is (compact is False)
    if compact is not False:
        assert pool.safe_point(budget="1s") == error.set_free_by_moving == 48 * MIB
        with pool.graph() as memory, graph.of(stream):
            pool.allocate(error.largest_with_moving, stream).free()
        cu.ok("cuGraphExecDestroy", graph.launchable)
        memory.release()
    check_data(work, kept)


def test_moving_is_not_advised_during_a_capture_if_it_would_not_help(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, kept = stranded(make, work)
    stream, graph = cu.owned_stream(), Captured(cu)
    with graph.of(stream):
        error = failed(pool, 50 * MIB, stream)
    cu.ok("cuGraphExecDestroy", graph.launchable)
    assert error.verdict == "a stream is being captured"
    assert is_no_way_out(error)
    check_data(work, kept)


def test_the_error_mentions_a_capture_on_another_stream(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, kept = stranded(make, work, compact=True)
    stream, graph = cu.owned_stream(non_blocking=False), Captured(cu)
    with graph.of(stream):
        error = failed(pool)
    cu.ok("cuGraphExecDestroy", graph.launchable)
    assert (error.verdict, error.set_free_by_moving) == ("a stream is being captured", 48 * MIB)
    pool.allocate(LARGE).free()
    check_data(work, kept)


def test_after_a_failure_the_next_safe_point_moves_even_a_little(make: MakeArena) -> None:
    pool = make(cap="256MiB", reserve="256MiB", growth="4MiB")
    kept = [pool.allocate(2 * MIB) for _ in range(128)]
    for block in (kept[3], kept[9]):  # at the ends of two handles, one of which could get an alias
        block.free()
    before = pool.stats()
    assert before.compactable == 4 * MIB
    with thread_in_native_code():
        assert pool.safe_point(budget="1s") == 0  # too little to be worth it
        error = failed(pool, 4 * MIB)
        assert error.verdict == "re-backing not allowed"
        check_gain(pool, error, before)
        assert pool.safe_point(budget="1s") == 0
    check(pool)
    kept.clear()


def test_after_a_failure_the_next_safe_point_moves_data_even_far_below_the_cap(make: MakeArena, work: Work) -> None:
    """The headroom is what keeps the arena from growing here; the device has not refused anything."""
    total = arena.Driver.open("sim").devices()[0].total
    pool, kept = stranded(make, work, headroom=total - 64 * MIB)
    pool.set_cap(total)
    with thread_in_native_code():
        assert pool.safe_point(budget="1s") == 0
        before = pool.stats()
        error = failed(pool)
        check_gain(pool, error, before)
    check_data(work, kept)


def test_a_safe_point_keeps_what_it_frees_when_others_use_the_headroom(make: MakeArena, work: Work) -> None:
    total = arena.Driver.open("sim").devices()[0].total
    pool, kept = stranded(make, work, headroom=total - 64 * MIB)
    with sim.temporarily(other=32 * MIB), thread_in_native_code():
        before = pool.stats()
        check_gain(pool, failed(pool), before)
        assert pool.stats().reserved == before.reserved
    check_data(work, kept)
    check(pool)


def test_a_safe_point_that_ran_out_of_time_is_continued_by_the_next(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    with thread_in_native_code():
        error = failed(pool)
        freed = pool.safe_point(budget=0)
        while freed < error.set_free_by_moving:
            freed += pool.safe_point(budget="200us")
        assert freed == error.set_free_by_moving
        pool.allocate(LARGE).free()
    check_data(work, kept)


def test_what_the_error_says_about_moving_survives_pickling_and_copying(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work, compact=False)
    error = failed(pool)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(other) == str(error)
        names = ("moving", "set_free_by_moving", "largest_with_moving", "largest")
        assert [getattr(other, name) for name in names] == ["switched off", 48 * MIB, 48 * MIB, 6 * MIB]
    check_data(work, kept)


def test_oom_callbacks_receive_what_moving_would_free(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    seen: list[OutOfMemoryError] = []

    def move(error: OutOfMemoryError) -> None:
        seen.append(error)
        pool.safe_point(budget="1s")

    pool.on_oom(move)
    with thread_in_native_code():
        pool.allocate(LARGE).free()
    assert [(error.moving, error.set_free_by_moving) for error in seen] == [("other threads", 48 * MIB)]
    check_data(work, kept)


def test_an_error_from_an_older_version_says_nothing_about_moving() -> None:
    error = OutOfMemoryError("out of memory: 4 B asked", "re-backing not allowed", 4, 1, {}, ())
    assert (error.largest_with_moving, error.set_free_by_moving, error.moving) == (1, 0, "")
    assert str(error) == "out of memory: 4 B asked"
