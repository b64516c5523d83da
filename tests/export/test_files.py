"""Files appear whole or not at all, and never replace another file by accident."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arena._util import files
from arena.errors import UsageError


def test_a_file_is_written_and_its_path_returned(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    assert files.write(str(target), [b"one ", b"two"]) == target
    assert target.read_bytes() == b"one two"
    assert os.listdir(tmp_path) == ["a.bin"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_an_existing_file_is_kept_unless_overwriting_is_requested(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(UsageError, match=rf"{target} already exists; choose another name, or pass overwrite=True"):
        files.write(target, [b"new"])
    assert target.read_bytes() == b"old"
    files.write(target, [b"new"], overwrite=True)
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_file_that_appears_in_the_meantime_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"

    def chunks() -> Iterator[bytes]:
        yield b"new"
        target.write_bytes(b"another program's")

    with pytest.raises(UsageError, match="exists"):
        files.write(target, chunks())
    assert target.read_bytes() == b"another program's"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_new_file_is_never_seen_without_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, seen = tmp_path / "a.bin", []
    replace = Path.replace

    def look(draft: Path, place: Path) -> Path:
        seen.append(place.exists())
        return replace(draft, place)

    monkeypatch.setattr(Path, "replace", look)
    files.write(target, [b"new"])
    assert target.read_bytes() == b"new"
    assert True not in seen


def test_a_file_is_written_where_hard_links_are_not_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "a.bin"
    files.write(target, [b"new"])
    assert target.read_bytes() == b"new"
    with pytest.raises(UsageError, match="exists"):
        files.write(target, [b"newer"])
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_error_in_the_middle_leaves_everything_as_it_was(tmp_path: Path, overwrite: bool) -> None:
    target = tmp_path / "a.bin"
    if overwrite:
        target.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.write(target, chunks(), overwrite=overwrite)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == ({"a.bin": b"old"} if overwrite else {})


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("folder/real")
    files.write(tmp_path / "link", [b"new"], overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder/real").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("", "'' is not a path"),
        (None, "None is not a path"),
        (7, "7 is not a path"),
        ("a\0b", "is not a path"),
        (".", r"\. is a folder; give the name of a file in it"),
        ("none/such/a.bin", "none/such/a.bin cannot be written: the folder none/such does not exist"),
        ("/dev/null", "/dev/null is not a regular file"),
    ],
)
def test_invalid_paths_are_named(path: Any, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=complaint):
        files.write(path, [b"x"], overwrite=True)
    assert os.listdir(tmp_path) == []
    assert not Path("/dev/null").is_file()


def test_a_system_error_names_the_requested_file(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 300)  # no file system accepts such a name
    with pytest.raises(OSError, match="File name too long") as caught:
        files.write(target, [b"x"])
    assert caught.value.filename == str(target)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    target = tmp_path / "a.bin"
    with pytest.raises(OSError, match="No space left") as caught:
        files.write(target, [b"x"], overwrite=True)
    assert caught.value.filename == str(target)
    assert os.listdir(tmp_path) == []


def test_an_overwritten_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o600)
    files.write(path, [b"new"], overwrite=True)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
