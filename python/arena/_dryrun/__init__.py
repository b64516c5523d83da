"""Dry runs: a program on a simulated GPU, where memory is real and kernels are skipped.

:mod:`libraries` knows the libraries that take the place of NVIDIA's, :mod:`environment` prepares a process for them,
:mod:`child` is that process, :mod:`frameworks` what it knows of PyTorch and CuPy, :mod:`run` starts it and gathers what
it found, :mod:`verdict` says what that means, :mod:`batches` finds the largest batch, and :mod:`in_process` is
``arena.sim.dryrun()``.
"""

from __future__ import annotations

__all__: list[str] = []
