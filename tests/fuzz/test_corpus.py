"""What fuzzing has kept for the readers of files: inputs that reach other code, and those that once crashed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("ARENA_DRIVER", "sim")

from . import readers

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("target", readers.TARGETS)
def test_the_corpus_is_read_or_refused(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert files
    for file in files:
        try:
            readers.TARGETS[target](file.read_bytes())
        except BaseException as error:
            raise AssertionError(f"{file.name}: {error!r}") from error


def test_the_corpus_is_small() -> None:
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) < 1 << 20
