"""Programs with CuPy that read what was never computed: what they get, and what the verdict says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..dryrun.program import dry, facts_of
from .dry_process import CACHE, needs_cupy, run_dry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_cupy]

# A product of large matrices is not computed.
BEGIN = """
import cupy

x = cupy.random.rand(300, 1000) @ cupy.random.rand(1000, 1000)
"""


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """CuPy for dry runs takes longer to build than a program may take here."""
    done = run_dry("-c", "import cupy")
    assert done.returncode == 0, done.stderr


def run(tmp_path: Path, code: str, *options: str) -> tuple[str, dict[str, Any]]:
    done = dry(tmp_path, BEGIN + code, options=("--card", "t4", "--json", *options), XDG_CACHE_HOME=str(CACHE))
    assert done.returncode in (0, 4), done.stderr
    return done.stdout, facts_of(done)


def test_what_is_small_is_computed_and_nothing_is_unknown(tmp_path: Path) -> None:
    said, facts = run(tmp_path, "print(cupy.arange(10).sum(), len(cupy.arange(9)[cupy.arange(9) > 5]))")
    assert (said, facts["verdict"], facts["unknown"]) == ("45 3\n", "fits", [])


def test_reads_are_noted_once_with_their_expression_and_type(tmp_path: Path) -> None:
    said, facts = run(tmp_path, "print(float(x.max()), int(x.argmax()), x[0, :2].tolist(), bool((x > 5).all()))")
    assert said == "0.0 0 [0.0, 0.0] False\n"
    assert [(one["what"], one["dtype"], one["count"]) for one in facts["unknown"]] == [
        ("float(x.max())", "float64", 1),
        ("int(x.argmax())", "int64", 1),
        ("x[0, :2].tolist()", "float64", 1),
        ("bool((x > 5).all())", "bool", 1),
    ]
    assert facts["verdict"] == "fits"  # with ones, it asks for the same memory


@pytest.mark.parametrize(("share", "count"), [("all", 300_000), ("half", 150_000), ("none", 0)])
def test_as_many_elements_pass_as_are_assumed(tmp_path: Path, share: str, count: int) -> None:
    code = "found = x[x > 0.5]\nprint(len(found), (x > 0.5).nonzero()[1].shape)"
    said, facts = run(tmp_path, code, "--assume", f"nonzero={share}")
    assert said == f"{count} ({count},)\n"
    assert [one["what"] for one in facts["unknown"]] == ["the number of elements of nonzero()"] * 2
    assert facts["unknown"][0]["sized"]["counts"] == {"assumed": count, "most": 300_000}
    assert (facts["unknown"][0]["sized"]["bytes"], facts["unknown"][0]["sized"]["most"]) == (8 * count, 8 * 300_000)


def test_known_elements_of_a_mask_count_as_what_they_are(tmp_path: Path) -> None:
    code = "mask = x > 0.5\nmask[:100] = cupy.zeros((100, 1000), bool)\nprint(len(x[mask]))"
    assert run(tmp_path, code)[0] == "200000\n"


def test_the_user_says_what_a_line_reads(tmp_path: Path) -> None:
    code = "index = int(x.argmax())\nprint(index, x.max().item(), cupy.asnumpy(x[0, :2]))"
    said, facts = run(tmp_path, code, "--assume", "train.py:6=7", "--assume", "train.py:5=1000")
    assert said == "1000 7.0 [7. 7.]\n"
    assert all(one["given"] for one in facts["unknown"])
    assert facts["verdict"] == "fits"


def test_a_size_that_was_read_is_not_settled_by_two_values(tmp_path: Path) -> None:
    _, facts = run(tmp_path, "buffer = cupy.zeros(int(x.argmax()) * 1000)")
    assert facts["verdict"] == "unsure"
    assert "depends on `int(x.argmax())` at train.py:5" in facts["because"]


def test_values_are_real_where_all_is_computed(tmp_path: Path) -> None:
    said, facts = run(tmp_path, "print(240 < float(x.mean()) < 260)", "--values", "all")
    assert (said, facts["unknown"]) == ("True\n", [])


def test_a_read_gives_zero_then_one_also_of_what_was_computed_from_zeros(tmp_path: Path) -> None:
    code = """
small = x[:10, :10]
done = bool((small < 5).all())
print(done, float((small + 3).max()))
buffer = cupy.zeros(4_000_000_000 if done else 1000)
"""
    said, facts = run(tmp_path, code)
    assert said == "False 0.0\n"
    assert facts["verdict"] == "unsure"
    assert "with 1 instead of 0 for `bool((small < 5).all())` at train.py:7" in facts["because"]
    assert "it does not fit" in facts["because"]


def test_a_read_through_the_driver_alone_is_not_said_to_be_tried_with_one(tmp_path: Path) -> None:
    code = """
import numpy
found = numpy.zeros(1, "int32")
x.data.copy_to_host(found.ctypes.data, 4)
buffer = cupy.zeros(1000 * (1 + int(found[0])))
"""
    _, facts = run(tmp_path, code)
    assert facts["verdict"] == "unsure"
    assert "1 could not be tried instead of 0" in facts["because"]
