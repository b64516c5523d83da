"""The settings of the plugin: checked where it is created, divided where a card is shared, and sent whole."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import arena
from arena._dask.settings import Settings
from arena.dask import ArenaPlugin

GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cap": "lots"}, "cap='lots' is not a size"),
        ({"cap": 1.5}, "cap=1.5 is not a size"),
        ({"reserve": -1}, "reserve=-1 is not a size"),
        ({"device": -1}, 'device=-1 is not accepted; write a number from 0 up, "round-robin", or a function'),
        ({"device": True}, "device=True is not accepted"),
        ({"device": "1"}, "device='1' is not accepted"),
        ({"workers_per_device": 0}, "workers_per_device=0 is not accepted; write a number of workers from 1 up"),
        ({"compact": "maybe"}, "compact='maybe' is not accepted"),
        ({"vmm": 1}, "vmm=1 is not accepted"),
        ({"timeline": None}, "timeline=None is not accepted"),
        ({"peers": 1}, "peers=1 is not accepted"),
        ({"frameworks": "cupy,jax"}, "'jax' is not a framework; choose from cupy, torch"),
        ({"frameworks": ["cupy"]}, "frameworks=['cupy'] is not accepted; write their names"),
        ({"lines": 65}, "lines=65 is not accepted; write True, False, or a number of lines up to 64"),
    ],
)
def test_a_setting_that_no_worker_could_use_is_refused_by_the_client(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(arena.UsageError) as caught:
        ArenaPlugin(**settings)
    assert text in str(caught.value)


def test_the_plugin_pickles_and_shows_what_was_given() -> None:
    plugin = ArenaPlugin(cap="4GiB", device=pickle.dumps, peers=[1], lines=2)
    again = pickle.loads(pickle.dumps(plugin))
    assert again.settings == plugin.settings
    assert repr(ArenaPlugin("4GiB", compact=False)) == "ArenaPlugin(cap='4GiB', compact=False)"


@pytest.mark.parametrize(
    ("settings", "sharing", "cap"),
    [
        (Settings(), 1, 8 * GIB),
        (Settings(), 4, 2 * GIB),
        (Settings(cap="50%"), 2, 2 * GIB),
        (Settings(cap=0.5), 4, 1 * GIB),
        (Settings(cap="3GiB"), 4, 3 * GIB),  # bytes are for each worker
        (Settings(cap="50%", workers_per_device=8), 2, GIB // 2),
    ],
)
def test_a_share_of_the_card_is_divided_and_bytes_are_not(
    settings: Settings, sharing: int, cap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARENA_CAP", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    assert settings.divided(8 * GIB, sharing)["cap"] == cap


def test_the_workers_environment_counts_where_the_plugin_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_CAP", "40%")
    monkeypatch.setenv("ARENA_RESERVE", "1GiB")
    assert Settings().divided(10 * GIB, 2) == {"cap": 2 * GIB, "reserve": GIB}
    assert Settings(cap="1GiB").divided(10 * GIB, 2)["cap"] == GIB
    monkeypatch.delenv("ARENA_CAP")
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "0")
    assert Settings().divided(10 * GIB, 2)["cap"] == 5 * GIB


def test_only_shares_depend_on_who_shares_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARENA_CAP", raising=False)
    monkeypatch.delenv("ARENA_RESERVE", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    assert Settings().depends_on_sharing
    assert Settings(cap="1GiB", reserve="10%").depends_on_sharing
    assert not Settings(cap="1GiB").depends_on_sharing
    assert not Settings(cap="50%", workers_per_device=2).depends_on_sharing
