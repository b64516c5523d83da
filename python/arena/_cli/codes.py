"""The exit codes with which commands say whether a trace fits. All of them are in docs/command-line.md."""

from __future__ import annotations

__all__ = ["EXIT_MISFIT", "EXIT_UNFINISHED", "exit_code"]

EXIT_MISFIT = 3  # a trace does not fit
EXIT_UNFINISHED = 4  # it fits as far as it goes, but the recorded run ended by a failed request


def exit_code(fits: bool | None) -> int:
    """What a command says of one replay, or of several together."""
    return {True: 0, False: EXIT_MISFIT, None: EXIT_UNFINISHED}[fits]
