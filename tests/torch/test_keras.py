"""Keras with its PyTorch backend."""

from __future__ import annotations

import pytest
import torch

import arena
import arena.torch

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras's own


@pytest.mark.parametrize("allocator", ["native", "arena"])
def test_a_small_model_fits_dry(allocator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    if allocator == "arena":
        arena.torch.use()
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((28, 28, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
    )
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = torch.zeros(64, 28, 28, 1).numpy(), torch.zeros(64, dtype=torch.int32).numpy()
    history = model.fit(images, labels, batch_size=16, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    assert model.weights[0].value.device.type == "cuda"
    assert model.predict(images, verbose=0).shape == (64, 10)
    weights = sum(weight.value.numel() * 4 for weight in model.weights)
    live = torch.cuda.max_memory_allocated() if allocator == "native" else arena.default_arena().stats().peak_live
    assert live > 3 * weights
