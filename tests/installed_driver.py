"""Whether NVIDIA's driver is installed here. Finding out loads it, so programs that fork do not import this."""

from __future__ import annotations

import ctypes
import os

import pytest


def has_driver() -> bool:
    try:
        if not hasattr(ctypes.CDLL("libcuda.so.1"), "cudasimError"):
            return True
    except OSError:
        pass
    return os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/sys/module/nvidia")


nothing_installed = pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is installed here")
