"""The environment of a process in which a program runs dry."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .._cards import Card
from .._util.next_step import exact_size
from .._util.sizes import format_size
from .cupy import EVERY_PROCESS
from .libraries import libraries, planners

__all__ = ["Device", "prepared"]

# What would choose among devices that are not there, or change what the driver is.
NOT_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "CUDASIM_DEVICES", "CUDASIM_MEMORY", "CUDASIM_CARD", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Device:
    """What is simulated: a card, or a device of some size, or a card with another size."""

    card: Card | None
    memory: int | None = None

    @property
    def label(self) -> str:
        if self.card is None:
            return "sim" if self.memory is None else f"sim:{exact_size(self.memory)}"
        return self.card.key if self.memory is None else f"{self.card.key} with {format_size(self.memory)}"

    def variables(self) -> dict[str, str]:
        found = {"CUDASIM_DEVICES": "1", "ARENA_DRIVER": "sim"}
        if self.card is not None:
            found["CUDASIM_CARD"] = str(self.card.path)
        if self.memory is not None:
            found["CUDASIM_MEMORY"] = str(self.memory)
        return found


@dataclass
class Prepared:
    """Environment variables, and a folder for what the process leaves for us."""

    variables: dict[str, str]
    folder: Path


@contextlib.contextmanager
def prepared(device: Device, settings: Mapping[str, str]) -> Iterator[Prepared]:
    """The environment for a program on that device; ``settings`` are further variables."""
    with tempfile.TemporaryDirectory(prefix="arena-dryrun-") as name:
        folder = Path(name)
        variables = {key: value for key, value in os.environ.items() if key not in NOT_PASSED_ON}
        preloaded = ":".join(str(file) for file in loadable(libraries(), folder))
        before = variables.get("LD_PRELOAD", "")
        variables["LD_PRELOAD"] = f"{preloaded}:{before}" if before else preloaded
        path = variables.get("PYTHONPATH", "")
        variables["PYTHONPATH"] = f"{EVERY_PROCESS}{os.pathsep}{path}" if path else str(EVERY_PROCESS)
        yield Prepared({**planners(), **variables, **device.variables(), **settings}, folder)


def loadable(files: list[Path], folder: Path) -> list[Path]:
    """The same files under names that LD_PRELOAD can hold, which splits at spaces and colons."""
    if not any(mark in str(file) for file in files for mark in " :\t\n"):
        return files
    links = folder / "lib"
    links.mkdir()
    for file in files:
        (links / file.name).symlink_to(file)
    return [links / file.name for file in files]
