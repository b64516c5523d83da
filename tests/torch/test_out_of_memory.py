"""Out of memory in PyTorch: its own error, in the words that programs and libraries search for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import arena

from .tensors import MIB, mebibytes

pytestmark = pytest.mark.filterwarnings("ignore")  # what these libraries warn of is not about memory
FIRST = "CUDA out of memory. Tried to allocate "


def failure_of(size: int) -> BaseException:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    return failed.value


def test_the_error_is_pytorchs_own_class_on_every_version(pool: arena.Arena) -> None:
    error = failure_of(300 * MIB)
    assert type(error) is torch.OutOfMemoryError
    assert isinstance(error, torch.cuda.OutOfMemoryError)


def test_the_text_begins_as_pytorchs_does_and_goes_on_with_the_arenas(pool: arena.Arena) -> None:
    first, second, *rest = str(failure_of(300 * MIB)).splitlines()
    assert first == FIRST + "300.00 MiB."
    assert second.startswith("out of memory: 300 MiB requested, cap reached")
    assert any(line.startswith("Next: ") for line in rest)


def text_of_pytorchs_own_allocator(size: int) -> str:
    text = str(failure_of(size))
    found = re.match(re.escape(FIRST) + r"[\d.]+ \w+\. ", text)
    assert found, text
    return found[0].rstrip()


SIZES = [20 << 30, (20 << 30) + 123 * MIB, 17_000 * MIB, 1 << 40, 12_345_678 * MIB]


def test_sizes_are_written_as_pytorch_writes_them(pool: arena.Arena) -> None:
    for size in SIZES:
        assert str(failure_of(size)).splitlines()[0] == f"{FIRST}{size / (1 << 30):.2f} GiB."


def test_pytorchs_own_allocator_writes_them_so() -> None:
    for size in SIZES:
        assert text_of_pytorchs_own_allocator(size) == f"{FIRST}{size / (1 << 30):.2f} GiB."


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 bytes"), (1024, "1024 bytes"), (1025, "1.00 KiB"), (3 * MIB // 2, "1.50 MiB")]
)
def test_small_sizes_too(size: int, text: str) -> None:
    pool = arena.Arena(cap="2MiB", vmm=False)
    arena.torch.use(pool)
    held = mebibytes(2)
    assert str(failure_of(size)).splitlines()[0] == f"{FIRST}{text}."
    del held


def test_the_error_survives_autograd_and_a_context_that_pytorch_adds(pool: arena.Arena) -> None:
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
            return mebibytes(300)

    x = torch.zeros(10, device="cuda", requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError, match=re.escape(FIRST)):
        Greedy.apply(x).sum().backward()
    scripted = torch.jit.script(a_large_tensor)
    with pytest.raises(RuntimeError, match=re.escape(FIRST)):
        scripted()


def a_large_tensor() -> torch.Tensor:
    return torch.empty([300 << 20], dtype=torch.uint8, device="cuda")


def test_thousands_of_errors_leave_nothing_behind(pool: arena.Arena) -> None:
    for _ in range(2000):
        failure_of(1 << 40)
    assert pool.stats().live == 0
    assert mebibytes(200).numel() == 200 * MIB


class Model(nn.Module):
    """Needs 1 MiB for each sample in a forward pass, and as much in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x.expand(x.shape[0], MIB // 4)).square().mean()


def step(batch: int) -> None:
    model = Model().cuda()
    model(torch.zeros(batch, 1, device="cuda")).backward()


def test_a_loop_as_in_fairseq_halves_its_batch(pool: arena.Arena) -> None:
    tried = []
    batch = 1024
    while True:
        tried.append(batch)
        try:
            step(batch)
            break
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            torch.cuda.empty_cache()
            batch //= 2
    assert len(tried) > 2
    assert 0 < batch < 256
    assert pool.stats().live < MIB


def test_accelerate_finds_the_batch_size_that_fits(pool: arena.Arena) -> None:
    accelerate = pytest.importorskip("accelerate.utils")
    tried: list[int] = []

    @accelerate.find_executable_batch_size(starting_batch_size=1024)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        step(batch_size)
        return batch_size

    assert 0 < train() < 256
    assert len(tried) > 2


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.zeros(1)}


def test_transformers_finds_its_batch_size(pool: arena.Arena, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class ForTrainer(Model):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"loss": super().forward(x)}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=1024,
        auto_find_batch_size=True,
        max_steps=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(model=ForTrainer(), args=arguments, train_dataset=Samples())
    trainer.train()
    assert trainer.state.global_step == 2
    assert 0 < trainer._train_batch_size < 256


def test_lightning_finds_its_batch_size(pool: arena.Arena, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    tuner = pytest.importorskip("lightning.pytorch.tuner")

    class ForLightning(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = Model(), 2

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Samples(), batch_size=self.batch_size)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return self.model(batch["x"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    found = tuner.Tuner(trainer).scale_batch_size(ForLightning(), mode="binsearch", init_val=2, steps_per_trial=1)
    assert 8 < found < 256
