"""Help texts of options that several commands share."""

from __future__ import annotations

__all__ = ["CAP", "DEVICE", "FORCE", "GROWTH", "HEADROOM", "JSON", "ONLY", "PLAIN", "PRICES", "SAVE", "TRACE"]

CAP = 'Limit of reserved memory: "4GiB", "80%".'
DEVICE = 'Device number, "sim", or "sim:8GiB".'
FORCE = "Overwrite existing files."
ONLY = "Frameworks that get arena: cupy,torch,numba,cuda_core,rmm. Default: all."
GROWTH = "Largest piece of memory to reserve at a time."
HEADROOM = "Memory to leave free on the device."
JSON = "Print JSON."
PLAIN = "Do not use virtual memory."
PRICES = 'Price table: "a100", "small", "free", or a file from arena measure.'
SAVE = "Save the report: .html, .json or .txt."
TRACE = "A recording, arena-trace 1 text, RMM log, or PyTorch snapshot."
