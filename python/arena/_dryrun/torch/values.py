"""Loads the extension into the program's PyTorch, and answers its questions about values that were never computed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..._util.imports import after_import
from ...errors import ArenaError
from .. import reads, unknown
from .build import built_extension

__all__ = ["enable", "problem", "sized_facts", "through"]

WITH_KERNELS = ("torchvision", "torchaudio")  # register operators of their own when they are imported
# PyTorch's names of types, as C++ has them.
TYPES = {
    "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
COUNTS = {"nonzero": unknown.NONZERO}

_READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_longlong, ctypes.POINTER(ctypes.c_double))
_COUNT = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_char_p, ctypes.c_longlong, ctypes.POINTER(ctypes.c_longlong))


class _Listener(ctypes.Structure):
    """As ``Listener`` in ``cpp/notes.hpp``."""

    _fields_ = (("read", _READ), ("count", _COUNT))


class _Sized(ctypes.Structure):
    """As ``SizedTotals`` in ``cpp/notes.hpp``."""

    _fields_ = tuple((name, ctypes.c_longlong) for name in ("id", "allocations", "bytes", "most"))


_lock = threading.Lock()
_is_enabled = False
_extension: ctypes.CDLL | None = None
_problem = ""


def enable(mode: str) -> None:
    """Compute values from the import of PyTorch on: ``control`` or ``all``. The first call in a process counts."""
    global _is_enabled
    with _lock:
        is_first, _is_enabled = not _is_enabled, True
    if is_first and mode != "none":
        after_import("torch", functools.partial(_begin, mode))


def problem() -> str:
    """Why nothing is computed for PyTorch; empty if it is, or PyTorch is not used."""
    return _problem


def through(allocate: int, free: int) -> tuple[str, str, str] | None:
    """The file and the functions to give PyTorch instead of these, for an allocator that is plugged in.

    What they give out holds nothing that is known.
    """
    if _extension is None:
        return None
    _extension.arena_values_connect(ctypes.c_void_p(allocate), ctypes.c_void_p(free))
    return _extension._name, "arena_values_alloc", "arena_values_free"


def _begin(mode: str, torch: Any) -> None:
    """The program's own import must not fail because of us."""
    global _extension, _problem
    if getattr(getattr(torch, "version", None), "cuda", None) is None:
        return
    try:
        loaded = ctypes.CDLL(str(built_extension(torch)))
    except (ArenaError, OSError) as error:
        _problem = str(error)
        print(f"arena: {error}; no values are computed for PyTorch", file=sys.stderr)
        return
    wrap = functools.partial(loaded.arena_values_begin, int(mode == "all"), ctypes.byref(_listener))
    with _lock:
        if wrap() < 0:
            _problem = "the simulated driver is not in this process"
            return
        _extension = loaded
    reads.pass_over(lambda: bool(loaded.arena_values_reading()))
    torch.cuda._lazy_call(loaded.arena_values_follow)
    for name in WITH_KERNELS:
        after_import(name, lambda _: wrap())
    _after(torch.ops, "load_library", wrap)


def _after(owner: Any, name: str, then: Callable[[], object]) -> None:
    """Call something whenever a method has returned: a library may bring kernels."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        then()
        return result

    setattr(owner, name, called)


def sized_facts() -> None:
    """Bring what the extension counted to the notes."""
    if _extension is None:
        return
    totals = (_Sized * 1000)()
    for one in totals[: _extension.arena_values_sized(totals, len(totals))]:
        unknown.note_totals(one.id, one.allocations, one.bytes, one.most)


def _read(kind: bytes, elements: int, assumed: Any) -> int:
    """The program reads bytes that are not known. What takes their place: ``Answer`` in cpp/notes.hpp."""
    with contextlib.suppress(Exception):  # an error here would only be printed
        value, is_given = unknown.answer_here(TYPES.get(kind.decode(), kind.decode()), elements)
        if value is not None:
            assumed[0] = float(value)
            return 1 if is_given else 2
    return 0


def _count(operation: bytes, most: int, number: Any) -> int:
    """How many elements pass, of ``most`` that are not known."""
    with contextlib.suppress(Exception):
        name = operation.decode().removeprefix("aten::").partition(".")[0].strip("_")
        number[0], count = unknown.size_here(COUNTS.get(name, f"the number of elements of {name}()"), most)
        return count
    return most


_listener = _Listener(_READ(_read), _COUNT(_count))  # kept: the extension has only addresses


def _forget() -> None:
    """In a forked child the lock may be held by a thread that it does not have."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
