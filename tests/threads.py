"""Threads that run at the same time, and a thread that keeps live data from being moved."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def run_together(*functions: Callable[[], object]) -> list[object]:
    """Call each function in its own thread, all at once. Return their results, or raise the first error."""
    begin = threading.Barrier(len(functions))
    results: list[object] = [None] * len(functions)
    errors: list[BaseException] = []

    def call(number: int, function: Callable[[], object]) -> None:
        begin.wait()
        try:
            results[number] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@contextmanager
def thread_in_native_code() -> Iterator[None]:
    """A thread that sleeps in a call without the GIL, from which it could launch work at any moment."""
    pipe = os.pipe()
    read = ctypes.CDLL(None).read
    thread = threading.Thread(target=read, args=(pipe[0], ctypes.create_string_buffer(1), 1), daemon=True)
    thread.start()
    time.sleep(0.02)  # until it is in the call
    try:
        yield
    finally:
        os.write(pipe[1], b"x")
        thread.join()
        for end in pipe:
            os.close(end)
