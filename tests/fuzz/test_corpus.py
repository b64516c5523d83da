"""The corpus of the file readers: inputs that reach different code, and those that once crashed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("ARENA_DRIVER", "sim")

from . import corpus, readers


@pytest.mark.parametrize("target", readers.TARGETS)
def test_the_corpus_is_read_or_refused(target: str) -> None:
    assert corpus.inputs(target)
    for name, data in corpus.inputs(target).items():
        try:
            readers.TARGETS[target](data)
        except BaseException as error:
            raise AssertionError(f"{name}: {error!r}") from error


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in corpus.ARCHIVES.iterdir()) < 1 << 18


def test_every_target_has_one_archive_and_no_loose_inputs() -> None:
    expected = {corpus.archive_of(target) for target in ("core", "decoders", *readers.TARGETS)}
    assert set(corpus.ARCHIVES.iterdir()) == expected


def test_the_same_inputs_make_the_same_archive() -> None:
    files = {"b": b"2", "a": b"1"}
    assert corpus.packed(files) == corpus.packed(dict(sorted(files.items())))
    assert corpus.read(corpus.packed(files)) == files


def test_unpacking_and_packing_again_changes_nothing(tmp_path: Path) -> None:
    archive, folder = tmp_path / "own.tar.gz", tmp_path / "own"
    archive.write_bytes(corpus.archive_of("own").read_bytes())
    corpus.unpack(archive, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == corpus.inputs("own")
    assert not corpus.pack(folder, archive)
    assert archive.read_bytes() == corpus.archive_of("own").read_bytes()


def test_an_added_input_is_packed_and_a_removed_one_is_dropped(tmp_path: Path) -> None:
    archive, folder = tmp_path / "x.tar.gz", tmp_path / "x"
    corpus.write(archive, {"dropped": b"1", "kept": b"2"})
    corpus.unpack(archive, folder)
    (folder / "new").write_bytes(b"3")
    corpus.write(archive, {"kept": b"2"})  # as after a pull
    corpus.unpack(archive, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["kept", "new"]
    assert corpus.pack(folder, archive)
    assert corpus.read(archive.read_bytes()) == {"kept": b"2", "new": b"3"}


def test_a_file_is_added_under_its_name_and_never_replaces_another(tmp_path: Path) -> None:
    archive, file = tmp_path / "x.tar.gz", tmp_path / "crash"
    corpus.write(archive, {"kept": b"1"})
    file.write_bytes(b"2")
    corpus.add(archive, [file])
    assert corpus.read(archive.read_bytes()) == {"kept": b"1", "crash": b"2"}
    file.write_bytes(b"3")
    with pytest.raises(ValueError, match="already has another crash"):
        corpus.add(archive, [file])
