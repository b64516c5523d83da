"""What the simulated driver found during a test. A test fails on any finding that it does not expect (conftest.py).

A test that misuses the driver on purpose says so, in one of two ways:

- ``expect("dead stream", "race")`` right after the misuse requires exactly these findings, in this order, and clears
  them;
- ``@pytest.mark.findings("dead event")`` allows any number of findings of these kinds; without kinds, any findings.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arena.sim import Finding

_kept: list[Finding] = []


def expect(*kinds: str) -> list[Finding]:
    """Check that the findings so far are of these kinds, clear them, and return them."""
    found = take()
    assert [finding.kind for finding in found] == list(kinds), "\n".join(map(str, found))
    return found


def keep() -> None:
    """Keep the findings across a reset of the driver. Loads no library, and none of arena's modules."""
    library, sim = sys.modules.get("arena._sim.library"), sys.modules.get("arena.sim")
    if library is None or sim is None or not library.is_loaded() or sim.finding_count() == 0:
        return
    _kept.extend(sim.findings())
    sim.clear_findings()


def take() -> list[Finding]:
    """Return the findings so far, and clear them."""
    keep()
    found = _kept.copy()
    _kept.clear()
    return found
