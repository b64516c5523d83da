"""With compact="auto" nothing is moved while a library that registers pages is in use, and the error names it.

The libraries are empty ones of that name, or have the one function that is asked.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from arena._words.moving import REGISTERED, how_to_allow, in_words, is_mode, mode

from .test_auto_compact import BEFORE, MOVED, REFUSED, outcome

ASKED = """
import arena
def asked():
    outcome = stranded.attempt()
    try:
        stranded.pool.allocate(56 << 20).free()
        moving = stranded.pool.snapshot().moving
    except arena.OutOfMemoryError as error:
        moving = error.moving
        assert moving == stranded.pool.snapshot().moving == stranded.pool.report().moving
        assert stranded.pool.stats().largest < 56 << 20
    return f"{outcome}, {moving}"
"""


def library(folder: Path, name: str, code: str = "int nothing;") -> str:
    """A library of that name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = folder / "library.c"
    source.write_text(code)
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", str(source), "-o", str(folder / name)], check=True)
    return str(folder / name)


def said(code: str, *arguments: str) -> str:
    return outcome(code, *arguments, before=BEFORE + ASKED, after="\nend(asked())").strip()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("libucp.so.0", "UCX"),
        ("libuct-5a6f.so.0.0.0", "UCX"),
        ("libibverbs.so.1", "libibverbs"),
        ("libfabric.so.1", "libfabric"),
        ("libgdrapi.so.2", "GDRCopy"),
        ("libcufile_rdma.so.1", "GPUDirect Storage"),
        ("nvshmem_bootstrap_uid.so.3", "NVSHMEM"),
        ("nvshmem_transport_ibrc.so.6", "NVSHMEM"),
    ],
)
def test_nothing_is_moved_while_a_library_is_loaded_that_registers_pages(file: str, name: str, tmp_path: Path) -> None:
    assert said("ctypes.CDLL(sys.argv[1])", library(tmp_path, file)) == (
        f"re-backing not allowed, registered pages: {name}"
    )


@pytest.mark.parametrize(
    "file", ["libnccl.so.2", "libnvshmem_host.so.3", "libfabricated.so.1", "libucprofile.so", "libtorch_nvshmem.so"]
)
def test_live_data_is_moved_beside_libraries_that_are_loaded_and_not_in_use(file: str, tmp_path: Path) -> None:
    assert said("ctypes.CDLL(sys.argv[1])", library(tmp_path, file)) == "moved, allowed"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("long cuFileUseCount(void) { return 0; }", "moved, allowed"),
        ("long cuFileUseCount(void) { return 1; }", "re-backing not allowed, registered pages: GPUDirect Storage"),
        ("int old;", "re-backing not allowed, registered pages: GPUDirect Storage"),
    ],
    ids=["closed", "open", "cannot be asked"],
)
def test_gpudirect_storage_counts_from_its_drivers_opening_on(code: str, expected: str, tmp_path: Path) -> None:
    """PyTorch's wheels load the library in any case."""
    assert said("ctypes.CDLL(sys.argv[1])", library(tmp_path, "libcufile.so.0", code)) == expected


# As a communicator has: a thread that serves other ranks.
SERVICE = """
#include <poll.h>
#include <pthread.h>
static void *serve(void *unused) { return poll(0, 0, -1) ? unused : unused; }
int begin(void) { pthread_t thread; return pthread_create(&thread, 0, serve, 0); }
"""


def test_a_communicator_of_nccl_is_noticed_by_its_thread(tmp_path: Path) -> None:
    code = "nccl = ctypes.CDLL(sys.argv[1])\nassert nccl.begin() == 0\ntime.sleep(0.05)\n"
    assert said(code, library(tmp_path, "libnccl.so.2", SERVICE)) == "re-backing not allowed, registered pages: NCCL"


def test_a_communicator_of_nccl_is_noticed_by_its_shared_memory() -> None:
    code = """
import mmap
path = f"/dev/shm/nccl-{os.getpid()}"
with open(path, "w+b") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
os.unlink(path)  # as NCCL does
"""
    assert said(code) == "re-backing not allowed, registered pages: NCCL"


GROUPS = """
import types
world = types.SimpleNamespace(pg_map={groups}, pg_backend_config={configs})
sys.modules["torch.distributed.distributed_c10d"] = types.SimpleNamespace(_world=world)
"""


