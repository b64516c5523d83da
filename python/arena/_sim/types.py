"""What ``arena.sim`` returns: settings, findings and counts as frozen dataclasses. Independent of the library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._util.shown import Tabled
from .._words.plain import plain


@dataclass(frozen=True)
class Settings(Tabled):
    """The settings of the simulated machine. See :func:`arena.sim.configure`."""

    card: str
    devices: int
    memory: tuple[int, ...]
    granularity: int
    vmm: bool
    version: int
    delay: int
    seed: int
    other: int
    prices: str
    races: bool
    peers: str
    integrated: bool
    rdma: str
    page_cache: int
    address_space: int
    exclusive: tuple[int, ...]
    sync_unmap: bool
    reuse: bool
    dead: str
    values: bool


@dataclass(frozen=True)
class Access:
    """One side of a :class:`Race`: how an operation accessed the bytes from ``begin`` to ``end``."""

    operation: str
    number: int
    stream: int
    access: str
    begin: int
    end: int
    stream_id: int = 0  # from cuStreamGetId: handles are reused, ids are not

    def __str__(self) -> str:
        where = f"{self.access} of [{self.begin:#x}, {self.end:#x})"
        return f"{self.operation} ({where}, stream {self.stream:#x})" if self.number else f"{self.operation} ({where})"


@dataclass(frozen=True)
class Race(Tabled):
    """Two unordered operations on the same bytes, at least one of them a write.

    ``kind`` is ``"race"`` for two operations in streams, and ``"removed"`` if the second is a host call that takes the
    memory away (``cuMemUnmap``) while the first may still be running.
    """

    kind: str
    first: Access
    second: Access

    def __str__(self) -> str:
        return f"{self.kind}: {self.second} is not ordered after {self.first}"


@dataclass(frozen=True)
class Finding(Tabled):
    """Something the program did that is undefined on hardware: it may crash there, corrupt memory, or seem to work.

    ``kind`` is one of

    - ``"dead stream"``, ``"dead event"``, ``"dead graph"``, ``"dead graph exec"``, ``"dead context"``, ``"dead pool"``,
      ``"dead module"``, ``"dead function"``, ``"dead library"``, ``"dead kernel"``, ``"dead graph node"``,
      ``"dead user object"``: a call used the handle of a destroyed object; ``destroyed_by``, ``destroyed_number`` and
      ``destroyed_thread`` identify the call that destroyed it,
    - ``"unknown handle"``: a call used a handle that never existed,
    - ``"module gone"``: a module was unloaded while launches of its kernels were queued,
    - ``"graph memory gone"``: a graph was launched after memory that it touches was unmapped or freed,
    - ``"race"`` and ``"removed"``: found by the race checker; see ``race``.

    ``number`` and ``thread`` identify the call: calls are numbered from 1, and threads as in
    :func:`threading.get_native_id`.
    """

    kind: str
    call: str
    handle: int
    text: str
    number: int
    thread: int
    destroyed_by: str = ""
    destroyed_number: int = 0
    destroyed_thread: int = 0
    race: Race | None = None

    def __str__(self) -> str:
        return plain(f"{self.kind}: {self.text}")


@dataclass(frozen=True)
class PriceTable(Tabled):
    """The cost of driver calls, in microseconds. See :func:`arena.sim.prices`."""

    name: str
    """What ``configure(prices=...)`` accepts: the name of a built-in table, or the path of the file."""
    facts: dict[str, str]
    """What the file says about its origin, such as ``device`` and ``measured``; empty for a built-in table."""
    calls: dict[str, tuple[tuple[int, float], ...]]
    """``(bytes, microseconds)`` pairs for each call that has a price, by size; 0 bytes stands for any size."""

    @property
    def label(self) -> str:
        """The table in a few words: ``a100``, or ``rtx.prices (NVIDIA GeForce RTX 4090, 2026-11-18)``."""
        day = self.facts.get("measured", "").partition("T")[0]
        origin = ", ".join(fact for fact in (self.facts.get("device", ""), day) if fact)
        return Path(self.name).name + (f" ({origin})" if origin else "")


@dataclass(frozen=True)
class Stalls(Tabled):
    """How often ``cuMemUnmap`` and ``cuMemSetAccess`` waited for queued work, and for how long in total."""

    count: int
    microseconds: float


@dataclass(frozen=True)
class Census(Tabled):
    """How many objects of each kind are alive in the driver. 0 devices means that it is not initialised."""

    devices: int
    handles: int
    mappings: int
    reservations: int
    allocations: int
    streams: int
    events: int
    contexts: int
    modules: int
    libraries: int
