"""Says so where arena cannot work, before its compiled half is imported: that would wait for ever there."""

from __future__ import annotations

import ctypes

__all__: list[str] = []


def _is_main() -> bool:
    """Whether this is the interpreter that the process began with, and not one beside it, as under mod_wsgi."""
    function = ctypes.PYFUNCTYPE(ctypes.c_void_p)
    current, main = (function((f"PyInterpreterState_{name}", ctypes.pythonapi)) for name in ("Get", "Main"))
    return bool(current() == main())


if not _is_main():
    raise ImportError(
        "arena works in the main interpreter of a process only, and this is a sub-interpreter; use processes instead "
        "(under mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
    )
