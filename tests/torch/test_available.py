"""Whether the other tests of this folder can run."""

from __future__ import annotations

import pytest

from .conftest import IS_WANTED


def test_pytorch_has_cuda_and_finds_the_simulated_card() -> None:
    if not IS_WANTED:
        pytest.skip("needs PyTorch with CUDA, which takes 5 GB: run `make test-torch`")
    import torch

    assert torch.version.cuda is not None
    assert torch.cuda.is_available()
    assert torch.cuda.get_device_name() == "Tesla T4"
