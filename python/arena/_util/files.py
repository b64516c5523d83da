"""Reads and writes files safely: a file appears complete or not at all, and never replaces another by accident."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..errors import UsageError

__all__ = ["REPORTS", "check", "free_name", "to_read", "write"]

REPORTS = (".html", ".json", ".txt")  # formats of a saved report


def write(path: str | os.PathLike[str], chunks: Iterable[bytes], *, overwrite: bool = False) -> Path:
    """Write a file atomically and return its path. If that fails, nothing changes."""
    target = check(path, overwrite=overwrite)
    place = Path(os.path.realpath(target))  # write through a symbolic link instead of replacing it
    # In the same directory, because a rename is atomic only within one file system.
    draft = place.with_name(f".arena-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            file.writelines(chunks)
        if overwrite:
            if place.exists():
                shutil.copymode(place, draft)  # keep the permissions
            draft.replace(place)
        else:
            _publish(draft, place)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        # With the caller's name for the file. Python picks the class, such as PermissionError, by the number.
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return target


def _publish(draft: Path, place: Path) -> None:
    """Give the finished file its name, unless another file has that name."""
    try:
        os.link(draft, place)
    except FileExistsError:
        raise
    except OSError:  # no hard links, as on FAT: other processes may see an empty file for a moment
        place.open("xb").close()
        draft.replace(place)


def check(path: str | os.PathLike[str], *, overwrite: bool = False, endings: tuple[str, ...] = ()) -> Path:
    """Check that a file can be written, before any work is done."""
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        raise UsageError(f"{path!r} is not a path; give the name of the file to write")
    target = Path(path)
    if endings and target.suffix not in endings:
        raise UsageError(f"{str(path)!r} does not end with {' or '.join(endings)}")
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give the name of a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{target} cannot be written: the folder {target.parent} does not exist")
    if target.exists():
        if not overwrite:
            raise _exists(target)
        if not target.is_file():  # such as /dev/null, which would be replaced
            raise UsageError(f"{target} is not a regular file; give the name of one")
    return target


def to_read(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to read, after checking it."""
    source = Path(path)
    if not os.fspath(path) or "\0" in str(source):
        raise UsageError(f"{path!r} is not a path; give the name of the file to read")
    if source.is_char_device() or source.is_block_device():  # such as /dev/zero, which has no end
        raise UsageError(f"{source} is a device; give the name of a file")
    return source


def free_name(path: Path, number: int = 2) -> Path:
    """The first of ``run-2.html``, ``run-3.html``, ... that does not exist."""
    while (name := path.with_stem(f"{path.stem}-{number}")).exists():
        number += 1
    return name


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} already exists; choose another name, or pass overwrite=True")
