"""What other tools say of a program: `python tools.py TOOL PROGRAM` prints the bytes, or why there are none."""

from __future__ import annotations

import inspect
import sys
import time

import torch

from programs import PROGRAMS, Program


def mem_tracker(program: Program) -> int:
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            model = program.make()
    except DataDependentOutputException:  # timm's models read a tensor when they are made
        model = program.make()
        with mode:
            model = model.to_empty(device="cpu")
    with mode:
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            program.train(model, "cpu")  # it does not run for "cuda" on a machine without a GPU
    return max(sizes["Total"] for sizes in tracker.get_tracker_snapshot("peak").values())


def estimate_memory(program: Program) -> int:
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        model = program.make().float()
    total, _ = calculate_maximum_sizes(model)
    dtype = DTYPES.get(sys.argv[2], "float32")
    return max(estimate_training_usage(total, dtype).values())


def torchinfo(program: Program) -> int:
    from torchinfo import summary

    model, inputs = program.make(), program.inputs()
    found = summary(model, input_data=inputs, device="cpu", mode="train", verbose=0)
    return found.total_input + found.total_output_bytes + found.total_param_bytes


DTYPES = {"qwen-0.8b-full-128": "float16", "qwen-0.8b-lora-128": "float16"}  # the closest rows of its table
TOOLS = {"MemTracker": mem_tracker, "estimate-memory": estimate_memory, "torchinfo": torchinfo}

if __name__ == "__main__":
    tool, program = TOOLS[sys.argv[1]], PROGRAMS[sys.argv[2]]
    began = time.monotonic()
    try:
        print("peak", tool(program))
    except Exception as error:
        print("error", f"{type(error).__name__}: {str(error).splitlines()[0]}")
    print("seconds", round(time.monotonic() - began, 1))
    print("lines", sum(bool(line.strip()) for line in inspect.getsource(tool).splitlines()[1:]))
