"""Shared by the commands that run a program: their options come before it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from .._inspect.lines import MOST
from .._util.sizes import parse_size
from ..errors import UsageError

__all__ = ["CONTEXT", "Command", "checked_depth", "variables_of"]

CONTEXT = {"allow_interspersed_args": False}  # options after the program belong to the program


class Command(TyperCommand):
    """Reads ``--lines`` as ``--lines=1``: its value must follow a ``=``, because the next word may be the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [param for param in self.params if param.param_type_name == "option"]
        takes_value = {name for option in options if not getattr(option, "is_flag", False) for name in option.opts}
        given, rest = [], list(args)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            word = rest.pop(0)
            given.append("--lines=1" if word == "--lines" else word)
            if word in takes_value - {"--lines"} and rest:
                given.append(rest.pop(0))
        return super().parse_args(ctx, [*given, *rest])


def checked_depth(depth: int) -> int:
    """Check the value of ``--lines``."""
    if not 0 <= depth <= MOST:
        raise UsageError(f"lines={depth} is not accepted; write a number of lines from 1 to {MOST}, or 0 for none")
    return depth


def variables_of(settings: dict[str, str | None]) -> dict[str, str]:
    """The environment variables that give all arenas of a process these settings."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        parse_size(value, 1 << 40, name)
    return {f"ARENA_{name.upper()}": value for name, value in given.items()}
