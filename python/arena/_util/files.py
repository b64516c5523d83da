"""Files appear whole or not at all, and never in the place of another one by accident."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..errors import UsageError

__all__ = ["REPORTS", "check", "free_name", "to_read", "write"]

REPORTS = (".html", ".json", ".txt")  # what a report may be saved as


def write(path: str | os.PathLike[str], chunks: Iterable[bytes], *, overwrite: bool = False) -> Path:
    """Write a file, and return its path. Where that fails, everything is as it was."""
    target = check(path, overwrite=overwrite)
    place = Path(os.path.realpath(target))  # a link stays one: what it leads to is written
    # Beside the target, because only within a file system can a file be put in the place of another at once.
    draft = place.with_name(f".arena-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            file.writelines(chunks)
        if overwrite:
            if place.exists():
                shutil.copymode(place, draft)  # who may read it does not change
            draft.replace(place)
        else:
            _give_name(draft, place)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        # With the name that the caller knows. The class, such as PermissionError, follows from the number.
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return target


def _give_name(draft: Path, place: Path) -> None:
    """Give a whole file its name, unless another file has it."""
    try:
        os.link(draft, place)
    except FileExistsError:
        raise
    except OSError:  # no links here, as on FAT: others may see an empty file for a moment
        place.open("xb").close()
        draft.replace(place)


def check(path: str | os.PathLike[str], *, overwrite: bool = False, endings: tuple[str, ...] = ()) -> Path:
    """Refuse what is known to fail before any work is done."""
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        raise UsageError(f"{path!r} is no path; give the name of the file to write")
    target = Path(path)
    if endings and target.suffix not in endings:
        raise UsageError(f"{str(path)!r} does not end with {' or '.join(endings)}")
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give the name of a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{target} cannot be written: there is no folder {target.parent}")
    if target.exists():
        if not overwrite:
            raise _exists(target)
        if not target.is_file():  # such as /dev/null, which would be replaced
            raise UsageError(f"{target} is not a regular file; give the name of one")
    return target


def to_read(path: str | os.PathLike[str]) -> Path:
    """The path of a file that somebody asked to read."""
    source = Path(path)
    if not os.fspath(path) or "\0" in str(source):
        raise UsageError(f"{path!r} is no path; give the name of the file to read")
    if source.is_char_device() or source.is_block_device():  # such as /dev/zero, which has no end
        raise UsageError(f"{source} is a device; give the name of a file")
    return source


def free_name(path: Path, number: int = 2) -> Path:
    """The first of ``run-2.html``, ``run-3.html``, ... that does not exist."""
    while (name := path.with_stem(f"{path.stem}-{number}")).exists():
        number += 1
    return name


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} exists; give another name, or overwrite=True")
