"""A headless browser, and pages that notice every error and every request."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def browser() -> Iterator[Any]:
    """Open a browser. Without one the test is skipped, or fails if CI is set."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no Chromium: .ci/get_chromium.sh gets it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield opened
        opened.close()


class Tab:
    """An open page with its own color mode and width. At the end it must have requested nothing but its file."""

    def __init__(self, browser: Any, path: Path, mode: str = "light", width: int = 1200) -> None:
        self.context = browser.new_context(color_scheme=mode, viewport={"width": width, "height": 1000})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self.note_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append("a dialog"), dialog.dismiss()))
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def note_message(self, message: Any) -> None:
        """Keep what the page's own scripts cause. A busy Chromium makes remarks of its own, which name no page."""
        if message.type in ("error", "warning", "assert") or message.location.get("url") == self.url:
            self.errors.append(f"{message.type}: {message.text}")

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.context.close()
        if kind is None:
            assert self.errors == [], self.errors
            assert self.requests == [self.url], self.requests

    def rows(self, kind: str) -> list[list[str]]:
        """The text of the body of all tables of a kind."""
        rows: list[list[str]] = self.page.evaluate(
            """kind => [...document.querySelectorAll(`table.${kind} tbody tr`)]
                .map(row => [...row.cells].map(cell => cell.textContent))""",
            kind,
        )
        return rows

    def block(self, selector: str) -> dict[str, str]:
        """The description of a block, in the box beside the pointer or in the one below the map."""
        found: dict[str, str] = self.page.evaluate(
            """selector => Object.fromEntries([...document.querySelectorAll(`${selector} .block div`)]
                .map(entry => [...entry.children].map(child => child.textContent)))""",
            selector,
        )
        return found

    def bring(self, selector: str) -> None:
        """Scroll there. The test then waits for what is drawn on demand."""
        self.page.evaluate(
            """selector => new Promise(done => {
                document.querySelector(selector).scrollIntoView({block: "center"});
                requestAnimationFrame(() => requestAnimationFrame(done));
            })""",
            selector,
        )

    def place_of(self, index: int) -> dict[str, float]:
        place: dict[str, float] = self.page.evaluate("index => arenaPage.placeOf(index)", index)
        return place

    def colour(self, selector: str, what: str) -> tuple[float, ...]:
        """The color as drawn: red, green and blue between 0 and 1."""
        value: str = self.page.evaluate(
            "([selector, what]) => getComputedStyle(document.querySelector(selector))[what]", [selector, what]
        )
        return tuple(int(part) / 255 for part in value[value.index("(") + 1 : -1].split(",")[:3])


Open = Callable[..., Tab]  # of a report


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The contrast ratio as the accessibility guidelines define it: text needs 4.5."""

    def light(colour: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
