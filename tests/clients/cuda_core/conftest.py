"""The fixtures of the tests of cuda-core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cuda.core import Device, Stream

from .client import synchronise, trim


@pytest.fixture
def device(capfd: pytest.CaptureFixture[str]) -> Iterator[Device]:
    """The current device. Its pool is emptied at the end, and the client must not have warned."""
    current = Device(0)
    current.set_current()
    yield current
    synchronise()
    for number in range(len(Device.get_all_devices())):
        trim(number)
    assert capfd.readouterr().err == ""


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    made = device.create_stream()
    yield made
    made.close()
