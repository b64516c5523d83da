"""The profiles that come with arena: one file for each card in ``data/``."""

from __future__ import annotations

import difflib
import functools
import os
import re
from pathlib import Path

from ..errors import UsageError
from .model import Card
from .read import read_card

__all__ = ["card_names", "find_card", "profile_path", "read_cards"]

DATA = Path(__file__).parent / "data"


@functools.cache
def card_names() -> tuple[str, ...]:
    """The names of all cards, in alphabetical order."""
    return tuple(sorted(file.stem for file in DATA.glob("*.toml")))


@functools.cache
def read_cards() -> tuple[Card, ...]:
    """All cards, from the smallest memory to the largest."""
    found = [read_card(DATA / f"{name}.toml") for name in card_names()]
    return tuple(sorted(found, key=lambda card: (card.memory, card.key)))


def find_card(card: str | os.PathLike[str]) -> Card:
    """The card of that name, or of the profile at that path."""
    return read_card(profile_path(card))


def profile_path(card: str | os.PathLike[str]) -> Path:
    """The file of a card: a name is one of :func:`card_names`, however it is written; anything else is a path.

    >>> profile_path("RTX 4090").name
    'rtx4090.toml'
    >>> profile_path("rtx4009")
    Traceback (most recent call last):
        ...
    arena.errors.UsageError: there is no card 'rtx4009'; did you mean rtx4090, rtx4080 or rtx4070? ...
    """
    text = os.fspath(card)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"card={card!r} is not accepted; write a name, such as rtx4090, or the path of a profile")
    if (name := _known().get(_plain(text))) is not None:
        return DATA / f"{name}.toml"
    if isinstance(card, os.PathLike) or os.sep in text or text.endswith(".toml") or os.path.exists(text):
        return Path(text)
    raise UsageError(f"there is no card {text!r}; {_hint(text)}")


@functools.cache
def _known() -> dict[str, str]:
    return {_plain(name): name for name in card_names()}


def _plain(text: str) -> str:
    """Without what people write differently: ``RTX 4090``, ``rtx-4090``, ``NVIDIA GeForce RTX 4090``."""
    words = re.sub(r"(?i)\b(nvidia|geforce|tesla)\b", "", text)
    return re.sub(r"[\s_-]+", "", words).lower().removesuffix("gb")


def _hint(text: str) -> str:
    plain, known = _plain(text), _known()
    near = [known[one] for one in known if one.startswith(plain)] if len(plain) > 1 else []
    near = near or [known[one] for one in difflib.get_close_matches(plain, known, 3)]
    listed = f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else "".join(near)
    return f"did you mean {listed}? arena cards lists all" if near else "arena cards lists all"
