"""Calls of a stand-in by ctypes: arguments are Python's integers, ctypes' objects and addresses of them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import arena

LIBRARIES = Path(arena.__file__).parent / "_dryrun" / "lib"
NEEDED = Path(__file__).parent / "needed.txt"
OK = 0


def needed() -> dict[str, list[str]]:
    """The functions that PyTorch and CuPy need, by library."""
    names: dict[str, list[str]] = {}
    current: list[str] = []
    for line in NEEDED.read_text().splitlines():
        if line.startswith("["):
            current = []
            for library in line.strip("[]").split():
                names[library] = current
        elif line and not line.startswith("#"):
            current += line.split()
    return names


class Library:
    """A stand-in whose functions take 64-bit integers and pointers."""

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(str(LIBRARIES / name))

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.restype = ctypes.c_int

        def call(*arguments: Any) -> int:
            return int(function(*[ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments]))

        return call

    def text(self, name: str, *arguments: int) -> str:
        function = getattr(self._library, name)
        function.restype = ctypes.c_char_p
        return str(function(*arguments).decode())

    def number(self, name: str) -> int:
        function = getattr(self._library, name)
        function.restype = ctypes.c_size_t
        return int(function())

    def make(self, name: str, *arguments: Any) -> int:
        """What a function creates and writes to its first argument."""
        made = ctypes.c_size_t()
        assert getattr(self, name)(ctypes.byref(made), *arguments) == OK
        assert made.value
        return made.value


def out(library: Library, name: str, *arguments: Any, kind: Any = ctypes.c_size_t) -> int:
    """What a function writes to its last argument."""
    value = kind()
    status = getattr(library, name)(*arguments, ctypes.byref(value))
    assert status == OK, f"{name} returned {status}"
    return int(value.value)


def ints(*values: int) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(values))(*values)


def longs(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)
