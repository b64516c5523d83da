"""The figures of ``torch.cuda.memory_stats()``, with PyTorch's meanings.

What tensors have is counted for PyTorch alone, in ``src/bindings/torch/statistics.hpp``. What was taken
from the device is what the arenas took that PyTorch uses, also for other frameworks.
"""

from __future__ import annotations

from typing import Any

from .. import _core

__all__ = ["of_device", "reset_peaks", "reset_totals"]

_NO_LIMIT = -1  # PyTorch's number for "blocks of any size are split"
_since: dict[int, dict[str, int]] = {}  # by device: what the arenas had counted at the last reset

_Figure = dict[str, int]


def of_device(device: int) -> dict[str, Any]:
    """Return all figures of a device, as PyTorch nests them."""
    tensors, failures = _core.torch_statistics(device)
    totals = _totals(device)
    counted = {name: value - _since.get(device, {}).get(name, 0) for name, value in totals.items()}
    bytes_, requested, blocks = ({kind: _figure(*its[i]) for kind, its in tensors.items()} for i in range(3))
    stranded = totals["stranded"]
    return {
        "num_alloc_retries": counted["waits"],
        "num_ooms": failures,
        "num_oom_rejections": 0,
        "max_split_size": _NO_LIMIT,
        "num_sync_all_streams": counted["waits"],
        "num_device_alloc": counted["maps"],
        "num_device_free": counted["unmaps"],
        "allocation": blocks,
        "active": blocks,
        "allocated_bytes": bytes_,
        "active_bytes": bytes_,
        "requested_bytes": requested,
        "reserved_bytes": _large(totals["reserved"], totals["peak_reserved"], counted["taken"], counted["returned"]),
        "reserved_bytes_by_private_pools": {},
        "segment": _large(totals["handles"], totals["peak_handles"], counted["maps"], counted["unmaps"]),
        "inactive_split": _large(0, 0, 0, 0),
        "inactive_split_bytes": _large(stranded, stranded, stranded, 0),
        "oversize_allocations": _figure(0, 0, 0, 0),
        "oversize_segments": _figure(0, 0, 0, 0),
    }


def reset_peaks(device: int) -> None:
    """Start all peaks again."""
    _core.reset_torch_peaks(device)


def reset_totals(device: int) -> None:
    """Start counting again what is allocated and freed, and what fails."""
    _since[device] = _totals(device)
    _core.reset_torch_totals(device)


def _totals(device: int) -> dict[str, int]:
    """What the arenas of a device have and counted so far, all together."""
    names = ("waits", "maps", "unmaps", "reserved", "peak_reserved", "stranded")
    total = dict.fromkeys((*names, "taken", "returned", "handles", "peak_handles"), 0)
    for core in _core.torch_arenas(device):
        stats = core.stats(False)
        for name in names:
            total[name] += getattr(stats, name)
        returned, handles, handles_at_peak = core.reserved_so_far()
        total["returned"] += returned
        total["taken"] += stats.reserved + returned
        total["handles"] += handles
        total["peak_handles"] += handles_at_peak
    return total


def _figure(current: int, peak: int, allocated: int, freed: int) -> _Figure:
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def _large(current: int, peak: int, allocated: int, freed: int) -> dict[str, _Figure]:
    """The arena does not separate memory for small requests from the rest."""
    figure = _figure(current, max(current, peak), allocated, freed)
    return {"all": figure, "large_pool": dict(figure), "small_pool": _figure(0, 0, 0, 0)}
