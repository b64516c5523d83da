"""What commands import when they get there: for the process that tests/forked.py makes theirs of."""

# ruff: noqa: F401

import contextlib

import numpy
import plotly.offline
import rich._emoji_codes
import rich.table
import typer.rich_utils

import arena._cli
import arena._report._page

with contextlib.suppress(ImportError):  # older Typers have none
    import typer._adapters
