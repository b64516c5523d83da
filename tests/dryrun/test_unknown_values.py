"""What values that were never computed make of a verdict: of one run, and of further runs that try other values."""

from __future__ import annotations

from typing import Any

import pytest

from arena._dryrun.assume import Assumptions
from arena._dryrun.trials import settle, tried_with_arena
from arena._dryrun.verdict import Verdict, in_words, judge

from .conftest import Runs
from .outcomes import killed, out_of_memory, outcome, plan, read, size
from .program import GIB, MIB

ONE: dict[str, Any] = {"assumed": 1}


def said(verdict: Verdict) -> str:
    return "\n".join(in_words(verdict))


# --- one run -------------------------------------------------------------------------------------------------------


def test_a_value_that_was_only_shown_leaves_the_verdict_and_is_named() -> None:
    verdict = judge(outcome(read()))
    assert (verdict.word, verdict.fits) == ("fits", True)
    expected = (
        "1 value that was never computed reached the program: `loss.item()` at train.py:31 (no effect on memory seen)"
    )
    assert expected in said(verdict)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", ""])
def test_a_whole_number_may_decide_what_follows(dtype: str) -> None:
    verdict = judge(outcome(read(dtype)))
    assert (verdict.word, verdict.fits) == ("unsure", None)
    assert "may depend on `loss.item()` at train.py:31" in verdict.because


def test_what_the_user_said_is_known() -> None:
    verdict = judge(outcome(read("int64", given=True, assumed=1000)))
    assert verdict.word == "fits"
    assert "assumed, as you said: 1000 for `loss.item()` at train.py:31" in said(verdict)


def test_a_size_makes_the_verdict_a_range() -> None:
    verdict = judge(outcome(size(300 * MIB, 500 * MIB), peak=4 * GIB))
    assert (verdict.word, verdict.least, verdict.most) == ("fits", 4 * GIB - 300 * MIB, 4 * GIB + 200 * MIB)
    assert "the number of elements of nonzero() at rpn.py:258, which sized 12 allocations, at most 500 MiB" in said(
        verdict
    )


def test_it_is_unsure_if_only_the_smaller_sizes_fit() -> None:
    verdict = judge(outcome(size(GIB, 20 * GIB), peak=4 * GIB))
    assert (verdict.word, verdict.ran) == ("unsure", True)
    assert "with the largest sizes possible, 23 of 14.74 GiB would be in use" in verdict.because


def test_it_is_unsure_if_sizes_took_part_of_what_did_not_fit() -> None:
    verdict = judge(outcome(size(GIB, 2 * GIB), exit_code=1, failure=out_of_memory(), peak=14 * GIB))
    assert (verdict.word, verdict.ran) == ("unsure", False)


def test_an_error_that_a_value_may_have_caused_is_not_a_verdict() -> None:
    late = read("int64", line="train.py:40 in check", what="total.item()", last=2)
    found = judge(outcome(read(), late, exit_code=1, error="ValueError: no", error_line="train.py:50 in step"))
    assert found.word == "unsure"
    assert "`total.item()` at train.py:40" in found.because
    at_its_line = judge(outcome(read(), late, exit_code=1, error="ValueError: no", error_line="train.py:31 in step"))
    assert "`loss.item()` at train.py:31" in at_its_line.because


# --- further runs --------------------------------------------------------------------------------------------------


def test_a_second_run_with_ones_settles_what_makes_no_difference(runs: Runs) -> None:
    same = [[3, 100]]
    plans = runs(outcome(read("int64"), requests=same), outcome(read("int64", **ONE), requests=same))
    verdict = settle(plan())
    assert (verdict.word, verdict.settled) == ("fits", True)
    assert [made.assume.reads for made in plans] == [0, 1]
    assert "no effect on memory, whether 0 or 1" in said(verdict)


def test_a_number_that_other_requests_depend_on_is_not_settled_by_two_values(runs: Runs) -> None:
    first, other = outcome(read("int64"), requests=[3, 100]), outcome(read("int64", **ONE), requests=[3, 104])
    runs(first, other, first)
    verdict = settle(plan())
    assert verdict.word == "unsure"
    assert "what memory it needs depends on `loss.item()` at train.py:31" in verdict.because


def test_both_values_of_a_bool_are_all_that_there_are(runs: Runs) -> None:
    runs(outcome(read("bool"), requests=[3, 100]), outcome(read("bool", **ONE), requests=[9, 300], peak=2 * GIB))
    verdict = settle(plan())
    assert (verdict.word, verdict.most) == ("fits", 2 * GIB)


