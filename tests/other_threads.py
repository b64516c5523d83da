"""Threads that keep live data from being moved."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def thread_in_native_code() -> Iterator[None]:
    """One that sleeps in a call without the GIL, from which it could launch work at any moment."""
    pipe = os.pipe()
    read = ctypes.CDLL(None).read
    thread = threading.Thread(target=read, args=(pipe[0], ctypes.create_string_buffer(1), 1), daemon=True)
    thread.start()
    time.sleep(0.02)  # until it is there
    try:
        yield
    finally:
        os.write(pipe[1], b"x")
        thread.join()
        for end in pipe:
            os.close(end)
