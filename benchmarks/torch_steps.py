"""What a dry run costs: a training step of a transformer dry and on the CPU, and an allocation through arena.torch.

    python benchmarks/torch_steps.py [--json FILE]

Needs PyTorch with CUDA beside arena: `make test-torch` makes such an environment in build/torch. Each way runs in a
process of its own; they take turns, and the best of their rounds counts. Bounds: a dry step takes less time than one on
the CPU with real arithmetic, and at most 1.5 times as long with the values that control flow needs as without any; an
allocation takes at most what PyTorch's own allocator takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import arena
import arena.torch
from arena import sim

sys.path.insert(0, str(Path(__file__).parent.parent))

CARD = "a100-80"
ROUNDS = 15
ALLOCATIONS = 20_000


def step_on(device: str) -> Callable[[], float]:
    """Milliseconds for a step, on the wall."""
    import torch
    from tests.torch.models import transformer

    with torch.device(device):
        model, x = transformer(), torch.zeros(8, 128, 256)
    optimizer = torch.optim.AdamW(model.parameters())

    def round_() -> float:
        begun = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) * 1e3

    return round_


def step_with(values: str) -> Callable[[], float]:
    """The same in a dry run of this process that computes such values."""
    sim.dryrun(card=CARD, values=values).__enter__()  # for good: the process does nothing else
    return step_on("cuda")


def empty_of(size: int) -> Callable[[], float]:
    """Nanoseconds of this thread for a tensor and its end."""
    import torch

    empty, device = torch.empty, torch.device("cuda")

    def round_() -> float:
        begun = time.thread_time()
        for _ in range(ALLOCATIONS):
            empty(size, device=device)
        return (time.thread_time() - begun) * 1e9 / ALLOCATIONS

    return round_


class Worker:
    """A process that runs a round whenever it is asked."""

    def __init__(self, make: Callable[[], Callable[[], float]], *, uses_arena: bool = False) -> None:
        (asked, self._ask), (self._answer, answered) = os.pipe(), os.pipe()
        self._process = os.fork()
        if self._process:
            os.close(asked)
            os.close(answered)
            self.best = float("inf")
            return
        try:
            os.close(self._ask)
            if uses_arena:
                arena.torch.use()
            round_ = make()
            while os.read(asked, 1):
                os.write(answered, f"{round_():020.6f}".encode())
        finally:
            os._exit(0)

    def run(self) -> None:
        os.write(self._ask, b"!")
        text = os.read(self._answer, 20)
        if not text:
            raise SystemExit("a process of this benchmark ended early")
        self.best = min(self.best, float(text))

    def end(self) -> None:
        os.close(self._ask)
        os.waitpid(self._process, 0)


def best_of(workers: dict[str, Worker]) -> dict[str, float]:
    for _ in range(ROUNDS):
        for worker in workers.values():
            worker.run()
    for worker in reversed(workers.values()):  # each has the pipes of those before it
        worker.end()
    return {name: worker.best for name, worker in workers.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    values = best_of({name: Worker(lambda name=name: step_with(name)) for name in ("none", "control")})  # type: ignore[misc]
    with sim.dryrun(card=CARD):
        import torch

        print(f"arena {arena.__version__}, PyTorch {torch.__version__}, Python {platform.python_version()},", end=" ")
        print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores; {CARD}, simulated; best of {ROUNDS}")
        steps = best_of(
            {
                "dry, PyTorch's allocator": Worker(lambda: step_on("cuda")),
                "dry, arena": Worker(lambda: step_on("cuda"), uses_arena=True),
                "on the CPU": Worker(lambda: step_on("cpu")),
            }
        )
        print("\na training step of a transformer, ms")
        for name, best in steps.items():
            print(f"  {name:<28}{best:>9.1f}{best / steps['on the CPU']:>8.2f} × the CPU")
        print("\nthe same by --values, ms")
        for name, best in values.items():
            print(f"  {name:<28}{best:>9.1f}{best / values['none']:>8.2f} × none")
        print("\ntorch.empty(n, device='cuda') and its end, ns of CPU time")
        allocations = {}
        for size in (1000, 1_000_000):
            row = best_of(
                {
                    "PyTorch": Worker(lambda size=size: empty_of(size)),  # type: ignore[misc]
                    "arena": Worker(lambda size=size: empty_of(size), uses_arena=True),  # type: ignore[misc]
                }
            )
            allocations[size] = row
            ratio = row["arena"] / row["PyTorch"]
            print(
                f"  n = {size:<10,} PyTorch's {row['PyTorch']:>6.0f}   arena {row['arena']:>6.0f}   ratio {ratio:.2f}"
            )
    if options.json:
        options.json.write_text(json.dumps({"steps": steps, "values": values, "allocations": allocations}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
