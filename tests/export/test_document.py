"""What docs/export.md says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from arena._export import prometheus

from ..programs import ROOT, run

TEXT = (ROOT / "docs/export.md").read_text()


def test_the_python_in_the_document_runs_as_one_program_and_leaves_its_files(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
    done = run("\n".join([f"import os; os.chdir({str(tmp_path)!r})", *blocks]), ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["counters.json", "snapshot.pickle"]


def test_the_document_names_every_metric_and_no_other() -> None:
    assert set(re.findall(r"arena_\w+", TEXT)) == {
        family.name for family in (*prometheus.FAMILIES, *prometheus.SCOPE_FAMILIES)
    }
