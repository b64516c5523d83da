"""``arena info``: the driver, the devices, and where each setting comes from."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import _core
from .._core import __version__
from .._pool.settings import SETTINGS, resolve, source_of
from .._util.console import Console
from .._util.sizes import format_size
from ..errors import DriverError
from .options import JSON

__all__ = ["info"]


def info(as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False) -> None:
    """Show the driver, the devices, and the settings of a new arena.

    \b
    Examples:
      arena info
      ARENA_CAP=80% arena info
    """
    facts = gather()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    console = Console(soft_wrap=True)
    driver = facts["driver"]
    kind = "simulated" if driver["simulated"] else "NVIDIA's"
    console.print(f"arena {facts['arena']}, Python {facts['python']}")
    console.print(
        f"driver: {driver['path']}, {kind}, CUDA {driver['version'] // 1000}.{driver['version'] % 1000 // 10}"
    )
    for device in facts["devices"]:
        console.print(f"device {device['number']}: {device['name']}, {_memory_in_words(device)}")
        for line in _notes(device):
            console.print(f"  {line}")
        table = Table(box=None, padding=(0, 2))
        for title in ("setting", "value", "from"):
            table.add_column(title)
        for setting in device["settings"]:
            table.add_row(setting["name"], format_size(setting["bytes"]), setting["source"])
        console.print(table)
    console.print("Next: arena replay TRACE --cap 4GiB, or in Python: cupy.cuda.set_allocator(arena.malloc)")


def gather() -> dict[str, Any]:
    driver = _core.default_driver()
    return {
        "arena": __version__,
        "python": platform.python_version(),
        "driver": {"path": driver.path, "version": driver.version, "simulated": driver.is_simulated},
        "devices": [_facts(driver, number) for number in range(_core.device_count(driver))],
    }


def _facts(driver: _core.Driver, number: int) -> dict[str, Any]:
    device, problem = _core.describe_device(driver, number), ""
    try:
        device = _core.device_info(driver, number)
    except DriverError as error:  # affects only this device
        problem = str(error)
    problem = problem or device.problem
    sizes = {name: resolve(name, None, device.total) for name in SETTINGS}
    return {
        "number": device.number,
        "name": device.name,
        "total": device.total,
        "free": device.free,
        "problem": problem,
        "virtual_memory": device.virtual_memory,
        "integrated": device.integrated,
        "rdma": device.rdma,
        "peers": device.peers,
        **({"addresses": None, "remark": ""} if problem else _start(driver, number, sizes["cap"])),
        "settings": [{"name": name, "bytes": sizes[name], "source": source_of(name)} for name in SETTINGS],
    }


def _start(driver: _core.Driver, number: int, cap: int) -> dict[str, Any]:
    """Facts from starting an arena on the device, which reserves addresses, but no memory."""
    pool = _core.Arena(driver, number, cap=cap, reserve=0, headroom=0, growth=64 << 20)
    facts = {"addresses": pool.addresses, "remark": pool.remark}
    pool.close()
    return facts


def _memory_in_words(device: dict[str, Any]) -> str:
    vmm = "virtual memory" if device["virtual_memory"] else "no virtual memory"
    total = format_size(device["total"])
    return f"{total}, {vmm}" if device["free"] is None else f"{format_size(device['free'])} of {total} free, {vmm}"


def _notes(device: dict[str, Any]) -> Iterator[str]:
    """Other useful facts about a device."""
    if device["problem"]:
        yield f"unavailable: {device['problem']}"
    if device["addresses"] and not device["remark"]:
        cap = next(setting["bytes"] for setting in device["settings"] if setting["name"] == "cap")
        yield f"addresses: {format_size(device['addresses'])}, {device['addresses'] / max(cap, 1):.3g} times the cap"
    if device["remark"]:
        yield f"note: {device['remark']}"
    if device["peers"]:
        yield f"peers that can access its memory: {', '.join(map(str, device['peers']))}"
    if device["rdma"]:
        yield "GPUDirect RDMA: supported"
    if device["integrated"]:
        yield (
            "shares the host's memory: free memory does not include cached files that the host would drop, so "
            "headroom= keeps more free than it says, and other programs on the host use the same memory"
        )
