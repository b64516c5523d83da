"""The frameworks that can use an arena, and how each is given the default arenas.

Imports none of them, nor their adapters: what a program does not import is not loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from .. import _core
from .._cupy.in_force import cupys_allocator, is_arenas
from ..errors import UsageError

__all__ = ["FRAMEWORKS", "Framework", "parse_keys"]


NUMBAS_CHOICE = "NUMBA_CUDA_MEMORY_MANAGER"


class Framework(NamedTuple):
    """A framework and its adapter."""

    key: str
    """As in ``--only``."""
    name: str
    """As in reports."""
    module: str
    """The adapter is needed once this module is imported."""
    give: Callable[[Any], object]
    """Give it the default arenas. Called with the module."""
    uses_arena: Callable[[], bool]
    """Whether it gets its memory from an arena now. The module is imported."""
    has_cuda: Callable[[Any], bool] = lambda module: True
    """Whether it is built with CUDA. Called with the module."""
    when_ready: Callable[[Any, Callable[[], None]], object] = lambda module, give: give()
    """Call a function when it is time for ``give()``. Called with the module, right after its import."""

    @property
    def imported(self) -> Any:
        """The module; None if it is not imported."""
        module = sys.modules.get(self.module)
        return module if isinstance(module, ModuleType) else None


def give_cupy(cupy: Any) -> None:
    cupy.cuda.set_allocator(_core.malloc)


def torch_has_cuda(torch: Any) -> bool:
    return torch.version.cuda is not None


def before_torch_uses_cuda(torch: Any, give: Callable[[], None]) -> None:
    """PyTorch takes one allocator: not at its import, so that a program can choose its own."""
    if not torch_has_cuda(torch):
        return
    begin = torch._C._cuda_init

    def give_and_begin() -> None:
        torch._C._cuda_init = begin
        give()
        begin()

    torch._C._cuda_init = give_and_begin


def give_torch(torch: Any) -> None:
    from .. import torch as adapter  # late: imports PyTorch

    if not is_plugged_in(torch):
        adapter.use()


def is_plugged_in(torch: Any) -> bool:
    """Whether some allocator replaces PyTorch's own."""
    return bool(torch.cuda.memory.get_allocator_backend() == "pluggable")


def torch_uses_arena() -> bool:
    from .. import torch as adapter  # late: PyTorch is imported

    torch: Any = sys.modules["torch"]
    is_chosen = torch.cuda.is_initialized() or is_plugged_in(torch)
    return adapter.is_in_use() or not is_chosen


def give_numba(numba_cuda: Any) -> None:
    chosen = os.environ.get(NUMBAS_CHOICE, "").strip()
    if chosen not in ("", "default", "arena.numba"):
        raise UsageError(f"{NUMBAS_CHOICE}={chosen} chooses another memory manager")
    from .. import numba as adapter  # late: imports Numba

    adapter.use()


def numba_uses_arena() -> bool:
    from .. import numba as adapter  # late: Numba is imported

    return adapter.is_in_use()


def give_cuda_core(cuda_core: Any) -> None:
    from .. import cuda_core as adapter  # late: imports cuda.core

    adapter.use()


def cuda_core_uses_arena() -> bool:
    from .. import cuda_core as adapter  # late: cuda.core is imported

    return adapter.is_in_use()


def give_rmm(rmm: Any) -> None:
    from .. import rmm as adapter  # late: imports RMM

    # How many devices there are is not known yet: asking would open the driver, and a program may fork first.
    rmm.mr.set_per_device_resource(0, adapter.default_resource(0))


def rmm_uses_arena() -> bool:
    from .. import rmm as adapter  # late: RMM is imported

    return adapter.is_in_use()


FRAMEWORKS = (
    Framework("cupy", "CuPy", "cupy", give_cupy, lambda: is_arenas(cupys_allocator())),
    Framework("torch", "PyTorch", "torch", give_torch, torch_uses_arena, torch_has_cuda, before_torch_uses_cuda),
    Framework("numba", "Numba", "numba.cuda", give_numba, numba_uses_arena),
    Framework("cuda_core", "cuda.core", "cuda.core", give_cuda_core, cuda_core_uses_arena),
    Framework("rmm", "RMM", "rmm", give_rmm, rmm_uses_arena),
)


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys in a text like ``cupy,torch``."""
    known = [framework.key for framework in FRAMEWORKS]
    keys = [key for part in text.split(",") if (key := part.strip().lower())]
    wrong = [key for key in keys if key not in known]
    if wrong or not keys:
        raise UsageError(f"{wrong[0] if wrong else text!r} is not a framework; choose from {', '.join(known)}")
    return tuple(dict.fromkeys(keys))
