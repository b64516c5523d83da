"""Gives frameworks the arena when the program imports them, and knows afterwards which of them use it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator
from typing import Any

from .._util.imports import after_import
from .known import FRAMEWORKS, Framework

__all__ = ["Installation"]


class Installation:
    """Gives the default arenas to frameworks, all or ``only`` some, from :meth:`begin` on."""

    def __init__(self, only: Collection[str] | None = None) -> None:
        self.wanted = [framework for framework in FRAMEWORKS if only is None or framework.key in only]
        self.problems: dict[str, str] = {}  # why a framework could not be given the arena, by its key

    def begin(self) -> None:
        for framework in self.wanted:
            after_import(framework.module, functools.partial(self.wait, framework))

    def wait(self, framework: Framework, module: Any) -> None:
        with self.noting_problems(framework):
            framework.when_ready(module, functools.partial(self.give, framework, module))

    def give(self, framework: Framework, module: Any) -> None:
        with self.noting_problems(framework):
            framework.give(module)

    @contextlib.contextmanager
    def noting_problems(self, framework: Framework) -> Iterator[None]:
        """The program's own import must not fail because of us."""
        try:
            yield
        except Exception as error:
            self.problems[framework.key] = str(error)

    def allocators(self) -> dict[str, str]:
        """Whose memory each framework uses, by its key: ``"arena"`` or ``"another"``; or it is ``"not imported"``,
        ``"left out"`` by the user, or built ``"without CUDA"``.
        """
        return {framework.key: self.allocator_of(framework) for framework in FRAMEWORKS}

    def allocator_of(self, framework: Framework) -> str:
        if framework not in self.wanted:
            return "left out"
        module = framework.imported
        if module is None:
            return "not imported"
        try:
            if not framework.has_cuda(module):
                return "without CUDA"
            return "arena" if framework.uses_arena() else "another"
        except Exception:  # an adapter that cannot be imported, or a stand-in for the framework
            return "another"
