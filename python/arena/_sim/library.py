"""A typed wrapper around the simulated driver's library. Importing this module loads nothing."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from pathlib import Path

from .. import _core
from .._cards.profiles import profile_path
from ..errors import ArenaError, UsageError


def library() -> Path:
    """Return the path of the simulated driver's library.

    >>> library().name
    'libcudasim.so'
    """
    return Path(_core.__file__).with_name("libcudasim.so")


def text_of(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, str)):
        return str(value)
    also = ", or a list of them" if name in ("memory", "exclusive", "peers") else ""
    raise UsageError(f"{name}: {value!r} is a {type(value).__name__}; write a number or a string{also}")


def texts_of(given: dict[str, object]) -> dict[str, str]:
    """The given settings as the strings that the library reads."""
    found: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name == "memory" and isinstance(value, (list, tuple)):
            found["memory"] = ",".join(text_of("memory", size) for size in value)
            found["devices"] = str(len(value))
        elif name == "exclusive" and isinstance(value, (list, tuple)):
            found[name] = ",".join(text_of(name, device) for device in value)
        elif name == "peers" and isinstance(value, (list, tuple)):
            found[name] = ",".join("-".join(text_of(name, end) for end in pair) for pair in value) or "none"
        elif name == "card" and isinstance(value, (str, os.PathLike)):
            found[name] = os.fsdecode(profile_path(value)) if value != "" else ""
        elif name == "prices" and isinstance(value, os.PathLike):
            found[name] = os.fsdecode(value)
        elif name == "devices" and isinstance(given.get("memory"), (list, tuple)):
            continue  # set by the list of sizes
        else:
            found[name] = text_of(name, value)
    return found


def is_loaded() -> bool:
    """Whether this process has loaded the library. Asking does not load it."""
    try:
        ctypes.CDLL(str(library()), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError):  # AttributeError: not Linux
        return False
    return True


def name_of(function: object) -> bytes:
    if not isinstance(function, str):
        raise UsageError(f"{function!r} is not the name of a driver function; write one, such as 'cuMemCreate'")
    return bytes_of(function)


def number_of(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise UsageError(f"{name}={value!r} is not accepted; write a number from 0 up")
    return value


def bytes_of(text: str) -> bytes:
    if "\0" in text:
        raise UsageError(f"{text!r} contains a NUL character, which no name or value may contain")
    return os.fsencode(text)


def size_of_each(memory: str, devices: int) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in memory.split(","))
    return sizes if len(sizes) > 1 else sizes * devices


# Modules that look for the driver only once, when they are imported.
LOOKS_ONCE = {"numba.cuda.cudadrv.driver", "numba_cuda.numba.cuda.cudadrv.driver"}
# In this order: a card sets others, too; a list of sizes in memory sets the number of devices, and a given number is
# checked against the list.
SETTABLE = (
    *("card", "memory", "devices", "granularity", "vmm", "version", "peers", "integrated", "rdma"),
    *("delay", "seed", "other", "page_cache", "address_space", "exclusive", "sync_unmap", "reuse", "dead"),
    *("prices", "races", "values"),
)


SET_BY_CARD = ("memory", "integrated")


class SimulatedLibrary:
    """The library and its control functions."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise ArenaError(
                f"the simulated driver is missing: {path}. It is part of the package on Linux only; "
                "if this is Linux, reinstall cuda-arena"
            )
        self.path = path
        # Not RTLD_GLOBAL: enable() does that.
        _core.before_simulated_library_loads()
        self.lib = self._typed(ctypes.CDLL(str(path)))
        self.enabled = False
        # The settings from the environment. If one of them is invalid, every call raises.
        with contextlib.suppress(UsageError):
            self.initial = {name: self.get(name) for name in SETTABLE}

    @staticmethod
    def _typed(lib: ctypes.CDLL) -> ctypes.CDLL:
        text, size, count = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_ulonglong
        for name, result, arguments in (
            ("Set", ctypes.c_int, [text, text]),
            ("Get", size, [text, text, size]),
            ("Error", text, []),
            ("Reset", ctypes.c_int, []),
            ("AddDevice", ctypes.c_int, [text]),
            ("Fail", ctypes.c_int, [text, count, count, text]),
            ("Calls", count, [text]),
            ("CallTable", size, [text, size]),
            ("ResetCounts", None, []),
            ("Clock", ctypes.c_double, []),
            ("Price", ctypes.c_double, [text, count]),
            ("Prices", size, [text, size]),
            ("Used", count, [ctypes.c_int]),
            ("Peak", count, [ctypes.c_int]),
            ("Census", size, [text, size]),
            ("RaceCount", count, []),
            ("Races", size, [text, size]),
            ("ClearRaces", None, []),
            ("FindingCount", count, []),
            ("Findings", size, [text, size]),
            ("ClearFindings", None, []),
            ("Stalls", count, []),
            ("Stalled", ctypes.c_double, []),
        ):
            function = getattr(lib, "cudasim" + name)
            function.restype, function.argtypes = result, arguments
        return lib

    def error(self) -> str:
        return str((self.lib.cudasimError() or b"").decode(errors="backslashreplace"))  # it quotes user input

    def check(self, failed: int | bool) -> None:
        if failed:
            raise UsageError(self.error())

    def checked(self, value: int) -> int:
        self.check(bool(self.error()))
        return int(value)

    def set(self, name: str, value: str) -> None:
        self.check(self.lib.cudasimSet(bytes_of(name), bytes_of(value)))

    def change(self, values: dict[str, str]) -> None:
        """Change several settings; if one is refused, restore those changed before it."""
        touched = [*values, *(name for name in SET_BY_CARD if "card" in values and name not in values)]
        before = {name: self.get(name) for name in touched}
        done: list[str] = []
        try:
            for name, value in values.items():
                self.set(name, value)
                done += [name, *(SET_BY_CARD if name == "card" else ())]
        except UsageError:
            for name in done:
                self.set(name, before[name])
            raise

    def get(self, name: str) -> str:
        value = self.text("cudasimGet", name.encode())
        self.check(bool(self.error()))
        return value

    def text(self, function: str, *arguments: bytes) -> str:
        call = getattr(self.lib, function)
        size = 1 << 12
        while True:  # the text may grow between two calls
            buffer = ctypes.create_string_buffer(size)
            length = int(call(*arguments, buffer, size))
            if length < size:
                return os.fsdecode(buffer.value)  # may contain a path, which need not be UTF-8
            size = length + 1

    def table(self, function: str) -> dict[str, int]:
        lines = [line.split() for line in self.text(function).splitlines()]
        self.check(bool(self.error()))
        return {name: int(count) for name, count in lines}

    def initialise(self) -> None:
        code, name = self.lib.cuInit(0), ctypes.c_char_p()
        if code:
            self.lib.cuGetErrorName(code, ctypes.byref(name))
            raise UsageError(self.error() or f"cuInit failed with {(name.value or b'?').decode()}")

    def enable(self) -> None:
        if not self.enabled and (late := LOOKS_ONCE & sys.modules.keys()):
            raise ArenaError(
                f"{min(late)} is already imported, and looks for a driver only once; call arena.sim.enable() before "
                "importing it"
            )
        ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        found = ctypes.CDLL("libcuda.so.1")
        if not hasattr(found, "cudasimError"):
            raise ArenaError(
                "another libcuda.so.1 is already loaded in this process, so other libraries would not find the "
                "simulated one; call arena.sim.enable() before importing anything that uses CUDA"
            )
        _core.want_simulation()
        self.enabled = True


@functools.cache
def load() -> SimulatedLibrary:
    if sys.platform != "linux":
        raise ArenaError(f"the simulated driver runs on Linux only, not on {sys.platform}")
    return SimulatedLibrary(library())
