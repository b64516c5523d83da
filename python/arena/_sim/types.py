"""What arena.sim returns: settings, findings and counts as frozen dataclasses. Knows nothing of the library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._util.shown import Tabled


@dataclass(frozen=True)
class Settings(Tabled):
    """What the simulated machine is like, and how it behaves. See :func:`arena.sim.configure`."""

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


@dataclass(frozen=True)
class Access:
    """One side of a :class:`Race`: what an operation did to the bytes from ``begin`` to ``end``."""

    operation: str
    number: int
    stream: int
    access: str
    begin: int
    end: int
    stream_id: int = 0  # as cuStreamGetId gives it: handles are reused, ids are not

    def __str__(self) -> str:
        where = f"{self.access} of [{self.begin:#x}, {self.end:#x})"
        return f"{self.operation} ({where}, stream {self.stream:#x})" if self.number else f"{self.operation} ({where})"


@dataclass(frozen=True)
class Race(Tabled):
    """Two operations that nothing orders, on the same bytes, at least one of them writing.

    ``kind`` is ``"race"`` for two operations in streams, ``"removed"`` when the second is a call of the host that
    takes the memory away (``cuMemUnmap``) while the first may still be running.
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
      ``"dead module"``, ``"dead function"``, ``"dead library"``, ``"dead kernel"``,
      ``"dead graph node"``, ``"dead user object"``:
      a call used the handle of a destroyed object; ``destroyed_by``, ``destroyed_number`` and ``destroyed_thread`` say
      which call destroyed it,
    - ``"unknown handle"``: a call used a handle that never existed,
    - ``"module gone"``: a module was unloaded while launches of its kernels were queued,
    - ``"graph memory gone"``: a graph was launched after memory that it touches was unmapped or freed,
    - ``"race"`` and ``"removed"``: what the race checker found, in ``race``.

    ``number`` and ``thread`` are those of the call: calls are numbered from 1, and threads as
    :func:`threading.get_native_id` does.
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
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class PriceTable(Tabled):
    """What calls of the driver cost, in microseconds. See :func:`arena.sim.prices`."""

    name: str
    """What ``configure(prices=...)`` accepts: the name of a built-in table, or the path of the file."""
    facts: dict[str, str]
    """What the file says of its origin, such as ``device`` and ``measured``; nothing for a built-in table."""
    calls: dict[str, tuple[tuple[int, float], ...]]
    """For each call that has a price, ``(bytes, microseconds)``, in the order of sizes; bytes are 0 for any size."""

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
    """How many objects of each kind are alive in the driver. No devices: it is not initialised."""

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
