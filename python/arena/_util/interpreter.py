"""Refuses to run in sub-interpreters, before the compiled module is imported: that import would hang there."""

from __future__ import annotations

import ctypes

__all__: list[str] = []


def _is_main() -> bool:
    """Whether this is the process's first interpreter and not a sub-interpreter, as under mod_wsgi."""
    function = ctypes.PYFUNCTYPE(ctypes.c_void_p)
    current, main = (function((f"PyInterpreterState_{name}", ctypes.pythonapi)) for name in ("Get", "Main"))
    return bool(current() == main())


if not _is_main():
    raise ImportError(
        "arena works only in the main interpreter of a process, and this is a sub-interpreter; use separate processes "
        "instead (under mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
    )
