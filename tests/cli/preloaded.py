"""What commands import on demand. tests/forked.py imports it once, before it forks a process for each command."""

# ruff: noqa: F401

import contextlib

import numpy
import rich._emoji_codes
import rich.table
import typer.rich_utils

import arena._cli.convert
import arena._cli.demo
import arena._cli.fit
import arena._cli.info
import arena._cli.measure
import arena._cli.replay
import arena._cli.report
import arena._cli.run
import arena._report.page

with contextlib.suppress(ImportError):  # older versions of Typer have none
    import typer._adapters
