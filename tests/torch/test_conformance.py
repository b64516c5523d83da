"""The conformance suite over arena.torch: see tests/clients/conformance.py."""

from __future__ import annotations

import pytest

import arena

from ..clients import adapters
from ..clients.conformance import CHECKS, LAST, Check, settle


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_pytorch_conforms(check: Check) -> None:
    adapter = adapters.torch(arena.Arena(cap="64MiB"))
    check(adapter)
    if check.__name__ not in LAST:
        settle(adapter)
