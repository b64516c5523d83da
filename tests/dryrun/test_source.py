"""The line of the program that a note is about, and what its source says."""

from __future__ import annotations

import concurrent.futures
import sys
from typing import Any

import pytest

from arena._dryrun import source, unknown
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


def test_a_program_that_comes_with_a_framework_has_lines_of_its_own() -> None:
    code = "def inner():\n    return line_here()\n\n\ndef test_of_ours():\n    return inner()\n"
    names: dict[str, Any] = {"line_here": source.line_here}
    exec(compile(code, "/usr/lib/python3/site-packages/numba/tests/test_it.py", "exec"), names)
    threads = concurrent.futures.ThreadPoolExecutor(1)  # whose stack has no line of this test
    assert threads.submit(names["test_of_ours"]).result() == "test_it.py:6 in test_of_ours"
    threads.shutdown()
