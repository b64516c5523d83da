"""The page in a browser: it shows the report's figures, works with pointer and keys, and makes no requests."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import arena
from arena._inspect.holders import Holder
from arena._report import Report, html
from arena._report.build import MOST_BLOCKS
from arena._util.sizes import format_size

from .browser import Open, contrast

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</script>\u202eü漢"


@pytest.fixture(scope="module")
def traced() -> Iterator[None]:
    arena._core.pass_over_lines_in(str(Path(arena.__file__).parent) + "/")
    arena._core.trace_lines(1)
    yield
    arena._core.trace_lines(0)


def load(pool: arena.Arena, size: int) -> arena.Buffer:
    return pool.allocate(size)


@pytest.fixture(scope="module")
def report(traced: None) -> Report:
    """The report of a program that freed every second block."""
    numbers = random.Random(1)
    with arena.Arena(device="sim:8GiB", cap="1GiB", headroom="512MiB") as pool:
        with pool.scope("warm"), pool.scope("up"):
            kept = [load(pool, numbers.choice([1000, 70_000, 500_000, 3 << 20])) for _ in range(200)]
        del kept[::2]
        return pool.report()


@pytest.fixture(scope="module")
def many(traced: None) -> Report:
    """The report of a program with 100,000 live blocks, and as many free pieces between them."""
    numbers = random.Random(1)
    with arena.Arena(device="sim:8GiB") as pool:
        kept = [pool.allocate(numbers.choice([512, 1000, 4096, 30_000])) for _ in range(200_000)]
        del kept[::2]
        return pool.report()


@pytest.fixture
def empty() -> Report:
    with arena.Arena(device="sim:8GiB") as pool:
        return pool.report()


def a_live_block(report: Report) -> int:
    return next(i for i, block in enumerate(report.blocks) if block.state == "live" and block.size >= 3 << 20)


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def test_the_figures_on_the_page_are_those_of_the_json(report: Report, show: Open) -> None:
    data = report.to_dict()
    account, device = data["account"], data["device"]
    with show(report) as tab:
        rows = {row[0]: row for row in tab.rows("account")}
        reasons = ("requested", "rounding", "pending", "captured", "releasable", "stranded", "spare")
        assert {name: number(rows[name][1]) for name in reasons} == {name: account[name] for name in reasons}
        assert [rows[name][3] for name in reasons] == [f"{account[name] / account['reserved']:.1%}" for name in reasons]
        assert number(rows["= reserved"][1]) == account["reserved"] == sum(account[name] for name in reasons)
        assert rows["= reserved"][4] == f"of a cap of {account['cap']:,}, with a headroom of {account['headroom']:,}"
        assert number(rows["device"][1]) == device["total"]
        assert rows["device"][4] == f"{device['free']:,} free"
        assert number(rows["outside"][1]) == device["outside"]
        assert number(rows["addresses"][1]) == device["addresses"]
        assert {row[0]: tuple(row[1:3]) for row in tab.rows("fragmentation")} == {
            name: tuple(f"{data['fragmentation'][when][name]:.1%}" for when in ("now", "peak"))
            for name in ("external", "contiguous", "internal")
        }
        assert [number(row[1]) for row in tab.rows("largest")] == [
            data["largest"][name] for name in ("now", "after_trim", "without_moving", "with_moving")
        ]
        assert {row[0]: number(row[1]) for row in tab.rows("counts")} == data["counts"]
        for kind in ("lines", "scopes", "ages"):
            found = [(row[0], number(row[1]), number(row[3])) for row in tab.rows(kind)]
            assert found == [(holder["name"], holder["bytes"], holder["blocks"]) for holder in data[kind]]
            assert found
        found = [(int(row[0], 16), number(row[1]), number(row[3])) for row in tab.rows("streams")]
        assert found == [(use["stream"], use["bytes"], use["blocks"]) for use in data["streams"]]
        assert [(number(row[1]), number(row[2]), int(row[3], 16)) for row in tab.rows("pins")] == [
            (pin["holds_back"], pin["size"], pin["address"]) for pin in data["pins"]
        ]
        rows_of_sizes = [tuple(map(number, row[1:])) for row in tab.rows("sizes")]
        assert tuple(map(sum, zip(*rows_of_sizes, strict=True))) == tuple(
            sum(size[what] for size in data[kind])
            for kind in ("live_sizes", "free_sizes")
            for what in ("count", "bytes")
        )
        assert tab.page.inner_text(".caption") == data["caption"]


def test_the_page_says_why_a_request_failed_and_what_is_next(report: Report, show: Open) -> None:
    failed = dataclasses.replace(report, verdict="headroom kept", request=3 << 30, notes=["free something"])
    with show(failed) as tab:
        assert tab.page.inner_text(".verdict") == "A request of 3 GiB failed: headroom kept."
        assert tab.page.inner_text(".next") == "Next: free something"


def test_pointing_at_a_block_shows_its_size_age_and_line(report: Report, show: Open) -> None:
    index = a_live_block(report)
    block = report.blocks[index]
    with show(report) as tab:
        assert tab.page.is_hidden("#map-tip")
        tab.bring("#map")
        place = tab.place_of(index)
        tab.page.mouse.move(place["x"], place["y"])
        tab.page.wait_for_selector("#map-tip", state="visible")
        said = tab.block("#map-tip")
        assert said["Size"] == f"{format_size(block.size)} ({block.size:,} bytes)"
        assert said["Age"].endswith(" s")
        assert said["Line"] == block.line
        assert "test_page.py:" in block.line
        assert (said["Scope"], said["Stream"], said["State"]) == ("warm/up", "0x0", "live")
        assert int(said["Address"], 16) == block.address
        tab.page.mouse.move(2, 2)
        tab.page.wait_for_selector("#map-tip", state="hidden")


def test_the_keyboard_shows_the_same(report: Report, show: Open) -> None:
    index = a_live_block(report)
    with show(report) as tab:
        tab.bring("#map")
        place = tab.place_of(index)
        tab.page.mouse.move(place["x"], place["y"])
        pointed = tab.block("#map-tip")
        for _ in range(100):  # with keys alone
            tab.page.keyboard.press("Tab")
            if tab.page.evaluate("document.activeElement.id") == "map":
                break
        assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        tab.page.keyboard.press("Home")
        for _ in range(index):
            tab.page.keyboard.press("ArrowRight")
        assert tab.block("#map-details[aria-live=polite]") == pointed
        tab.page.keyboard.press("ArrowLeft")
        assert tab.block("#map-details") != pointed


def test_keys_zoom_from_the_whole_to_a_single_block_and_back(report: Report, show: Open) -> None:
    smallest = min(range(len(report.blocks)), key=lambda i: report.blocks[i].size)
    with show(report) as tab:
        whole = tab.page.inner_text("#map-range")
        assert tab.place_of(smallest)["width"] < 1
        tab.page.focus("#map")
        tab.page.keyboard.press("Home")
        for _ in range(smallest):
            tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.press("+")
        tab.page.wait_for_function("whole => document.querySelector('#map-range').innerText !== whole", arg=whole)
        tab.page.keyboard.press("Enter")
        assert tab.place_of(smallest)["width"] > 100
        tab.page.keyboard.press("0")
        tab.page.wait_for_function("whole => document.querySelector('#map-range').innerText === whole", arg=whole)


def test_the_largest_blocker_can_be_shown_on_the_map(report: Report, show: Open) -> None:
    with show(report) as tab:
        tab.page.click("table.pins button >> nth=0")
        assert int(tab.block("#map-details")["Address"], 16) == report.pins[0].address
        assert tab.page.evaluate("document.activeElement.id") == "map"


def test_every_control_has_a_name_and_every_table_a_caption(report: Report, show: Open) -> None:
    with show(report) as tab:
        named = "e => e.innerText || e.ariaLabel || e.labels?.length"
        assert tab.page.evaluate(f"[...document.querySelectorAll('button, input, #map')].every({named})")
        assert tab.page.evaluate(
            "[...document.querySelectorAll('table')].every(e => e.caption.innerText || !e.checkVisibility())"
        )
        assert tab.page.evaluate("[...document.querySelectorAll('th')].every(e => ['row', 'col'].includes(e.scope))")


def test_the_histogram_has_a_bar_for_every_size_by_bytes_or_by_number(report: Report, show: Open) -> None:
    widths = "[...document.querySelectorAll('.histogram .one > i')].map(bar => bar.getBoundingClientRect().width)"
    found = [size for size in (*report.live_sizes, *report.free_sizes) if size.count]
    with show(report) as tab:
        assert tab.page.locator(".histogram .size").count() == len({size.low for size in found})
        for measure in ("bytes", "count"):
            tab.page.check(f"input[value={measure}]")
            drawn = sorted(tab.page.evaluate(widths))
            wanted = sorted(getattr(size, measure) for size in found)
            assert len(drawn) == len(wanted) > 3
            for width, value in zip(drawn, wanted, strict=True):
                assert width == pytest.approx(max(1, drawn[-1] * value / wanted[-1]), abs=1)


def test_a_page_is_small_and_needs_no_library(report: Report, many: Report, tmp_path: Path) -> None:
    for number, one in enumerate((report, many)):
        path = one.save(tmp_path / f"{number}.html")
        assert path.stat().st_size < 2_000_000
        assert "lotly" not in path.read_text()


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_is_readable_in_light_and_dark_mode(mode: str, report: Report, show: Open) -> None:
    with show(dataclasses.replace(report, notes=["free something"]), mode=mode) as tab:
        page = tab.colour("body", "backgroundColor")
        assert (sum(page) < 1) == (mode == "dark")
        for selector in ("body", "h1", ".caption", ".made", "caption", "td", "#map-help"):
            assert contrast(tab.colour(selector, "color"), page) >= 4.5, selector
        for selector, behind in ((".tiles dt", ".tiles > div"), ("button", "button"), (".next", ".next")):
            assert contrast(tab.colour(selector, "color"), tab.colour(behind, "backgroundColor")) >= 4.5, selector
        for reason in ("requested", "pending", "captured", "releasable", "stranded", "spare"):
            name = f"--{reason}"
            value = tab.page.evaluate("name => getComputedStyle(document.body).getPropertyValue(name)", name)
            assert contrast(tuple(int(value[i : i + 2], 16) / 255 for i in (1, 3, 5)), page) >= 3, reason


def test_the_plots_follow_a_change_of_mode(report: Report, show: Open) -> None:
    picture = "document.querySelector('#map canvas').toDataURL()"
    with show(report) as tab:
        light, text = tab.page.evaluate(picture), tab.colour(".histogram .size", "color")
        tab.page.emulate_media(color_scheme="dark")
        tab.page.wait_for_function(f"light => {picture} !== light", arg=light)
        assert contrast(text, (1, 1, 1)) > 4.5
        assert contrast(tab.colour(".histogram .size", "color"), tab.colour("body", "backgroundColor")) > 4.5


def test_a_report_of_100000_blocks_opens_in_under_2_seconds(many: Report, show: Open) -> None:
    assert many.counts["blocks"] == 100_000
    assert len(many.blocks) <= MOST_BLOCKS
    assert sum(block.size for block in many.blocks) == many.account["reserved"] - many.account["spare"]
    assert sum(block.size for block in many.blocks if block.state == "live") == many.account["live"]
    with show(many) as tab:
        assert int(tab.page.get_attribute("html", "data-drawn") or "") < 2000


def test_names_are_only_ever_text(report: Report, show: Open) -> None:
    index = a_live_block(report)
    blocks = [dataclasses.replace(block, line=HOSTILE, scope=HOSTILE) for block in report.blocks]
    hostile = dataclasses.replace(
        report,
        device={**report.device, "name": HOSTILE},
        caption=HOSTILE,
        verdict=HOSTILE,
        notes=[HOSTILE],
        lines=[dataclasses.replace(holder, name=HOSTILE) for holder in report.lines],
        scopes=[dataclasses.replace(holder, name=HOSTILE + "\udcff") for holder in report.scopes],
        pins=[dataclasses.replace(pin, line=HOSTILE, scope=HOSTILE) for pin in report.pins],
    )
    vars(hostile)["blocks"] = blocks
    with show(hostile) as tab:
        assert tab.rows("lines")[0][0] == HOSTILE
        assert tab.rows("scopes")[0][0] == HOSTILE + "\\udcff"
        assert HOSTILE in tab.rows("pins")[0][0]
        assert HOSTILE in (tab.page.text_content("h1") or "")
        tab.bring("#map")
        place = tab.place_of(index)
        tab.page.mouse.move(place["x"], place["y"])
        assert tab.block("#map-tip")["Line"] == HOSTILE
        assert tab.page.locator("main img").count() == 0
    shown = html.render_inline(hostile)
    assert "<script" not in shown
    assert "<img" not in shown


def test_an_empty_report_is_a_page_too(empty: Report, show: Open) -> None:
    with show(empty) as tab:
        assert tab.page.inner_text(".caption") == "Nothing is reserved."
        tab.page.mouse.move(300, 300)
        tab.page.mouse.wheel(0, 3000)
        assert not tab.page.is_visible("#map")


CUT = """
    [...document.querySelectorAll("body *")]
        .filter(e => e.checkVisibility() && !e.matches(".part, .part *, #map *"))
        .filter(e => e.scrollWidth > e.clientWidth + 2 && getComputedStyle(e).overflowX !== "visible")
        .map(e => `${e.tagName}.${e.className}: ${e.innerText.slice(0, 40)}`)
