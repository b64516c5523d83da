"""Each test runs in a process of its own: a library that is loaded keeps its name, also for CuPy in other tests."""

from __future__ import annotations

import os
import traceback
import warnings

import pytest


def run_and_exit(item: pytest.Function, write_end: int) -> None:
    """The child's part: runs the test, and writes what failed."""
    code = 1
    try:
        item.obj(**{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
        code = 0
    except BaseException:
        os.write(write_end, traceback.format_exc().encode())
    finally:
        os._exit(code)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which none of these tests needs
        child = os.fork()
    if child == 0:
        run_and_exit(pyfuncitem, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status != 0:
        ended = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"
        pytest.fail(text or f"the test's process {ended}", pytrace=False)
    return True
