"""Puts a function of ours where calls of objects of a compiled class arrive.

CuPy's ufuncs and kernels are objects of compiled classes, which Python code may not change. But its operators and its
own compiled code call these objects as Python does, through the class. So the class is made changeable for the moment
of one assignment, and everything else about these objects stays: their identity, names, methods and pickles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ....errors import ArenaError

__all__ = ["replace"]

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
# Pointers of a PyTypeObject from its name to its flags: see Include/cpython/object.h, the same since Python 3.8.
_FIELDS = 18


def replace(owner: type, name: str, function: Callable[..., Any]) -> Any:
    """Set an attribute of a class, compiled or not, and return what was there."""
    before = getattr(owner, name)
    flags = owner.__flags__
    if not flags & _IMMUTABLE:
        setattr(owner, name, function)
        return before
    field = _flags_of(owner)
    field.value = flags & ~_IMMUTABLE
    try:
        setattr(owner, name, function)
    finally:
        field.value |= _IMMUTABLE
    return before


def _flags_of(owner: type) -> ctypes.c_ulong:
    """The word in memory with a class's flags. Raises if it is not where it should be."""
    header = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # PyObject_VAR_HEAD
    field = ctypes.c_ulong.from_address(id(owner) + header + _FIELDS * ctypes.sizeof(ctypes.c_void_p))
    if field.value != owner.__flags__:
        raise ArenaError(
            f"this Python keeps the flags of {owner.__name__} elsewhere than expected, so values of CuPy cannot be "
            "computed. Next: ARENA_VALUES=none"
        )
    return field
