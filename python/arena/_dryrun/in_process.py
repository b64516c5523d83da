"""``arena.sim.dryrun()``: a simulated GPU for PyTorch and CuPy in this process, for tests."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import sim
from .. import torch as arena_torch
from .._cards import Card, find_card
from .._sim.library import library
from .._util.sizes import Size, parse_size
from ..errors import ArenaError, UsageError
from . import cupy as dry_cupy
from . import marks
from . import torch as dry_torch
from .libraries import foreign_libraries, libraries, planners

__all__ = ["dryrun"]

_open: list[ctypes.CDLL] = []
_device: tuple[str, int] | None = None  # what this process simulates


@contextlib.contextmanager
def dryrun(
    card: str | os.PathLike[str] = "rtx4090", memory: Size | None = None, values: str = "control"
) -> Iterator[Card]:
    """See :func:`arena.sim.dryrun`."""
    profile = find_card(card)
    size = profile.memory if memory is None else parse_size(memory, profile.memory, "memory")
    if not size:
        raise UsageError(f"memory={memory!r} leaves nothing; give a size")
    begin(profile, size, marks.checked_mode(values, "values"))
    try:
        yield profile
    finally:
        give_back()


def begin(profile: Card, size: int, values: str = "control") -> None:
    global _device
    wanted = (str(profile.path), size)
    if _device is not None:
        if values != marks.mode():
            raise ArenaError(
                f"this process computes values={marks.mode()!r} already, and frameworks are imported for that; test "
                f"with values={values!r} in a process of its own"
            )
        if _device != wanted:
            raise ArenaError(
                f"this process simulates {_device[0]} with {_device[1]:,} bytes already, and frameworks keep what they "
                "found; test another card in a process of its own"
            )
        return
    refuse_others()
    files = libraries()
    sim.enable()
    if sim.census().devices:
        raise ArenaError(
            "the simulated driver runs in this process already, so its card and memory cannot change. Enter "
            "arena.sim.dryrun() before anything uses CUDA, such as in conftest.py"
        )
    sim.configure(card=profile.path, memory=size)
    for file in files:
        if file != library():
            _open.append(ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL))
    os.environ[marks.VARIABLE] = values  # for processes that the test starts, too
    os.environ.update({name: value for name, value in planners().items() if name not in os.environ})
    marks.enable(values != "none")
    dry_cupy.enable()
    dry_torch.enable(values)
    arena_torch.hand_through(dry_torch.through)
    _device = wanted


def refuse_others() -> None:
    """A library's name can be taken only once in a process."""
    if foreign := foreign_libraries():
        imported = [name for name in ("torch", "cupy") if name in sys.modules]
        before = f"; {' and '.join(imported)} brought it" if imported else ""
        raise ArenaError(
            f"{foreign[0]} is loaded in this process already, so frameworks would not find the simulated GPU{before}. "
            "Enter arena.sim.dryrun() before you import torch or cupy, such as in conftest.py"
        )


def give_back() -> None:
    """Return what frameworks keep for later, so that the next test starts with an empty device."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if isinstance(torch, ModuleType) and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with contextlib.suppress(RuntimeError):  # only PyTorch's own allocator has these figures
            torch.cuda.reset_peak_memory_stats()
    cupy: Any = sys.modules.get("cupy")
    if isinstance(cupy, ModuleType):
        with contextlib.suppress(Exception):  # it asks the CUDA runtime, which may be what a test broke
            cupy.cuda.Device().synchronize()
            cupy.get_default_memory_pool().free_all_blocks()
