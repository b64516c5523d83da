"""Print the requirements of the package's extras, one per line: what `pip install .[NAME]` adds, without a build."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def requirements(name: str) -> list[str]:
    # tomllib exists only in Python 3.11 and later, and this runs before anything is installed.
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    found = re.search(rf"^{re.escape(name)} = \[(.*?)\]$", text, re.MULTILINE)
    if found is None:
        sys.exit(f"extras.py: there is no extra '{name}' in pyproject.toml")
    return re.findall(r'"([^"]+)"', found[1])


if __name__ == "__main__":
    print("\n".join(requirement for name in sys.argv[1:] for requirement in requirements(name)))
