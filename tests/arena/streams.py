"""Both kinds of streams: a number, which the program destroys, and an object that owns its stream."""

from __future__ import annotations

from typing import Any

import pytest

from ..simulated.cu import Cu, OwnedStream

both_kinds = pytest.mark.parametrize("kind", ["number", "object"])


def new_stream(cu: Cu, kind: str) -> Any:
    return cu.stream() if kind == "number" else cu.owned_stream()


def number_of(stream: Any) -> int:
    return stream.ptr if isinstance(stream, OwnedStream) else int(stream)


def destroy_last(cu: Cu, streams: list[Any]) -> int:
    """Drop the last stream of a list, which must hold the only reference. Return its number."""
    number = number_of(streams[-1])
    if streams.pop() == number:
        cu.ok("cuStreamDestroy", number)
    return number
