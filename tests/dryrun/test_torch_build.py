"""When the extension that computes values for PyTorch cannot be built."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from arena._dryrun.torch.build import NEEDED, built_extension
from arena.errors import ArenaError


def test_a_pytorch_that_lacks_a_header_is_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch = SimpleNamespace(__file__=str(tmp_path / "torch" / "__init__.py"), __version__="2.1.2+cu121")
    with pytest.raises(ArenaError, match=f"PyTorch 2.1.2.*{NEEDED}"):
        built_extension(torch)
    assert "Compiling" not in capsys.readouterr().err
