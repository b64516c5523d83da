"""``arena info``: devices, driver, limits, and where each setting comes from."""

from __future__ import annotations

import json
import platform
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .. import _core
from .._settings import SETTINGS, resolve, source_of
from .._sizes import format_size

__all__ = ["info"]


def info(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Tell which driver and devices there are, and which settings an arena would use.

    Example: ARENA_CAP=80% arena info
    """
    facts = gather()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    driver = facts["driver"]
    kind = "simulated" if driver["simulated"] else "NVIDIA's"
    console.print(f"arena {facts['arena']}, Python {facts['python']}")
    console.print(
        f"driver: {driver['path']}, {kind}, CUDA {driver['version'] // 1000}.{driver['version'] % 1000 // 10}"
    )
    for device in facts["devices"]:
        vmm = "virtual memory" if device["virtual_memory"] else "no virtual memory"
        free = f"{format_size(device['free'])} of {format_size(device['total'])} free"
        console.print(f"device {device['number']}: {device['name']}, {free}, {vmm}")
        table = Table(box=None, padding=(0, 2))
        for title in ("setting", "in force", "from"):
            table.add_column(title)
        for setting in device["settings"]:
            table.add_row(setting["name"], format_size(setting["bytes"]), setting["source"])
        console.print(table)
    console.print("Next: arena replay TRACE --cap 4GiB, or in Python: cupy.cuda.set_allocator(arena.malloc)")


def gather() -> dict[str, Any]:
    from .. import __version__

    driver = _core.default_driver()
    return {
        "arena": __version__,
        "python": platform.python_version(),
        "driver": {"path": driver.path, "version": driver.version, "simulated": driver.is_simulated},
        "devices": [
            {
                "number": device.number,
                "name": device.name,
                "total": device.total,
                "free": device.free,
                "virtual_memory": device.virtual_memory,
                "settings": [
                    {"name": name, "bytes": resolve(name, None, device.total), "source": source_of(name)}
                    for name in SETTINGS
                ],
            }
            for device in driver.devices()
        ],
    }
