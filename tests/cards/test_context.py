"""What the CUDA context and kernels take: the rule, and the readings that it rests on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arena._cards import Card, card_names, context_range, find_card, loads_eagerly, read_card, read_cards, readings
from arena._cards.context import EAGER_LEAST, EAGER_MOST, LEAST_SHARE, MOST_MORE, least_context, typical_context

MIB = 1 << 20


@pytest.mark.parametrize("card", read_cards(), ids=lambda card: card.key)
def test_a_profile_has_the_least_by_the_rule_and_the_range_holds_all_readings(card: Card) -> None:
    threads = card.multiprocessors * card.threads_per_multiprocessor
    found, eager = context_range(card), context_range(card, eager=True)
    assert card.context == found.low == least_context(threads)
    assert found.high >= typical_context(threads) + MOST_MORE
    assert eager.low > found.low
    assert eager.high > found.high
    own = [one for one in readings() if card.key in one.cards]
    assert found.is_measured is any(one.loading != "eager" for one in own)
    for one in own:
        holds = eager if one.loading == "eager" else found
        assert holds.low <= one.mib * MIB <= holds.high, one.source


def test_the_rule_is_as_far_from_the_readings_as_the_documents_say() -> None:
    plain = [one for one in readings() if one.loading != "eager"]
    shares = [one.mib * MIB / typical_context(one.threads) for one in plain]
    more = [one.mib * MIB - typical_context(one.threads) for one in plain]
    assert LEAST_SHARE < min(shares) < LEAST_SHARE + 0.02
    assert max(shares) < 1.26
    assert max(more) < MOST_MORE / 2 + MIB
    eager = [one.mib * MIB - typical_context(one.threads) for one in readings() if one.loading == "eager"]
    assert EAGER_LEAST <= min(eager) < EAGER_LEAST + 10 * MIB
    assert EAGER_MOST - 10 * MIB < max(eager) <= EAGER_MOST


def test_every_reading_names_its_source_and_cards_that_exist() -> None:
    assert len(readings()) >= 30
    for one in readings():
        assert re.match(r"https://\S+$", one.source)
        assert set(one.cards) <= set(card_names())
        assert (one.loading in ("none", "lazy", "eager"), one.how in ("smi", "oom", "free")) == (True, True)
        for key in one.cards:  # the same chip, as far as threads go
            card = find_card(key)
            assert card.multiprocessors * card.threads_per_multiprocessor == one.threads, key


def test_a_profile_without_a_context_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(re.sub(r"context = .*\n", "", find_card("t4").path.read_text()))
    assert context_range(read_card(path)) == context_range(None)
    assert (context_range(None).low, context_range(None).high) == (0, 0)


def test_eager_loading_is_asked_for_by_the_variable_of_cuda() -> None:
    assert loads_eagerly({"CUDA_MODULE_LOADING": "EAGER"})
    assert not loads_eagerly({"CUDA_MODULE_LOADING": "LAZY"})
    assert not loads_eagerly({})
