"""Replays: they match the recorded run step by step, and say whether, where and why a program does not fit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import arena
from arena import Trace, _core

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT
from ..simulated.cu import Cu


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_a_replay_has_the_account_of_the_run_at_every_step(make: MakeArena, cu: Cu, tmp_path: Path, vmm: bool) -> None:
    pool = make(cap="96MiB", vmm=vmm, compact=True)
    streams = [0, cu.owned_stream()]
    accounts = []
    with pool.record(tmp_path / "run.arena"):
        choose, live = random.Random(3), list[arena.Buffer]()
        for _ in range(600):
            if live and choose.random() < 0.5:
                live.pop(choose.randrange(len(live))).free()
            else:
                live.append(pool.allocate(choose.choice([10, 5000, 300_000, 3 * MIB]), choose.choice(streams)))
            accounts.append(figures(pool.stats()))
    trace = Trace.read(tmp_path / "run.arena")
    other = make(cap="96MiB", vmm=vmm)
    replay = _core.Replay(trace._core, other._open, 1)
    played = []
    for event in trace:
        replay.step(1)
        if event.kind in ("allocate", "free"):
            played.append(figures(other.stats()))
    assert played == accounts
    del replay
    live.clear()


def figures(stats: arena.Stats) -> tuple[int, ...]:
    return tuple(getattr(stats, name) for name in ("requested", "live", "reserved", "stranded", "spare", "compactable"))


def test_a_replay_says_whether_where_and_why_it_does_not_fit(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    with pool.record(tmp_path / "run.arena"):
        kept = [pool.allocate(4 * MIB) for _ in range(8)]
    trace = Trace.read(tmp_path / "run.arena")
    done = trace.replay(cap="32MiB")
    assert (done.fits, done.error, done.peak_live) == (True, None, 32 * MIB)
    assert done.priced_ms is not None
    assert done.samples[-1][1].live == 32 * MIB
    seen: list[tuple[int, int]] = []
    done = trace.replay(cap="20MiB", progress=lambda played, total: seen.append((played, total)))
    assert not done.fits
    assert done.error is not None
    assert (done.error.verdict, done.report.verdict, done.error.requested) == ("cap reached", "cap reached", 4 * MIB)
    assert done.peak_live == 20 * MIB
    assert seen[-1] == (done.events, len(trace))
    assert len(kept) == 8


@pytest.mark.parametrize("name", ["vgg", "server"])
def test_recorded_programs_replay_under_their_caps(name: str) -> None:
    trace = Trace.read(ROOT / "benchmarks/traces" / f"{name}.csv.gz")
    unbounded = trace.replay(device="sim:8GiB")
    tight = trace.replay(device="sim:8GiB", cap=unbounded.peak_live * 12 // 10, compact=True)
    assert tight.fits
    assert tight.peak_live == unbounded.peak_live
    assert not trace.replay(device="sim:8GiB", cap=unbounded.peak_live * 9 // 10, compact=True).fits
