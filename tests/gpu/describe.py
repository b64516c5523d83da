"""What a report says about the machine: versions, settings, the driver and its devices."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arena

from ..programs import ROOT
from ..simulated.cu import Cu, prop
from . import conftest
from .isolated import Send, run

PREFIXES = ("ARENA_", "CUDA_", "CUDASIM_", "CUPY_", "NVIDIA_")
PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "cuda-core", "numpy", "pytest")
OPTIONAL = ("cuCtxRecordEvent", "cuStreamGetId", "cuStreamGetCaptureInfo", "cuThreadExchangeStreamCaptureMode")
LIMIT = 60

# By number, from src/abi/constants.def.
ATTRIBUTES = {
    "compute_capability_major": 75,
    "compute_capability_minor": 76,
    "multiprocessors": 16,
    "integrated": 18,
    "compute_mode": 20,
    "unified_addressing": 41,
    "async_engines": 40,
    "concurrent_managed_access": 89,
    "virtual_memory": 102,
    "posix_handles": 103,
    "rdma_with_virtual_memory": 110,
    "memory_pools": 115,
}


def machine() -> dict[str, Any]:
    """The part that needs no driver."""
    release = platform.release()
    return {
        "arena": {"version": arena.__version__, "commit": _commit()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "system": {
            "platform": platform.platform(),
            "kernel": release,
            "machine": platform.machine(),
            "processors": os.cpu_count(),
            "wsl": "microsoft" in release.lower(),
        },
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)},
    }


def driver_and_devices(choice: str) -> dict[str, Any]:
    """Query the driver in a separate process. If it crashes, the facts found so far are kept, with the error."""
    ended = run(_ask, LIMIT)
    if ended is None:
        sys.exit(0)
    driver: dict[str, Any] = {"choice": choice, "kernel_module": _kernel_module()}
    devices: dict[int, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for message in ended.sent:
        if "device" in message:
            number = message.pop("device")
            devices.setdefault(number, {"number": number}).update(message)
        else:
            driver.update(message.pop("driver", {}))
            found.update(message)
    if ended.how:
        driver["error"] = f"describing the devices ended with {ended.how}"
        driver["output"] = ended.output
    return {"driver": driver, "devices": list(devices.values()), **found}


def _ask(send: Send) -> None:
    """One message per fact; what is least likely to fail comes first."""
    try:
        driver = conftest.open_driver()
    except arena.ArenaError as error:
        send({"driver": {"error": str(error)}})
        return
    send({"driver": {"path": driver.path, "version": driver.version, "simulated": driver.is_simulated}})
    cu = Cu(driver.path)
    send({"driver": {"optional_functions": {name: hasattr(cu.lib, name) for name in OPTIONAL}}})
    started = cu.cuInit(0)
    if started != "CUDA_SUCCESS":
        send({"driver": {"error": f"cuInit: {started}"}})
        return
    count = cu.out("cuDeviceGetCount", kind=ctypes.c_int)
    if count == 0:
        send({"driver": {"error": "the driver has no devices"}})
    for number in range(count):
        for name, ask in _questions(cu, number).items():
            send({"device": number, name: _answer(ask)})
    devices = range(count)
    send({"peers": [[0 if one == two else _answer(_peer(cu, one, two)) for two in devices] for one in devices]})
    for number in range(count):
        send({"device": number, "free_memory": _answer(functools.partial(_free, cu, number))})


def _questions(cu: Cu, number: int) -> dict[str, Callable[[], Any]]:
    def attribute(index: int) -> Callable[[], Any]:
        return lambda: cu.out("cuDeviceGetAttribute", index, number, kind=ctypes.c_int)

    def text(function: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        cu.ok(function, buffer, len(buffer), number)
        return buffer.value.decode(errors="replace")

    def uuid() -> str:
        raw = ctypes.create_string_buffer(16)
        cu.ok("cuDeviceGetUuid", raw, number)
        digits = raw.raw.hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def granularity(option: int) -> Callable[[], int]:
        return lambda: cu.out("cuMemGetAllocationGranularity", ctypes.byref(prop(number)), option)

    return {
        "name": lambda: text("cuDeviceGetName"),
        "uuid": uuid,
        "pci_bus_id": lambda: text("cuDeviceGetPCIBusId"),
        "total_memory": lambda: cu.out("cuDeviceTotalMem", number),
        **{name: attribute(index) for name, index in ATTRIBUTES.items()},
        "granularity": granularity(0),
        "recommended_granularity": granularity(1),
    }


def _free(cu: Cu, number: int) -> int:
    """Facts that need a context, which may not be available."""
    cu.start(number)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cu.ok("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    cu.ok("cuDevicePrimaryCtxRelease", number)
    return free.value


def _peer(cu: Cu, one: int, two: int) -> Callable[[], Any]:
    return lambda: cu.out("cuDeviceCanAccessPeer", one, two, kind=ctypes.c_int)


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (AssertionError, AttributeError) as error:  # the driver refuses, or has no such function
        return f"{error}"


def _commit() -> str | None:
    """The commit of the sources, with a plus sign if they were changed since."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernel_module() -> str | None:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
