"""Profiles of cards: those that come with arena, and your own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arena import UsageError
from arena._cards import Card, card_names, find_card, read_card, read_cards

GOOD = (Path(find_card("rtx4090").path)).read_text()

# CUDA C++ Programming Guide, technical specifications by compute capability: threads and blocks of a multiprocessor,
# and in KiB what a block can ask for and what a multiprocessor has of shared memory.
LIMITS = {
    "7.0": (2048, 32, 96, 96),
    "7.5": (1024, 16, 64, 64),
    "8.0": (2048, 32, 163, 164),
    "8.6": (1536, 16, 99, 100),
    "8.7": (1536, 16, 163, 164),
    "8.9": (1536, 24, 99, 100),
    "9.0": (2048, 32, 227, 228),
    "10.0": (2048, 32, 227, 228),
    "12.0": (1536, 24, 99, 100),
}


@pytest.mark.parametrize("card", read_cards(), ids=lambda card: card.key)
def test_a_profile_has_the_limits_of_its_compute_capability_and_names_its_sources(card: Card) -> None:
    threads, blocks, optin, shared = LIMITS[card.compute_capability]
    assert (card.threads_per_multiprocessor, card.blocks_per_multiprocessor) == (threads, blocks)
    assert (card.shared_per_block_optin, card.shared_per_multiprocessor) == (optin << 10, shared << 10)
    assert (card.shared_per_block, card.registers_per_multiprocessor) == (48 << 10, 1 << 16)
    assert any(re.match("memory|everything", line) for line in card.sources)
    assert card.integrated is (card.key == "orin-64")


@pytest.mark.parametrize("card", read_cards(), ids=lambda card: card.key)
def test_a_card_has_a_little_less_memory_than_its_name_says(card: Card) -> None:
    sold = int(m[1]) if (m := re.search(r"-(\d+)$", card.key)) else None
    if sold:
        # HBM is sold in GB, everything else in GiB.
        assert 0.9 * sold * 1e9 < card.memory < 1.08 * sold * 1e9
    assert card.memory % 4096 == 0


def test_cards_are_listed_by_memory_and_found_however_their_names_are_written() -> None:
    sizes = [card.memory for card in read_cards()]
    assert sizes == sorted(sizes)
    assert len(card_names()) == len(set(card_names())) == len(sizes) >= 23
    for name in ("rtx4090", "RTX 4090", "rtx-4090", "NVIDIA GeForce RTX 4090"):
        assert find_card(name).key == "rtx4090"
    assert find_card("A100 80GB").key == "a100-80"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rtx4009", "did you mean rtx4090, "),
        ("a100", "did you mean a100-40 or a100-80?"),
        ("", "write a name, such as rtx4090"),
        ("qqq", "arena cards lists all"),
    ],
)
def test_an_unknown_card_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(hint)):
        find_card(name)


def test_a_profile_of_your_own_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = GOOD.replace("memory = 25386352640", 'memory = "20GiB"  # two chips were removed')
    path.write_text(re.sub(r"context = .*\n", "", text))
    card = read_card(path)
    assert (card.key, card.memory, card.context, card.usable) == ("mine", 20 << 30, 0, 20 << 30)
    assert find_card(path) == find_card(str(path)) == card


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("multiprocessors = 128", "multiprocesors = 128", ":5: there is no key multiprocesors; did you mean multiproc"),
        ("multiprocessors = 128", "colour = 128", "there is no key colour; there are name, "),
        (
            "multiprocessors = 128",
            "multiprocessors = 0",
            "s = 0 is not accepted; write a whole number from 1",
        ),
        ("multiprocessors = 128", "multiprocessors = 1e3", "multiprocessors = 1e3 is not accepted"),
        ("multiprocessors = 128", "multiprocessors 128", "is not accepted; write key = value"),
        ("multiprocessors = 128\n", "", "has no multiprocessors; a profile has name, "),
        ("integrated = false", "integrated = 0", "integrated = 0 is not accepted; write true or false"),
        ('"8.9"', "8.9", 'compute_capability = 8.9 is not accepted; write a text, "8.9"'),
        ("memory = 25386352640", 'memory = "24 cats"', 'memory = "24 cats" is not accepted; write bytes'),
        ("memory = 25386352640", "memory = -1", "memory = -1 is not accepted; write bytes"),
        ("memory = 25386352640", "memory = 0", "memory = 0 is not accepted; write more than nothing"),
        ("bus_width = 384", "bus_width = 384\nbus_width = 384", "bus_width is there twice; keep one"),
        ('"NVIDIA GeForce RTX 4090"', '""', "write a text of up to 255 bytes"),
    ],
)
def test_what_is_wrong_in_a_profile_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    body = "\n".join(line for line in GOOD.splitlines() if not line.startswith("#")) + "\n"
    assert f"\n{old}" in body or old in body
    path.write_text(body.replace(f"\n{old}", f"\n{new}", 1) if f"\n{old}" in body else body.replace(old, new, 1))
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        read_card(path)
    assert str(error.value).startswith(str(path))


def test_only_the_beginning_of_an_endless_file_is_read() -> None:
    with pytest.raises(UsageError, match="/dev/full is not the profile of a card"):
        find_card("/dev/full")


def test_what_is_no_profile_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing.toml cannot be read: No such file"):
        read_card(tmp_path / "missing.toml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        find_card(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\0")
    with pytest.raises(UsageError, match="is not the profile of a card"):
        read_card(binary)
