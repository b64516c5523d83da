"""The published measurements, and what dry runs found: published.toml, environments.toml and measured.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).parent
MEASURED = HERE / "measured.json"
UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Source:
    name: str
    url: str


@dataclass(frozen=True)
class Measurement:
    """A figure that was published, and the dry run that repeats it."""

    name: str
    source: Source
    what: str
    card: str
    versions: str
    published: str
    """As published, with its unit: "6.626 GiB"."""
    program: str
    environment: str
    simulated: str
    quantity: str = "peak"
    url: str = ""
    """If it differs from the source's."""
    other_version: bool = False
    """Whether it was published with a version of PyTorch that does not run here."""
    note: str = ""

    @property
    def unit(self) -> str:
        return self.published.split()[1]

    @property
    def decimals(self) -> int:
        return len(self.published.split()[0].partition(".")[2])

    @property
    def published_bytes(self) -> float:
        return float(self.published.split()[0]) * UNITS[self.unit]

    def shown(self, size: int) -> str:
        """A size with one more decimal than was published, but no more than makes sense."""
        more = 0 if self.unit == "B" or self.decimals > 4 else 1
        decimals = self.decimals + more if self.agrees(size) else min(self.decimals + more, 5)
        return f"{size / UNITS[self.unit]:,.{decimals}f} {self.unit}"

    def agrees(self, size: int) -> bool:
        """Whether a size has the same digits as the published one."""
        return f"{size / UNITS[self.unit]:.{self.decimals}f}" == self.published.split()[0]

    def difference(self, size: int) -> float:
        return size / self.published_bytes - 1


@dataclass(frozen=True)
class Measured:
    """What a dry run found."""

    size: int
    seconds: float


def read_published() -> list[Measurement]:
    found = tomllib.loads((HERE / "published.toml").read_text())
    sources = {key: Source(**fields) for key, fields in found["sources"].items()}
    return [Measurement(**{**fields, "source": sources[fields["source"]]}) for fields in found["measurements"]]


def read_environments() -> dict[str, list[str]]:
    found: dict[str, Any] = tomllib.loads((HERE / "environments.toml").read_text())
    return {name: fields["packages"] for name, fields in found.items()}


def read_measured() -> dict[str, Measured]:
    return {name: Measured(**fields) for name, fields in json.loads(MEASURED.read_text()).items()}


def write_measured(measured: dict[str, Measured]) -> None:
    MEASURED.write_text(json.dumps({name: asdict(measured[name]) for name in sorted(measured)}, indent=1) + "\n")
