"""CuPy in a dry run.

CuPy's wheel has NVIDIA's runtime linked into some of its compiled modules, where nothing can take its place. So these
modules are built once more, from CuPy's own source package: :mod:`installed` looks at the CuPy that is there,
:mod:`recipe` says what is built and of what, :mod:`build` does it and keeps the result in a cache, and :mod:`finder`
hands the modules to Python when the program imports CuPy. The user's environment is not touched.
"""

from __future__ import annotations

from pathlib import Path

from .build import built_modules
from .finder import disable, enable

__all__ = ["EVERY_PROCESS", "built_modules", "disable", "enable"]

EVERY_PROCESS = Path(__file__).parent / "every_process"  # for PYTHONPATH, so that processes of the program run dry, too