@pytest.mark.parametrize(
    ("groups", "configs", "expected"),
    [
        ("{}", "{}", "moved, allowed"),
        ('{1: ("gloo", None)}', '{1: "cpu:gloo,cuda:gloo"}', "moved, allowed"),
        ('{1: ("nccl", None)}', '{1: "cuda:nccl"}', "re-backing not allowed, registered pages: NCCL"),
        (
            '{1: ("undefined", None)}',
            '{1: "cpu:gloo,cuda:nccl"}',
            "re-backing not allowed, registered pages: NCCL",
        ),
        (
            '{1: ("gloo", None), 2: ("ucc", None)}',
            "{}",
            "re-backing not allowed, registered pages: torch.distributed with ucc",
        ),
        ("None", "{}", "re-backing not allowed, registered pages: torch.distributed with an unknown backend"),
    ],
    ids=["none", "gloo", "nccl", "the default", "two", "another version"],
)
def test_a_process_group_counts_by_its_backend(groups: str, configs: str, expected: str) -> None:
    assert said(GROUPS.format(groups=groups, configs=configs)) == expected


def test_nothing_is_moved_at_a_safe_point_nor_by_a_trim_while_a_library_registers_pages(tmp_path: Path) -> None:
    code = """
import arena
ctypes.CDLL(sys.argv[1])
assert stranded.attempt() == "re-backing not allowed"
assert stranded.pool.safe_point(budget="10s") == 0
try:
    stranded.pool.trim(compact=True)
except arena.UsageError as error:
    text = str(error)
assert stranded.pool.stats().rebacked == 0
stranded.check_data()
"""
    assert outcome(code, library(tmp_path, "libucp.so.0"), after="end(text)") == (
        "trim(compact=True) would move live data. Live data may not be moved: UCX may have registered its pages "
        '(compact="auto").\n'
    )


def test_compact_true_is_a_promise_about_pages_too(tmp_path: Path) -> None:
    code = """
import arena
ctypes.CDLL(sys.argv[1])
stranded.live.clear()
stranded.pool.close()
stranded.pool = arena.Arena(cap="64MiB", growth="16MiB", compact=True)
stranded.strand()
"""
    assert outcome(code, library(tmp_path, "libucp.so.0")) == MOVED


def test_a_library_that_is_loaded_later_is_noticed_by_the_next_request(tmp_path: Path) -> None:
    code = """
first = stranded.attempt()
stranded.strand()
ctypes.CDLL(sys.argv[1])
second = stranded.attempt()
"""
    path = library(tmp_path, "libibverbs.so.1")
    assert outcome(code, path, after="end(f'{first}, {second}')") == f"{MOVED.strip()}, {REFUSED}"


def test_a_library_that_is_loaded_while_threads_are_inspected_is_noticed(tmp_path: Path) -> None:
    code = """
from arena._pool import moving, threads
inspect, find = threads._inspect, threads.find_standstill
def load_and_inspect():
    ctypes.CDLL(sys.argv[1])
    return inspect()
def find_late(wait):
    threads._inspect = load_and_inspect
    return find(wait)
moving.find_standstill = find_late
"""
    assert outcome(code, library(tmp_path, "libibverbs.so.1")) == REFUSED


def test_the_mode_says_which_libraries_and_what_to_do() -> None:
    moving = mode("auto", is_plain=False, is_allowed=False, libraries=("NCCL", "NVSHMEM", "UCX"))
    assert moving == "registered pages: NCCL, NVSHMEM, UCX"
    assert in_words(moving).startswith("live data may not be moved: NCCL, NVSHMEM or UCX may have registered its pages")
    assert how_to_allow(moving).startswith("pin() the memory that you give to NCCL, NVSHMEM or UCX, and create the ")
    assert how_to_allow(moving, is_captured=True).endswith("before the capture begins.")
    assert how_to_allow(REGISTERED)
    assert is_mode(moving)
    assert not is_mode("registered pages: \x1b]52;c;\x07")
    assert not is_mode("registered pages: " + "x" * 1000)
    assert mode(False, is_plain=False, is_allowed=False, libraries=("UCX",)) == "switched off"
