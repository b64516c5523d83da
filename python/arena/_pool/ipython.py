"""The extension for IPython and notebooks: ``%load_ext arena`` makes the end of each cell a safe point."""

from __future__ import annotations

from typing import Any

from .defaults import safe_point

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def _after_cell(*_: Any) -> None:
    """A cell has ended, so it launches no work now."""
    safe_point()


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext arena``."""
    shell.events.register("post_run_cell", _after_cell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by ``%unload_ext arena``."""
    shell.events.unregister("post_run_cell", _after_cell)
