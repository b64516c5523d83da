"""Runs a program in this process, like ``python script.py`` or ``python -m module``."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from .. import _core
from .._util.next_step import quoted
from ..errors import UsageError

__all__ = ["NoProgramError", "check_script", "run_program"]

INTERPRETER = re.compile(r"(python|pypy)[0-9.]*(\.exe)?", re.IGNORECASE)
INTERRUPTED = 130  # a shell's exit code for a program ended by Ctrl-C


class NoProgramError(UsageError):
    """The named program cannot be run. A separate class, because the program may raise any other error."""


def check_script(path: str, arguments: Sequence[str] = (), command: str = "run") -> None:
    """Check that a program can be run, before anything is set up for it."""
    if INTERPRETER.fullmatch(os.path.basename(path)) and find_main(path) is None:
        words = ["[OPTIONS]", *map(quoted, arguments)] if arguments else ["script.py"]
        given = " ".join([f"arena {command}", *words])
        raise NoProgramError(f"{path} is not needed: arena runs Python programs itself; write {given}")
    if not os.path.exists(path):
        raise NoProgramError(f"{path} cannot be run: the file does not exist; to run a module, write -m {path}")
    if os.path.isdir(path) and find_main(path) is None:
        raise NoProgramError(f"{path} cannot be run: the folder has no __main__.py")
    if Path(path).is_char_device() or Path(path).is_block_device():  # such as /dev/zero, which has no end
        raise NoProgramError(f"{path} cannot be run: it is a device")


def run_program(
    target: str, arguments: list[str], *, is_module: bool, on_error: Callable[[BaseException], object]
) -> int:
    """Run a program, print an uncaught error as Python would, and return the exit code.

    The program stays ``__main__`` until the process ends.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv[:] = ["-m" if is_module else target, *arguments]
    try:
        code = load_module(target, main) if is_module else load_script(target, main)
        exec(code, vars(main))
    except SystemExit as stop:
        return exit_code(stop)
    except NoProgramError:
        raise
    except BaseException as error:
        on_error(error)
        return show(error)
    return 0


_core.end_lines_at(run_program.__code__)  # its callers belong to the command line, not to the program


def load_script(path: str, main: ModuleType) -> CodeType:
    """Load a Python file, compiled or not, or a folder or archive that contains a ``__main__``."""
    spec = find_main(path)
    if spec is not None:
        set_first_path(path)
        return fill(main, spec, package="")
    set_first_path(os.path.dirname(os.path.realpath(path)))
    full = os.path.abspath(path)
    loader: Any
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", full)
        code: CodeType = loader.get_code("__main__")
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", full)
        code = loader.source_to_code(loader.get_data(full), full)  # get_code() would write a cache file
    vars(main).update(__file__=full, __cached__=None, __loader__=loader)
    return code


def load_module(name: str, main: ModuleType) -> CodeType:
    set_first_path(os.getcwd())
    spec = find_module(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_module(f"{name}.__main__")
        if spec is None:
            raise NoProgramError(f"-m {name} cannot be run: it is a package without a __main__")
    if spec is None:
        raise NoProgramError(f"-m {name} cannot be run: the module does not exist")
    code = fill(main, spec, package=spec.parent or "")
    sys.argv[0] = main.__file__ or name
    return code


def find_module(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module. This imports its parent packages, whose errors are the program's."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
    except ValueError as error:  # such as a name that begins with a dot
        raise NoProgramError(f"-m {name} cannot be run: {error}") from None


def find_main(path: str) -> importlib.machinery.ModuleSpec | None:
    """The ``__main__`` in a folder or archive; ``None`` if it is neither."""
    importer = pkgutil.get_importer(path)
    return None if importer is None else importer.find_spec("__main__", None)


def fill(main: ModuleType, spec: importlib.machinery.ModuleSpec, *, package: str) -> CodeType:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise NoProgramError(f"{spec.name} cannot be run: it has no Python code")
    vars(main).update(
        __file__=spec.origin, __cached__=spec.cached, __loader__=loader, __package__=package, __spec__=spec
    )
    return code  # type: ignore[no-any-return]


def set_first_path(folder: str) -> None:
    """Replace the folder of the ``arena`` command in ``sys.path``; ``python -P`` has no such entry."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    elif find_main(folder) is not None:  # a folder or archive is inserted even then
        sys.path.insert(0, folder)


def exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    if sys.stderr is not None:  # otherwise print() would write to standard output
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed
            print(stop.code, file=sys.stderr)
    return 1


def show(error: BaseException) -> int:
    """Print an error with the program's own exception hook, without arena's frames."""
    trace = outside(error.__traceback__)
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as stop:
        return exit_code(stop)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def outside(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen ")):
        trace = trace.tb_next
    return trace
