"""Puts the arena's answers in the place of PyTorch's: functions of the module ``torch._C``, which all of PyTorch's own
functions about memory call, and the four functions that programs call most.

PyTorch's functions stay where nothing is known to replace them, so a question that this does not know ends as it did.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .. import _core
from .._export.torch import NO_POOL
from . import snapshot, statistics

__all__ = ["answer"]


def answer(torch: Any) -> None:
    """Answer from now on."""
    _replace(torch._C, _answers(torch))
    _replace(torch._C, _accelerator(torch))
    _replace(torch.cuda.memory, _quick(torch))
    for name in _quick(torch):
        setattr(torch.cuda, name, getattr(torch.cuda.memory, name))


def _replace(module: Any, functions: dict[str, Callable[..., Any]]) -> None:
    for name, function in functions.items():
        if hasattr(module, name):  # in this version of PyTorch
            setattr(module, name, functools.wraps(getattr(module, name))(function))


def _checked(torch: Any, device: object) -> int:
    """PyTorch's checks, with its words."""
    if isinstance(device, bool) or not isinstance(device, int):
        raise RuntimeError("invalid argument to memory_allocated")
    if not 0 <= device < torch._C._cuda_getDeviceCount():
        raise RuntimeError(f"Invalid device argument {device}: did you call init?")
    return device


def _answers(torch: Any) -> dict[str, Callable[..., Any]]:
    record_host = torch._C._cuda_record_memory_history

    def record(
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        most: int = sys.maxsize,
        clears: bool = False,
        *arguments: Any,
    ) -> None:
        records_host = len(arguments) > 3 and bool(arguments[3])
        records_device = len(arguments) < 5 or bool(arguments[4])
        if records_host:  # PyTorch's own allocator has this memory
            record_host(enabled, context, stacks, most, clears, *arguments[:4], False)
        if records_device:
            snapshot.record(enabled, context, most, clears=clears)

    def record_legacy(enabled: bool, with_context: bool = True, most: int = 1, *arguments: Any) -> None:
        clears = bool(arguments[2]) if len(arguments) > 2 else False
        snapshot.record("all" if enabled else None, "all" if with_context else None, most, clears=clears)

    def take(wanted: tuple[Any, ...] | None = None) -> dict[str, Any]:
        pool = NO_POOL if wanted is None else (wanted[0], wanted[1])
        with_history = wanted is None or len(wanted) < 3 or bool(wanted[2])
        return snapshot.take(pool, torch._C._cuda_getDeviceCount(), with_history=with_history)

    return {
        "_cuda_memoryStats": lambda device: statistics.of_device(_checked(torch, device)),
        "_cuda_resetPeakMemoryStats": lambda device: statistics.reset_peaks(_checked(torch, device)),
        "_cuda_resetAccumulatedMemoryStats": lambda device: statistics.reset_totals(_checked(torch, device)),
        "_cuda_memorySnapshot": take,
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_isHistoryEnabled": lambda: _core.is_torch_history_on(),
        "_cuda_allocationTraceback": snapshot.frames_at,
    }


def _accelerator(torch: Any) -> dict[str, Callable[..., Any]]:
    """``torch.accelerator`` asks PyTorch's own allocator, whichever is in use."""
    return {
        "_accelerator_isAllocatorInitialized": lambda: bool(torch.cuda.is_initialized()),
        "_accelerator_emptyCache": lambda: torch._C._cuda_emptyCache(),
        "_accelerator_getDeviceStats": lambda device: statistics.of_device(_checked(torch, device)),
        "_accelerator_resetAccumulatedStats": lambda device: statistics.reset_totals(_checked(torch, device)),
        "_accelerator_resetPeakStats": lambda device: statistics.reset_peaks(_checked(torch, device)),
    }


def _quick(torch: Any) -> dict[str, Callable[..., Any]]:
    """PyTorch collects all figures to answer with one, which takes fifty times as long."""

    def asks(figure: Callable[[int], int]) -> Callable[..., int]:
        cuda, current = torch.cuda, torch._C._cuda_getDevice

        def ask(device: Any = None) -> int:
            if not cuda.is_initialized():
                return 0
            if device is None:
                return figure(current())
            return figure(_checked(torch, cuda._utils._get_device_index(device, optional=True)))

        return ask

    return {
        "memory_allocated": asks(_core.torch_allocated),
        "max_memory_allocated": asks(_core.torch_peak_allocated),
        "memory_reserved": asks(lambda device: _core.torch_reserved(device)[0]),
        "max_memory_reserved": asks(lambda device: _core.torch_reserved(device)[1]),
    }
