"""Make the pictures of the documents from real output, in light and dark: `make pictures`, into docs/pictures.

Runs a program of examples/ with the arena on the simulated driver, and takes screenshots of its report, of a comparison
of two caps, of a Dask cluster, and of what the commands print, in a headless browser. Each picture must stay below
300 KB. With names as arguments, it makes only these pictures.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs/pictures"
LIMIT = 300_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SHOWN = "run --device sim:2GiB --cap 512MiB --report train.html --record train.arena train.py"

TERMINAL = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<style>
body {{ margin: 0; padding: 20px 24px; width: max-content; background: light-dark(#f6f8fa, #0d1117);
  color: light-dark(#1f2328, #e6edf3); font: 14px/1.35 "DejaVu Sans Mono", monospace; }}
pre {{ margin: 0; font: inherit; }}
b {{ font-weight: 600; color: light-dark(#0550ae, #79c0ff); }}
</style><html data-drawn><body><pre>{text}</pre></body></html>"""


CLUSTER = """
import logging, random, time
import arena.dask
from distributed import Client, LocalCluster, wait

def load(mib):
    return arena.dask.get_arena().allocate(mib << 20)

def merge(part, mib):
    scratch = arena.dask.get_arena().allocate(mib << 20)
    time.sleep(0.03)
    return arena.dask.get_arena().allocate(mib << 19)

if __name__ == "__main__":
    chance = random.Random(2)
    options = {"n_workers": 8, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.register_plugin(arena.dask.ArenaPlugin(cap="40%", device="round-robin", lines=True))
        workers = list(client.run(lambda: 0))
        kept = []
        for step in range(12):
            many = [chance.choices(workers, range(3, 11))[0] for _ in range(12)]
            parts = [client.submit(load, chance.randrange(8, 40), workers=[at], pure=False) for at in many]
            merged = [client.submit(merge, part, 24, workers=[at], pure=False) for part, at in zip(parts, many)]
            wait(merged)
            kept += merged[::2] + parts[::3]
            del merged, parts
        arena.dask.report(client).save("cluster.html")
"""


def arena(folder: Path, *arguments: str) -> str:
    """Run a command, and return what a terminal would show: the command line and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "arena", *arguments],
        cwd=folder,
        env={**os.environ, "ARENA_DRIVER": "sim", "COLUMNS": "80"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    printed = done.stdout.replace(f"{folder}/", "").rstrip()
    return f"<b>$ arena {html.escape(' '.join(arguments))}</b>\n{html.escape(printed)}\n"


def make_pages(folder: Path) -> None:
    (folder / "train.py").write_text((ROOT / "examples/train.py").read_text())
    run = arena(folder, *SHOWN.split())
    fit = arena(folder, "fit", "train.arena")
    arena(folder, "replay", "train.arena", "--cap", "456MiB", "--cap", "544MiB", "--save", "compare.html")
    (folder / "terminal.html").write_text(TERMINAL.format(text=f"{run}\n{fit}"))


def make_cluster_page(folder: Path) -> None:
    (folder / "pipeline.py").write_text(CLUSTER)
    machine = {"ARENA_DRIVER": "sim", "CUDASIM_DEVICES": "2"}
    subprocess.run([sys.executable, "pipeline.py"], cwd=folder, env={**os.environ, **machine}, check=True)


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit("make_pictures.py: there is no Chromium: .ci/get_chromium.sh installs it")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def of_section(title: str) -> Callable[[Any, str], None]:
    """A picture of the section with that title, with a margin."""

    def shoot(page: Any, path: str) -> None:
        page.add_style_tag(content=f"section[aria-labelledby={title}] {{ padding: 1px 20px 16px; margin: 0 }}")
        page.locator(f"section[aria-labelledby={title}]").screenshot(path=path)

    return shoot


# Tables and help are left out of the first picture so that it fits a screen.
LEFT_OUT = """section[aria-labelledby=account-title] .wide, #timeline-about, #timeline-details, #timeline-help,
section[aria-labelledby=timeline-title] details, #map-about { display: none }"""


def of_report(page: Any, path: str) -> None:
    """The overview, the account's bars, memory over time, and the map."""
    page.add_style_tag(content=LEFT_OUT)
    box = page.locator(".legend").first.bounding_box()
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": box["y"] + box["height"] + 6}
    page.screenshot(path=path, clip=clip, full_page=True)


def of_zoomed_map(page: Any, path: str) -> None:
    page.locator("#map").focus()
    page.keyboard.press("Home")
    for key in ["ArrowRight"] * 30 + ["+"] * 4:
        page.keyboard.press(key)
    of_section("map-title")(page, path)


def of_cluster(page: Any, path: str) -> None:
    """The overview, the workers, and memory over time."""
    page.add_style_tag(content=f"{LEFT_OUT} .workers .address {{ display: none }}")
    box = page.locator(".heat").bounding_box()
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": box["y"] + box["height"] + 12}
    page.screenshot(path=path, clip=clip, full_page=True)


def of_body(page: Any, path: str) -> None:
    page.locator("body").screenshot(path=path)


def of_comparison(page: Any, path: str) -> None:
    page.screenshot(path=path, full_page=True)


PICTURES: dict[str, tuple[str, Callable[[Any, str], None]]] = {
    "report": ("train.html", of_report),
    "map": ("train.html", of_zoomed_map),
    "timeline": ("train.html", of_section("timeline-title")),
    "comparison": ("compare.html", of_comparison),
    "cluster": ("cluster.html", of_cluster),
    "terminal": ("terminal.html", of_body),
}


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    too_large = []
    with tempfile.TemporaryDirectory() as name, browser() as opened:
        folder = Path(name)
        wanted = {name: PICTURES[name] for name in sys.argv[1:] or PICTURES}
        if set(wanted) - {"cluster"}:
            make_pages(folder)
        if "cluster" in wanted:
            make_cluster_page(folder)
        for picture, (page_name, shoot) in wanted.items():
            for mode in ("light", "dark"):
                context = opened.new_context(color_scheme=mode, viewport={"width": 1000, "height": 900})
                page = context.new_page()
                page.goto((folder / page_name).as_uri())
                page.wait_for_selector("html[data-drawn]", state="attached")
                path = TARGET / f"{picture}-{mode}.png"
                shoot(page, str(path))
                context.close()
                size = path.stat().st_size
                print(f"{path.relative_to(ROOT)}: {size:,} bytes")
                if size >= LIMIT:
                    too_large.append(path.name)
    if too_large:
        sys.exit(f"make_pictures.py: {LIMIT:,} bytes and more: {', '.join(too_large)}")


if __name__ == "__main__":
    main()
