"""Repeat published measurements of real cards in dry runs, and write docs/accuracy.md: `make accuracy`.

    python benchmarks/accuracy/run.py [--only NAME] [--arena WHEEL] [--environments FOLDER]

Each measurement of published.toml whose name contains NAME runs in the environment that it names, which is created if
it is not there. Without a wheel, arena must be importable there (PYTHONPATH). What was found is kept in measured.json,
so the page can be written again, or some of it measured again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from data import HERE, Measured, Measurement, read_environments, read_measured, read_published, write_measured
from page import write_page

ROOT = HERE.parent.parent
OF_ARENA = ["rich", "typer"]


def prepare(folder: Path, packages: list[str], wheel: Path | None) -> Path:
    """The environment's Python."""
    python, ready = folder / "bin" / "python", folder / "ready"
    install = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-compile"]
    if not ready.exists() or ready.read_text() != "\n".join(packages):
        print(f"creating {folder}: {' '.join(packages)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([*install, *OF_ARENA, *packages], check=True)
        ready.write_text("\n".join(packages))
    if wheel:
        subprocess.run([*install, "--no-deps", "--force-reinstall", wheel], check=True)
    return python


def command_of(measurement: Measurement, python: Path) -> list[str]:
    card, _, device = measurement.simulated.partition(" ")
    program, *arguments = measurement.program.split()
    return [
        *(
            str(python),
            "-m",
            "arena",
            "dryrun",
            "--allocator",
            "native",
            "--no-second-run",
            "--lines=0",
            "--card",
            card,
        ),
        *(["--device", device] if device else []),
        *(str(HERE / "programs" / program), *arguments),
    ]


def measure(command: list[str]) -> tuple[dict[str, int], float]:
    """What the program printed: names and bytes."""
    began = time.monotonic()
    done = subprocess.run(command, text=True, capture_output=True)
    seconds = time.monotonic() - began
    if done.returncode not in (0, 4):  # 4: the verdict is unsure
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return {name: int(size) for name, size in re.findall(r"^(\w+) (\d+)$", done.stdout, re.MULTILINE)}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a measurement's name")
    parser.add_argument("--arena", type=Path, help="a wheel to install into the environments")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "accuracy")
    options = parser.parse_args()

    published, packages = read_published(), read_environments()
    chosen = [measurement for measurement in published if options.only in measurement.name]
    if not chosen:
        parser.error(f"no measurement's name contains {options.only!r}")
    pythons = {
        name: prepare(options.environments.absolute() / name, packages[name], options.arena)
        for name in sorted({measurement.environment for measurement in chosen})
    }
    measured = {name: found for name, found in read_measured().items() if name in {m.name for m in published}}
    results: dict[tuple[str, ...], tuple[dict[str, int], float]] = {}  # several figures may come from one run
    for measurement in chosen:
        command = command_of(measurement, pythons[measurement.environment])
        if tuple(command) not in results:
            results[tuple(command)] = measure(command)
        sizes, seconds = results[tuple(command)]
        size = sizes[measurement.quantity]
        measured[measurement.name] = Measured(size, round(seconds, 1))
        difference = f"{100 * measurement.difference(size):+.2f}%"
        print(f"{measurement.name}: {measurement.published}, dry {measurement.shown(size)}, {difference}", flush=True)
        write_measured(measured)
    write_page(published, measured)


if __name__ == "__main__":
    main()
