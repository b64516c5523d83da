"""The exit codes that say whether a trace fits. docs/command-line.md lists all of them."""

from __future__ import annotations

__all__ = ["EXIT_MISFIT", "EXIT_UNFINISHED", "EXIT_UNSURE", "exit_code"]

EXIT_MISFIT = 3  # a trace does not fit
EXIT_UNFINISHED = 4  # everything recorded fits, but the recorded run ended with a failed request
EXIT_UNSURE = 4  # a dry run ended well, but whether it fits depends on values that were never computed


def exit_code(fits: bool | None) -> int:
    """The exit code for one replay, or for several together."""
    return {True: 0, False: EXIT_MISFIT, None: EXIT_UNFINISHED}[fits]
