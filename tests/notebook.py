"""Cells run in a real Jupyter kernel, in its own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from .programs import run

KERNEL = """
import json, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
try:
    for cell in json.loads(sys.argv[1]):
        messages = []
        client.execute_interactive(cell, timeout=60, output_hook=messages.append)
        print(json.dumps([message["content"] for message in messages], default=str))
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


@dataclass(frozen=True)
class Output:
    """What one cell printed, and what it displayed: a dictionary of MIME types for each object."""

    text: str
    displayed: list[dict[str, str]]


def run_cells(folder: Path, *cells: str) -> list[Output]:
    """Run cells one after the other in a new kernel, whose files go to `folder`. A cell that raises fails the test."""
    pytest.importorskip("ipykernel")
    folders = dict.fromkeys(("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"), str(folder))
    done = run(KERNEL, json.dumps(cells), timeout=120, ARENA_DRIVER="sim", **folders)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cells), done.stderr
    errors = [message["traceback"] for answer in answers for message in answer if "traceback" in message]
    assert errors == [], "\n".join(errors[0])
    return [
        Output(
            "".join(message.get("text", "") for message in answer),
            [message["data"] for message in answer if "data" in message],
        )
        for answer in answers
    ]
