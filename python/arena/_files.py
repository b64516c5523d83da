"""Files that people ask for: nothing is overwritten unless told, and nothing half written is left behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import ArenaError, UsageError

__all__ = ["check_target", "write_text"]


def check_target(path: str | Path, *, overwrite: bool, endings: tuple[str, ...]) -> Path:
    """The path, if it may be written: so that nobody renders a page in vain."""
    target = Path(path)
    if target.suffix not in endings:
        raise UsageError(f"{str(path)!r} does not end with {' or '.join(endings)}")
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give the name of a file")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists; give another name, or overwrite=True")
    return target


def write_text(path: str | Path, text: str, *, overwrite: bool, endings: tuple[str, ...]) -> Path:
    """Write a file in one step: it is there whole, or not at all."""
    target = check_target(path, overwrite=overwrite, endings=endings)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())
            if overwrite:
                os.replace(name, target)
            else:
                os.link(name, target)  # fails if somebody else was quicker
        finally:
            if os.path.exists(name):
                os.unlink(name)
    except FileExistsError:
        raise UsageError(f"{target} exists; give another name, or overwrite=True") from None
    except OSError as error:
        raise ArenaError(f"{target} cannot be written: {error.strerror}") from error
    return target


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