def test_a_number_without_effect_beside_a_bool_with_one_is_settled_by_a_third_run(runs: Runs) -> None:
    stop, token = read("bool", line="generate.py:9 in loop"), read("int64")
    first = outcome(stop, token, requests=[9, 300])
    stopped = outcome(dict(stop, **ONE), dict(token, **ONE), requests=[3, 100])
    plans = runs(first, stopped, outcome(stop, dict(token, **ONE), requests=[9, 300]))
    assert settle(plan()).word == "fits"
    assert [(made.assume.read("bool"), made.assume.read("int64")) for made in plans] == [(0, 0), (1, 1), (0, 1)]


def test_a_number_that_was_not_tried_alone_stays_open(runs: Runs) -> None:
    stop, token = read("bool", line="generate.py:9 in loop"), read("int64")
    first = outcome(stop, token, requests=[9, 300])
    stopped = outcome(dict(stop, **ONE), dict(token, **ONE), requests=[3, 100])
    runs(first, stopped, outcome(stop, dict(token, **ONE), requests=[9, 308]), first)
    assert settle(plan()).word == "unsure"


def test_a_number_that_is_read_only_if_a_bool_is_false_is_tried_alone(runs: Runs) -> None:
    right, guess = read("bool", line="adder.py:167 in check"), read("int64", line="adder.py:172 in check")
    same = [[3, 100]]
    runs(
        outcome(right, guess, requests=same),
        outcome(dict(right, **ONE), requests=same),
        outcome(right, dict(guess, **ONE), requests=same),
    )
    assert settle(plan()).word == "fits"


CHECKED = "model.py:7 in check"
FAILS: dict[str, Any] = {"exit_code": 1, "error": "ValueError", "error_line": CHECKED}


def test_beyond_a_check_that_ends_the_program_other_bools_are_tried(runs: Runs) -> None:
    check, stop = read("bool", line=CHECKED), read("bool", line="train.py:40 in loop")
    first = outcome(check, stop, requests=[3, 100])
    failed = outcome(dict(check, **ONE), **FAILS)
    beyond = outcome(check, dict(stop, **ONE), requests=[5, 200], peak=3 * GIB)
    plans = runs(first, failed, beyond)
    verdict = settle(plan())
    assert (verdict.word, verdict.most) == ("fits", 3 * GIB)
    assert [made.assume.kept for made in plans] == [(), (), (("model.py", 7),)]
    assert "model.py:7 (a check: with its other value the program ends there)" in said(verdict)
    assert "train.py:40 (no effect on memory, whether 0 or 1)" in said(verdict)


def test_what_a_check_hides_is_not_settled(runs: Runs) -> None:
    check, stop = read("bool", line=CHECKED), read("bool", line="train.py:40 in loop")
    failed = outcome(dict(check, **ONE), **FAILS)
    assert len(runs(outcome(check, stop), failed, failed)) == 0
    assert settle(plan()).word == "unsure"


def test_a_number_that_makes_the_program_fail_is_no_check(runs: Runs) -> None:
    number = read("int64", line=CHECKED)
    plans = runs(outcome(number), outcome(dict(number, **ONE), **FAILS))
    verdict = settle(plan())
    assert (verdict.word, len(plans)) == ("unsure", 2)
    assert verdict.because.endswith("it ends with ValueError")


def test_a_loss_that_a_loop_waits_for_is_found_by_a_second_run(runs: Runs) -> None:
    plans = runs(outcome(read()), killed())
    verdict = settle(plan())
    assert (verdict.word, len(plans)) == ("unsure", 2)
    assert "with 1 instead of 0 for `loss.item()` at train.py:31" in verdict.because


def test_a_loss_that_nothing_depends_on_stays_a_fit(runs: Runs) -> None:
    runs(outcome(read(), requests=[3, 100]), outcome(read(**ONE), requests=[3, 100]))
    assert settle(plan()).word == "fits"


def test_a_search_does_not_run_everything_twice_for_a_loss(runs: Runs) -> None:
    assert len(runs(outcome(read()))) == 0
    assert settle(plan(), thorough=False).word == "fits"


def test_a_program_that_asks_for_other_memory_in_each_run_is_not_said_to_depend_on_a_loss(runs: Runs) -> None:
    runs(*(outcome(read(assumed=one), requests=[3, total]) for one, total in ((0, 100), (1, 104), (0, 108))))
    assert settle(plan()).word == "fits"


def test_with_ones_it_may_not_fit(runs: Runs) -> None:
    runs(outcome(read("int64")), outcome(read("int64", **ONE), exit_code=1, failure=out_of_memory(), peak=14 * GIB))
    verdict = settle(plan())
    assert verdict.word == "unsure"
    assert verdict.because.endswith("it does not fit")


