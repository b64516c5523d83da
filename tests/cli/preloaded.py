"""What commands import when they get there: for the process that tests/forked.py makes theirs of."""

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

with contextlib.suppress(ImportError):  # older Typers have none
    import typer._adapters
