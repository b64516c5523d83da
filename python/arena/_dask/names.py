"""Workers as people know them."""

from __future__ import annotations

__all__ = ["worker_text"]


def worker_text(name: object, address: str) -> str:
    """A name with its address: ``3 at tcp://10.0.0.7:40331``; only the address if the worker has no name of its own.

    >>> worker_text(3, "tcp://10.0.0.7:40331"), worker_text("tcp://10.0.0.7:40331", "tcp://10.0.0.7:40331")
    ('3 at tcp://10.0.0.7:40331', 'tcp://10.0.0.7:40331')
    """
    return address if not str(name) or str(name) == address else f"{name} at {address}"
