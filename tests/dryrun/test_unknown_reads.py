"""Programs that read what was never computed, through the CUDA runtime alone."""

from __future__ import annotations

from pathlib import Path

from .program import dry, facts_of

# Reads a number from memory that nothing has written.
READS = """
import ctypes

cudart = ctypes.CDLL("libcudart.so.13")

def allocate(size):
    pointer = ctypes.c_void_p()
    assert cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer

def read(pointer):
    number = ctypes.c_longlong(77)
    assert cudart.cudaMemcpy(ctypes.byref(number), pointer, ctypes.c_size_t(8), 2) == 0
    return number.value

memory = allocate(64 << 20)
print([read(memory) for _ in range(3)])
"""


def test_unknown_memory_reads_as_zeros_and_the_line_is_named(tmp_path: Path) -> None:
    done = dry(tmp_path, READS, options=("--card", "t4", "--json"))
    assert done.stdout == "[0, 0, 0]\n"
    (entry,) = facts_of(done)["unknown"]
    assert (entry["line"], entry["count"], entry["kind"]) == ("train.py:13 in read", 3, "read")


def test_the_verdict_is_unsure_and_so_is_the_exit_code(tmp_path: Path) -> None:
    """At the level of the driver, nothing says what the bytes mean: they can have no other value."""
    done = dry(tmp_path, READS, options=("--card", "t4"))
    assert done.returncode == 4
    assert "arena: unsure whether it fits on t4: what follows may depend on" in done.stderr
    assert "at train.py:13" in done.stderr


def test_without_values_nothing_is_noted(tmp_path: Path) -> None:
    facts = facts_of(dry(tmp_path, READS, options=("--card", "t4", "--values", "none", "--json")))
    assert (facts["verdict"], facts["fits"], facts["unknown"]) == ("fits", True, [])


def test_what_was_copied_there_is_known(tmp_path: Path) -> None:
    written = READS.replace("print(", "cudart.cudaMemset(memory, 1, ctypes.c_size_t(8))\nprint(")
    done = dry(tmp_path, written, options=("--card", "t4", "--json"))
    assert done.stdout == f"{[0x0101010101010101] * 3}\n"
    assert (facts_of(done)["verdict"], facts_of(done)["unknown"]) == ("fits", [])
