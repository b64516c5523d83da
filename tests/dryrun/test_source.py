"""The line of the program that a note is about, and what its source says."""

from __future__ import annotations

import sys

import pytest

from arena._dryrun import unknown
from arena._dryrun.qualified import unknown_of

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python knows columns from 3.11 on")


def test_an_expression_of_several_lines_is_named_as_a_whole() -> None:
    unknown.reset()
    # fmt: off
    unknown.read_here(
        "int64",
        8
    )
    # fmt: on
    assert [entry["what"] for entry in unknown.facts()] == ['unknown.read_here( "int64", 8 )']
    unknown.reset()


def test_a_value_that_no_line_of_the_program_read_is_said_to_be_the_frameworks() -> None:
    notes = unknown.Collector()
    notes.read(unknown.NOWHERE, "", 8, None)
    (found,) = unknown_of(notes.facts())
    assert found.name == "a value in a thread of the framework"