"""


def failed(report: Report) -> Report:
    """The same with a failed request and long names."""
    long = "a/very/long/folder/of/a/program/that/trains.py:1234 in Trainer.run_one_epoch_of_the_whole_program"
    held = [Holder(long, 3 << 30, 123_456)]
    lines = [dataclasses.replace(holder, name=long) for holder in report.lines]
    pins = [dataclasses.replace(pin, line=long) for pin in report.pins]
    why = "Live data may not be moved."
    facts = {"verdict": "cap reached", "request": 3 << 30, "line": long, "why": why, "held": held, "notes": [why]}
    return dataclasses.replace(report, **facts, lines=lines, pins=pins)


@pytest.mark.parametrize("width", [360, 420, 1280])
def test_nothing_is_cut_off_or_scrolls_sideways(report: Report, show: Open, width: int) -> None:
    for one in (report, failed(report)):
        with show(one, width=width) as tab:
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.page.evaluate(CUT) == []
            chips = "[...document.querySelectorAll('.part')].map(e => [e, e.querySelector('.chip')]).filter(p => p[1])"
            below = "chip.offsetTop >= part.offsetTop + part.clientHeight"
            inside = f"([part, chip]) => {below} || chip.offsetWidth <= part.clientWidth"
            assert tab.page.evaluate(f"{chips}.every({inside})")  # a label is whole, or hidden


def test_the_printed_page_has_everything(report: Report, show: Open, tmp_path: Path) -> None:
    with show(failed(report), width=760) as tab:
        closed = "document.querySelectorAll('details:not([open])').length"
        assert tab.page.evaluate(closed) > 0
        tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        tab.page.emulate_media(media="print")
        assert tab.page.evaluate(closed) == 0
        assert tab.page.is_hidden("#map-in")
        assert tab.page.is_visible("table.sizes")
        assert tab.page.evaluate(CUT) == []
        bar = "getComputedStyle(document.querySelector('.bar .part')).printColorAdjust"
        assert tab.page.evaluate(bar) == "exact"  # otherwise browsers do not print backgrounds
        tab.page.emulate_media(media="screen")
        tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.page.evaluate(closed) > 0
        tab.page.pdf(path=tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").stat().st_size > 10_000


def test_the_bars_of_a_small_arena_on_a_large_device_are_visible(show: Open) -> None:
    with arena.Arena(device="sim:80GiB") as pool, pool.allocate(40 << 20), show(pool.report()) as tab:
        box = tab.page.locator(".bar").first.bounding_box()
        part = tab.page.locator(".bar .part.requested").first.bounding_box()
        assert part["width"] > 0.3 * box["width"]
        assert tab.page.locator(".bars .bar").count() == 2  # as a share of the device nothing would be visible
        assert tab.page.inner_text(".device").startswith("The device, 80 GiB: this arena ")


def test_a_notebook_shows_a_picture_without_any_script(report: Report) -> None:
    shown = report._repr_html_()
    assert "<script" not in shown
    assert "http" not in shown
    assert report.caption in shown
    for name in ("requested", "stranded"):
        assert f"{report.account[name]:,}" in shown
    assert len(shown) < 100_000
