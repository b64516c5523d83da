"""Run the tests of arena.torch on several versions of PyTorch, each in an environment of its own: build/torch-VERSION.

test_torch_versions.py --wheel build/wheel/*.whl 2.8 2.9.1 [-- PYTEST OPTIONS]

An environment is made once, and takes 5 to 7 GB. Prints a line for each version; the exit code says whether all passed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
NAMES = (
    *("adapter", "adapter_graphs", "conformance", "devices", "mem_pool", "out_of_memory"),
    *("pools", "questions", "snapshots", "statistics", "table_of_functions"),
)
TESTS = [f"tests/torch/test_{name}.py" for name in NAMES]
# Beside PyTorch. The rest is what PyTorch itself asks for.
NEEDED = ["pytest>=8", "pytest-timeout>=2.3", "rich>=13", "typer>=0.15", "accelerate", "lightning", "transformers"]
CUDA_OF = "import torch; print(torch.__version__, torch.version.cuda)"


def full(version: str) -> str:
    """2.8 is 2.8.0."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        sys.exit(f"{version!r} is no version of PyTorch; write 2.8 or 2.9.1")
    return version if version.count(".") == 2 else f"{version}.0"


def run(*command: str | Path, log: Path, **variables: str) -> bool:
    with log.open("a") as file:
        print(f"$ {' '.join(map(str, command))}", file=file, flush=True)
        return not subprocess.call(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **variables}
        )


def environment_of(version: str, log: Path) -> Path | str:
    """The Python of an environment with this PyTorch, or what is wrong."""
    folder = BUILD / f"torch-{version}"
    python = folder / "bin/python"
    if not (folder / ".ready").exists():
        # ===: a local version, such as 2.8.0+cpu in a folder of wheels, would be preferred to 2.8.0 otherwise.
        requirements = [f"torch==={full(version)}", *NEEDED]
        if version.startswith("2.4"):
            requirements.append("numpy<2.3")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-compile"]
        made = run(sys.executable, "-m", "venv", folder, log=log) and run(*pip, *requirements, log=log)
        if not made:
            return "could not be installed"
    found = subprocess.run([python, "-c", CUDA_OF], capture_output=True, text=True, check=False).stdout.split()
    if not found:
        return "cannot be imported"
    if found[1] == "None":
        return f"is built without CUDA ({found[0]}): remove {folder}, and use an index that has the CUDA build"
    (folder / ".ready").touch()
    return python


def test(version: str, package: Path, options: list[str]) -> bool:
    began = time.monotonic()
    log = BUILD / f"torch-{version}.log"
    log.unlink(missing_ok=True)
    python = environment_of(version, log)
    if isinstance(python, str):
        print(f"PyTorch {version:<7} failed: it {python}; see {log.relative_to(ROOT)}", flush=True)
        return False
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *options]
    passed = run(*pytest, log=log, TEST_TORCH="1", PYTHONPATH=str(package))
    counts = re.findall(r"^[^$].*\b(?:passed|failed)\b.*$", log.read_text(), re.M)
    summary = counts[-1].strip("= ") if counts else f"in {time.monotonic() - began:.0f} s"
    print(f"PyTorch {version:<7} {'passed' if passed else 'failed'}: {summary}; {log.relative_to(ROOT)}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel of arena to test")
    parser.add_argument("versions", nargs="+", help="versions of PyTorch")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    arguments, options = parser.parse_args(given[:end]), given[end + 1 :]
    package = BUILD / "torch-package"  # not installed into the environments: they stay as they are
    shutil.rmtree(package, ignore_errors=True)
    shutil.unpack_archive(arguments.wheel, package, "zip")
    results = [test(version, package, options) for version in arguments.versions]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
