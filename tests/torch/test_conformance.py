"""The conformance suite over arena.torch: see tests/clients/conformance.py."""

from __future__ import annotations

import pytest

import arena

from ..clients import adapters
from ..clients.conformance import CHECKS, LAST, checks_for, settle


@pytest.mark.parametrize("check", checks_for("torch"))
def test_pytorch_conforms(check: str) -> None:
    adapter = adapters.torch(arena.Arena(cap="64MiB"))
    CHECKS[check](adapter)
    if check not in LAST:
        settle(adapter)
