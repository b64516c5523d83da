"""Reads and writes files safely: a file appears complete or not at all, and never replaces another by accident."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import UsageError

__all__ = ["REPORTS", "check", "create", "free_name", "probe", "to_read", "write"]

REPORTS = (".html", ".json", ".txt")  # formats of a saved report
PROBE = 4096  # bytes: a full disk may still have room for an empty file


def write(path: str | os.PathLike[str], chunks: Iterable[bytes], *, overwrite: bool = False) -> Path:
    """Write a file atomically and return its path. If that fails, nothing changes."""
    with _drafted(path, overwrite=overwrite) as file, file:
        file.writelines(chunks)
    return Path(path)


def create(path: str | os.PathLike[str], start: bytes, *, overwrite: bool = False) -> BinaryIO:
    """Create a file that begins with ``start``, and return it open for the rest. If that fails, nothing changes."""
    with _drafted(path, overwrite=overwrite) as file:
        file.write(start)
        file.flush()
    return file


def probe(path: str | os.PathLike[str]) -> None:
    """Raise an OSError with the file's name if nothing can be written where it would be."""
    place = Path(os.path.realpath(path))
    draft = _draft_of(place)
    try:
        draft.write_bytes(bytes(PROBE))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


@contextlib.contextmanager
def _drafted(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a new file, which gets its name once the block has ended. If the block fails, the file is gone."""
    target = check(path, overwrite=overwrite)
    place = Path(os.path.realpath(target))  # write through a symbolic link instead of replacing it
    draft = _draft_of(place)
    file: BinaryIO | None = None
    try:
        file = draft.open("xb")
        yield file
        if overwrite:
            if place.exists():
                shutil.copymode(place, draft)  # keep the permissions
            draft.replace(place)
        else:
            _publish(draft, place)
    except BaseException as error:
        if file is not None:
            with contextlib.suppress(OSError):  # it may try to write again
                file.close()
        if isinstance(error, FileExistsError):
            raise _exists(target) from None
        if isinstance(error, OSError):
            # With the caller's name for the file. Python picks the class, such as PermissionError, by the number.
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _draft_of(place: Path) -> Path:
    """In the same directory, because a rename is atomic only within one file system."""
    return place.with_name(f".arena-{os.getpid()}-{os.urandom(4).hex()}")


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
        if not target.is_file():  # such as /dev/null, which would be replaced, or a pipe
            raise UsageError(f"{target} is not a regular file; give the name of one")
        if not overwrite:
            raise _exists(target)
    elif target.is_symlink():
        _check_link(target)
    return target


def _check_link(target: Path) -> None:
    """Check a link to a file that does not exist: that file is written."""
    place = Path(os.path.realpath(target))
    if place.is_symlink():
        raise UsageError(f"{target} is a link that leads back to itself; remove it, or choose another name")
    if not place.parent.is_dir():
        raise UsageError(
            f"{target} cannot be written: it is a link to {place}, and the folder {place.parent} does not exist"
        )


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
