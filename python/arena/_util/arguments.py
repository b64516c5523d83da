"""Reads arguments: sizes in bytes, streams, devices."""

from __future__ import annotations

import operator
from typing import Any

from ..errors import UsageError

__all__ = ["as_device", "as_size", "as_stream", "is_number"]


def as_size(size: Any) -> int:
    """Return a size in bytes from an int or an int-like object, such as one of NumPy's."""
    if isinstance(size, bool):
        raise TypeError(f"a size in bytes must be an int, not {size!r}")
    try:
        number = operator.index(size)
    except TypeError:
        raise TypeError(f"a size in bytes must be an int, not {size!r}") from None
    if number < 0:
        raise UsageError(f"size={number} is negative; a size is 0 or more bytes")
    return number


def as_stream(stream: Any) -> int:
    """Return the handle of a stream, given as a number or as a stream object of any library."""
    number: Any
    if hasattr(stream, "__index__") and not isinstance(stream, bool):
        number = operator.index(stream)
    elif hasattr(stream, "__cuda_stream__"):
        answer = stream.__cuda_stream__()  # (protocol version, handle)
        number = answer[1] if isinstance(answer, (tuple, list)) and len(answer) == 2 else -1
    else:
        handle: Any = getattr(stream, "ptr", None)
        if handle is None:
            handle = getattr(stream, "handle", -1)
        handle = getattr(handle, "value", handle)  # a ctypes pointer, whose value is None if it is null
        number = operator.index(handle) if hasattr(handle, "__index__") else 0 if handle is None else -1
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 64:
        raise UsageError(f"stream={stream!r} is not a stream; pass a stream object, or its handle as an int")
    return number


def is_number(text: str) -> bool:
    """Whether a text is a number of reasonable length: ``int()`` raises for very long ones.

    >>> is_number("12"), is_number("-1"), is_number("9" * 5000)
    (True, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= 18


def as_device(text: str) -> int | str:
    """Read a device from the command line or the environment: its number, ``sim`` or ``sim:8GiB``."""
    text = text.strip()
    return int(text) if is_number(text) else text
