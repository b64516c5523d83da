"""``arena.sim.dryrun()``: a simulated GPU in a process of tests."""

from __future__ import annotations

from ..programs import run

ENTERED = """
import arena, ctypes
from arena import sim
with sim.dryrun(card="t4") as card:
    cudart = ctypes.CDLL("libcudart.so.13")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cudart.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    assert (card.key, total.value) == ("t4", card.memory)
    assert total.value - free.value == card.context == sim.used()
    pointer = ctypes.c_void_p()
    assert cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
    assert sim.used() == card.context + (1 << 30)
    assert cudart.cudaFree(pointer) == 0
"""


def test_libraries_are_found_by_name_and_the_device_is_the_card() -> None:
    run(ENTERED, check=True)


def test_a_process_has_one_card() -> None:
    code = """
with sim.dryrun(card="t4"):
    pass
try:
    with sim.dryrun(card="a100-80"):
        pass
except arena.ArenaError as error:
    print(error)
"""
    said = run(ENTERED + code, check=True).stdout
    assert "this process simulates " in said
    assert "test another card in a process of its own" in said


def test_memory_changes_the_size_of_the_card() -> None:
    code = """
import ctypes
from arena import sim
with sim.dryrun(card="t4", memory="1GiB"):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.CDLL("libcudart.so.13").cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    print(total.value)
"""
    assert int(run(code, check=True).stdout) == 1 << 30


def test_another_library_of_the_same_name_is_refused_with_its_path(tmp_path: object) -> None:
    # Ours under another path stands for NVIDIA's: what counts is which file is loaded.
    code = """
import ctypes, pathlib, shutil, sys
import arena
from arena._dryrun.libraries import FOLDER
other = pathlib.Path(sys.argv[1]) / "libcudart.so.13"
shutil.copy(FOLDER / "libcudart.so.13", other)
ctypes.CDLL(str(other))
try:
    with arena.sim.dryrun():
        pass
except arena.ArenaError as error:
    print(error)
"""
    said = run(code, str(tmp_path), check=True).stdout
    assert f"{tmp_path}/libcudart.so.13 is loaded in this process already" in said
    assert "before you import torch or cupy" in said


def test_a_simulated_driver_that_runs_already_cannot_become_another_card() -> None:
    code = """
import arena
from arena import sim
pool = arena.Arena(device="sim:1GiB")
try:
    with sim.dryrun(card="t4"):
        pass
except arena.ArenaError as error:
    print(error)
"""
    said = run(code, check=True).stdout
    assert said.startswith("the simulated driver runs in this process already, so its card and memory cannot change. ")
    assert "Enter arena.sim.dryrun() before anything uses CUDA" in said
