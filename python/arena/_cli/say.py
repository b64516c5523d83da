"""Prints lines of commands that need no console."""

from __future__ import annotations

import typer

from .._words.plain import plain

__all__ = ["say"]


def say(line: str, *, err: bool = False) -> None:
    """Print one line, whatever names in it contain."""
    typer.echo(plain(line), err=err)
