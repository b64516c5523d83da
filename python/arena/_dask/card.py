"""Which card a device is: the same for every process that uses it."""

from __future__ import annotations

import ctypes
import socket

from .. import _core

__all__ = ["card_of", "cards_of", "host_name"]


def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname()


def card_of(driver: _core.Driver, device: int) -> str:
    """The identity of a device. NVIDIA's is unique in the world, also in containers; a simulated one on its host."""
    uuid = _uuid(driver, device)
    return f"{host_name()}/{uuid}" if driver.is_simulated else uuid


def cards_of(driver: _core.Driver) -> list[str]:
    """The identities of all devices that this process sees."""
    return [card_of(driver, device) for device in range(_core.device_count(driver))]


def _uuid(driver: _core.Driver, device: int) -> str:
    """The driver's UUID of the device, of a part of it under MIG; the device's number if the driver has none."""
    answer = (ctypes.c_ubyte * 16)()
    library = ctypes.CDLL(driver.path)
    for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
        function = getattr(library, name, None)
        if function is not None and function(answer, ctypes.c_int(device)) == 0:
            return bytes(answer).hex()
    return f"{host_name()}/device {device}"
