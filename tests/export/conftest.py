"""The arena's fixtures, and other projects' readers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from ..arena.conftest import cu, make, work
from ..programs import ROOT
from .perfetto_engine import Engine

__all__ = ["cu", "engine", "make", "memory_viz", "work"]


def missing(what: str) -> None:
    """Skip the test, or fail it in CI, where nothing may be skipped."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what}; make test gets it")


@pytest.fixture(scope="session")
def memory_viz() -> ModuleType:
    """PyTorch's reader of its snapshots: the file in ARENA_MEMORY_VIZ, an installed torch's, or the one make downloads.

    It needs nothing else from torch, which is not imported.
    """
    torch = importlib.util.find_spec("torch")
    places = [
        os.environ.get("ARENA_MEMORY_VIZ"),
        torch and torch.origin and Path(torch.origin).parent / "cuda/_memory_viz.py",
        ROOT / ".venv/torch/_memory_viz.py",
    ]
    path = next((Path(place) for place in places if place and Path(place).exists()), None)
    if path is None:
        missing("there is no torch/cuda/_memory_viz.py")
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Perfetto's trace processor."""
    try:
        return Engine()
    except (ImportError, FileNotFoundError) as error:
        missing(f"Perfetto's engine cannot be had: {error}")
        raise
