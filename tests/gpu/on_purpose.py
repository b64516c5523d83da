"""Tests that fail, one for each way to fail. They run only with `--on-purpose`, to show that the runner continues."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import time

import pytest

from .conftest import Gpu


def test_that_passes_with_a_note(gpu: Gpu) -> None:
    gpu.note("measured", 42)


def test_that_crashes(gpu: Gpu) -> None:
    print("about to read address 8", flush=True)
    ctypes.string_at(8)


def test_that_aborts(gpu: Gpu) -> None:
    os.abort()


def test_that_ends_the_process(gpu: Gpu) -> None:
    os._exit(3)


def test_that_ends_the_process_as_if_all_were_well(gpu: Gpu) -> None:
    os._exit(0)


def test_that_fails_and_crashes_at_the_end(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "end", os.abort)
    pytest.fail("before the crash")


def test_that_crashes_at_exit(gpu: Gpu) -> None:
    atexit.register(os.abort)


@pytest.mark.limit(2)
def test_that_hangs(gpu: Gpu) -> None:
    print("started", subprocess.Popen(["sleep", "1000"]).pid, flush=True)
    time.sleep(1000)


def test_that_fails(gpu: Gpu) -> None:
    seen = 2
    assert seen == 3, "as it should"


def test_that_fails_at_the_end(gpu: Gpu) -> None:
    gpu.streams.append(gpu.streams)  # type: ignore[arg-type]


def test_that_is_skipped(gpu: Gpu) -> None:
    pytest.skip("because it likes to")