def test_a_value_that_could_not_be_changed_is_not_settled(runs: Runs) -> None:
    runs(outcome(read("int64")), outcome(read("int64")))
    assert "1 could not be tried" in settle(plan()).because


def test_what_does_not_fit_with_nothing_found_either_does_not_fit(runs: Runs) -> None:
    failed = outcome(size(GIB, 2 * GIB), exit_code=1, failure=out_of_memory(), peak=14 * GIB)
    plans = runs(failed, outcome(exit_code=1, failure=out_of_memory(), peak=14 * GIB))
    assert settle(plan()).word == "does not fit"
    assert [made.assume.nonzero for made in plans] == ["all", "none"]


def test_what_fits_with_nothing_found_is_unsure(runs: Runs) -> None:
    failed = outcome(size(GIB, 2 * GIB), exit_code=1, failure=out_of_memory(), peak=14 * GIB)
    runs(failed, outcome())
    verdict = settle(plan())
    assert (verdict.word, verdict.because) == ("unsure", "with nonzero=none it fits")


def test_what_fits_is_tried_with_nothing_found_which_gives_the_lower_end(runs: Runs) -> None:
    plans = runs(outcome(size(GIB, GIB), peak=4 * GIB), outcome(size(0, GIB, assumed=0), peak=2 * GIB))
    verdict = settle(plan())
    assert (verdict.word, verdict.least, verdict.most) == ("fits", 2 * GIB, 4 * GIB)
    assert [made.assume.nonzero for made in plans] == ["all", "none"]


def test_what_needs_more_if_nothing_is_found_gives_the_upper_end(runs: Runs) -> None:
    runs(outcome(size(GIB, GIB), peak=4 * GIB), outcome(size(0, GIB, assumed=0), peak=6 * GIB))
    verdict = settle(plan())
    assert (verdict.word, verdict.least, verdict.most) == ("fits", 3 * GIB, 6 * GIB)


def test_what_does_not_fit_if_nothing_is_found_is_unsure(runs: Runs) -> None:
    failed = outcome(size(0, GIB, assumed=0), exit_code=1, failure=out_of_memory(), peak=14 * GIB)
    runs(outcome(size(GIB, GIB), peak=4 * GIB), failed)
    verdict = settle(plan())
    assert (verdict.word, verdict.because) == ("unsure", "with nonzero=none it does not fit")


def test_a_program_that_ends_if_nothing_is_found_keeps_its_verdict(runs: Runs) -> None:
    runs(outcome(size(GIB, GIB), peak=4 * GIB), outcome(exit_code=1, error="IndexError: empty"))
    verdict = settle(plan())
    assert (verdict.word, verdict.least) == ("fits", 3 * GIB)


def test_a_number_of_elements_that_the_user_gave_is_not_tried_otherwise(runs: Runs) -> None:
    plans = runs(outcome(size(GIB, GIB, given=True), peak=4 * GIB))
    assert settle(plan()).word == "fits"
    assert len(plans) == 1


def test_both_ends_of_nonzero_give_a_range(runs: Runs) -> None:
    plans = runs(outcome(size(GIB, GIB), peak=4 * GIB), outcome(size(0, 0), peak=3 * GIB))
    verdict = settle(plan(spread=True))
    assert (verdict.word, verdict.least, verdict.most) == ("fits", 3 * GIB, 4 * GIB)
    assert [made.assume.nonzero for made in plans] == ["all", "none"]


def test_no_second_run_leaves_the_doubt(runs: Runs) -> None:
    runs(outcome(read("int64")))
    assert settle(plan(), again=False).word == "unsure"


def test_the_arena_is_tried_where_only_pieces_are_missing(runs: Runs) -> None:
    failed = outcome(exit_code=1, failure=out_of_memory(), peak=14 * GIB)
    plans = runs(failed, outcome())
    verdict = tried_with_arena(settle(plan()))
    assert (verdict.word, verdict.with_arena) == ("does not fit", True)
    assert [made.allocator for made in plans] == ["native", "arena"]


def test_the_arena_is_not_tried_where_live_data_is_too_much(runs: Runs) -> None:
    failed = outcome(exit_code=1, failure=out_of_memory(12 * GIB), peak=14 * GIB)
    runs(failed)
    assert tried_with_arena(settle(plan())).with_arena is None


def test_assumptions_reach_the_program(runs: Runs) -> None:
    plans = runs(outcome())
    settle(plan(assume=Assumptions.parse("nonzero=half\nboxes.py:258=1000")))
    assert plans[0].assume.text() == "nonzero=half\nboxes.py:258=1000"
