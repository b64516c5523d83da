"""``arena cards``, typed as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arena import sim

from .test_cli import run_arena


def test_all_cards_are_listed_and_the_last_line_is_the_next_command() -> None:
    done = run_arena("cards")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["card", "memory", "compute", "capability", "SMs", "shared", "L2"]
    assert [line.split()[0] for line in lines[1 : len(sim.cards()) + 1]] == [card.key for card in sim.cards()]
    assert "rtx4090 23.64 GiB 8.9 128 99 KiB 72 MiB" in [" ".join(line.split()) for line in lines]
    assert lines[-1] == "Next: arena dryrun --card rtx4090 YOUR_SCRIPT.py"
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout


def test_one_card_is_shown_with_its_sources() -> None:
    done = run_arena("cards", "RTX 4090")
    assert "rtx4090: NVIDIA GeForce RTX 4090" in done.stdout
    assert "23.64 GiB (25,386,352,640 bytes)" in done.stdout
    assert "with kernels 350 to 654 MiB" in done.stdout
    reading = "  400 MiB  RTX 4090, Ollama, no framework: https://github.com/ollama/ollama/pull/6279"
    assert reading in done.stdout
    assert "with kernels 77 to 339 MiB, interpolated" in run_arena("cards", "gtx1650").stdout
    for line in sim.card("rtx4090").sources:
        assert line in done.stdout
    assert done.stdout.splitlines()[-1] == "Next: arena dryrun --card 'RTX 4090' YOUR_SCRIPT.py"


def test_machines_get_every_figure() -> None:
    every = json.loads(run_arena("cards", "--json").stdout)
    one = json.loads(run_arena("cards", "t4", "--json").stdout)
    assert [card["key"] for card in every] == [card.key for card in sim.cards()]
    assert one in every
    assert (one["memory"], one["compute_capability"], one["multiprocessors"]) == (15095 << 20, "7.5", 40)
    assert one["context_range"] == [one["context"], 385 << 20]
    assert [(found["mib"], found["loading"]) for found in one["readings"]] == [(135, "lazy")]


def test_a_profile_can_be_printed_changed_and_read_again(tmp_path: Path) -> None:
    text = run_arena("cards", "rtx4090", "--toml").stdout
    assert text == sim.card("rtx4090").path.read_text()
    path = tmp_path / "half.toml"
    path.write_text(text.replace("memory = 25386352640", 'memory = "12GiB"'))
    assert "12 GiB (12,884,901,888 bytes)" in run_arena("cards", path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h100",), "there is no card 'h100'; did you mean h100-80 or h100-nvl? arena cards lists all"),
        (("missing.toml",), "missing.toml cannot be read: No such file or directory"),
        (("--toml",), "--toml prints one profile: name the card, and leave out --json"),
        (("t4", "--toml", "--json"), "--toml prints one profile"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = run_arena("cards", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"arena: {message}")
    assert len(done.stderr.splitlines()) == 1
