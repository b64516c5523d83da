"""Price tables: built in, and read from files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from arena import sim
from arena.errors import UsageError

from ..programs import run
from .cu import Cu

MIB = 1 << 20
TABLE = """arena-prices 1
# a comment, and facts
device: A test card
measured: 2026-11-18T10:00:00Z

cuMemCreate     2MiB  10
cuMemCreate     8MiB  16
cuMemCreate    64MiB  72
cuMemUnmap         -  5.25
cuEventRecord      -  3
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "card.prices"
    path.write_text(TABLE)
    return path


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["arena-prices 1", *lines, ""]))
    return path


def refusal(path: object) -> str:
    before = sim.settings()
    with pytest.raises(UsageError) as error:
        sim.configure(prices=path)  # type: ignore[arg-type]
    assert sim.settings() == before
    return str(error.value)


def test_prices_between_measured_sizes_are_interpolated(machine: None, table: Path) -> None:
    sim.configure(prices=table)
    expected = {1: 10, 2: 10, 5: 13, 8: 16, 36: 44, 64: 72}
    assert {size: sim.price("cuMemCreate", size * MIB) for size in expected} == pytest.approx(expected)
    assert sim.price("cuMemUnmap", 1 << 40) == 5.25
    assert sim.price("cuMemMap", 2 * MIB) == 0
    assert sim.price("cuCtxRecordEvent") == sim.price("cuEventRecordWithFlags") == 3


def test_beyond_the_largest_size_prices_grow_and_never_fall(machine: None, tmp_path: Path) -> None:
    sim.configure(prices=write(tmp_path / "a", "cuMemCreate 2MiB 10", "cuMemCreate 32MiB 9", "cuMemCreate 64MiB 72"))
    assert sim.price("cuMemCreate", 126 * MIB) == pytest.approx(72 + 62)
    sim.configure(prices=write(tmp_path / "b", "cuMemUnmap 2MiB 10", "cuMemUnmap 64MiB 4"))
    assert sim.price("cuMemUnmap", 33 * MIB) == pytest.approx(7)
    assert sim.price("cuMemUnmap", 1 << 40) == 4


def test_calls_are_charged_by_the_size_of_their_memory(cu: Cu, tmp_path: Path) -> None:
    calls = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAlloc", "cuMemFree")
    rows = [f"{call} {size}MiB {size * 10**number}" for number, call in enumerate(calls) for size in (2, 8)]
    sim.configure(prices=write(tmp_path / "digits.prices", *rows))
    for size in (2, 4, 8):
        sim.reset_counts()
        address, handle = cu.mapped(size * MIB)
        cu.ok("cuMemUnmap", address, size * MIB)
        cu.ok("cuMemRelease", handle)
        cu.ok("cuMemFree", cu.alloc(size * MIB))
        assert sim.clock() == size * 1_111_111


def test_the_current_table_is_shown_with_its_facts(machine: None, table: Path) -> None:
    assert (sim.prices().name, sim.prices().label, sim.prices().facts) == ("a100", "a100", {})
    sim.configure(prices=str(table))
    found = sim.prices()
    assert found.name == sim.settings().prices == str(table)
    assert found.facts == {"device": "A test card", "measured": "2026-11-18T10:00:00Z"}
    assert found.label == "card.prices (A test card, 2026-11-18)"
    assert found.calls["cuMemCreate"] == ((2 * MIB, 10.0), (8 * MIB, 16.0), (64 * MIB, 72.0))
    sim.configure(prices="free")
    assert (sim.prices().calls, sim.price("cuMemCreate", MIB)) == ({}, 0)


def test_a_table_can_be_restored_after_its_file_is_gone(
    machine: None, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    sim.configure(prices=table.name)
    monkeypatch.chdir("/")
    with sim.temporarily(prices="small"):
        table.unlink()
        assert sim.price("cuMemUnmap") == 11
    assert sim.price("cuMemUnmap") == 5.25
    sim.reset()
    assert sim.price("cuMemUnmap") == 5.25


def test_a_file_is_read_again_each_time_it_is_set(machine: None, table: Path) -> None:
    sim.configure(prices=table)
    table.write_text(TABLE.replace("5.25", "6"))
    assert sim.price("cuMemUnmap") == 5.25
    sim.configure(prices=table)
    assert sim.price("cuMemUnmap") == 6


def test_the_environment_can_name_a_file(table: Path) -> None:
    code = "from arena import sim; print(sim.prices().label, sim.price('cuMemUnmap'))"
    done = run(code, check=True, CUDASIM_PRICES=str(table))
    assert done.stdout == "card.prices (A test card, 2026-11-18) 5.25\n"
    table.write_text("arena-prices 1\ncuMemCreate 2MiB ten\n")
    done = run(
        "from arena import sim\ntry: sim.settings()\nexcept sim.UsageError as e: print(e)", CUDASIM_PRICES=str(table)
    )
    assert done.stdout == (
        f"CUDASIM_PRICES: {table}, line 2: 'ten' of cuMemCreate is not accepted; write microseconds, a number from "
        "0 to 1000000000 such as 193.5\n"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cuMemCreate 2MiB", "a row of cuMemCreate with 2 columns; write 3, the call, the size and microseconds, or"),
        ("cuMemCreate 2MiB 1 2", "a row of cuMemCreate with 4 columns"),
        ("cuMemCreate 2MB 1", "the size '2MB' of cuMemCreate is not accepted; write a whole number with a unit"),
        ("cuMemCreate 0 1", "the size '0' of cuMemCreate"),
        ("cuMemCreate -2MiB 1", "the size '-2MiB' of cuMemCreate"),
        ("cuMemCreate 1.5MiB 1", "the size '1.5MiB' of cuMemCreate"),
        ("cuMemCreate 99999999999999999999 1", "the size '99999999999999999999' of cuMemCreate"),
        ("cuMemCreate 2097152GiB 1", "the size '2097152GiB' of cuMemCreate"),
        (
            "cuMemCreate 2MiB -1",
            "'-1' of cuMemCreate is not accepted; write microseconds, a number from 0 to 1000000000",
        ),
        ("cuMemCreate 2MiB -0", "'-0' of cuMemCreate"),
        ("cuMemCreate 2MiB nan", "'nan' of cuMemCreate"),
        ("cuMemCreate 2MiB inf", "'inf' of cuMemCreate"),
        ("cuMemCreate 2MiB 1e3", "'1e3' of cuMemCreate"),
        ("cuMemCreate 2MiB 0x10", "'0x10' of cuMemCreate"),
        ("cuMemCreate 2MiB 1,5", "'1,5' of cuMemCreate"),
        ("cuMemCreate 2MiB 1000000001", "'1000000001' of cuMemCreate"),
        ("cuMemCreate 2MiB " + "9" * 4000, "9...' of cuMemCreate"),
        ("cuMemCreate 2MiB 1 1 1 1 1 1 1 1 x", "'x' of cuMemCreate"),
        ("cuMemCreate_v2 2MiB 1", "'cuMemCreate_v2' is not a function of the driver; write its name without _v2"),
        ("cuMemGetInfo 2MiB 1", "the size '2MiB' of cuMemGetInfo, whose price does not depend on one; write -"),
        (
            "cuMemMap 2MiB 1\ncuMemMap 2MiB 2",
            "the size '2MiB' of cuMemMap comes after 2097152 bytes; write each size once",
        ),
        ("cuMemMap 8MiB 1\ncuMemMap 2MiB 2", "the size '2MiB' of cuMemMap comes after 8388608 bytes"),
        ("cuMemMap 8MiB 1\ncuMemMap - 2", "the size '-' of cuMemMap comes after 8388608 bytes"),
        ("cuMemMap - 1\ncuMemMap 2MiB 2", "the size '2MiB' of cuMemMap comes after a row for all sizes"),
        (
            "create 2MiB 1",
            "'create 2MiB 1' is neither a fact nor a price; write 'device: NAME', or 'cuMemCreate 2MiB 193'",
        ),
        ("{}", "'{}' is neither a fact nor a price"),
        ("device: a\ndevice: b", "the fact 'device' appears twice; write it once"),
        ("Device: a", "the fact 'Device' is not accepted; write its name in lower-case letters"),
        (": a", "the fact '' is not accepted"),
        ("device: \x1b[2J", "it has a control character"),
        ("cuMemMap\0 2MiB 1", "it has a control character"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(machine: None, tmp_path: Path, line: str, says: str) -> None:
    path = write(tmp_path / "bad.prices", line)
    text = refusal(path)
    number = 2 + line.count("\n")
    assert text.startswith(f"prices: {path}, line {number}: ")
    assert says in text
    assert len(text) < 512  # all of it is there


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a price file: its first line is not 'arena-prices 1'; arena measure writes one"),
        (b"\n", "is not a price file"),
        (b'{"version": 1}', "is not a price file"),
        (os.urandom(3000), "is not a price file"),
        (
            b"arena-prices 2\ncuMemMap - 1\n",
            "is a price file of version '2', but this arena reads version 1; update arena",
        ),
        (b"arena-prices 1", "has no prices; write a line for each call and size"),
        (b"arena-prices 1\ndevice: x\n", "has no prices"),
        (b"arena-prices 1\n" + b"#" * (1 << 20), "is not a price file: it is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_price_table_is_refused(machine: None, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.prices"
    path.write_bytes(content)
    assert f"prices: {path} {says}" in refusal(path)


def test_a_special_file_is_refused_without_waiting_for_it(machine: None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        assert f"{path} is not a regular file" in refusal(path)
    assert "'cheap' is not accepted; write a100, small, free, or the path of a file" in refusal("cheap")
    assert "there is no file with that name" in refusal(tmp_path / "nothing")
    assert "..." in refusal("x" * 3000)
    for wrong in ("", "a\0b", 7.5, b"a100", ["a100"]):
        refusal(wrong)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_refused(machine: None, table: Path) -> None:
    table.chmod(stat.S_IWUSR)
    assert f"{table} cannot be read: Permission denied" in refusal(table)


def test_file_names_need_not_be_text(machine: None, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b'/a"\\\xff\n.prices'))
    path.write_text(TABLE.replace("\n", "\r\n"))
    sim.configure(prices=path)
    assert sim.settings().prices == sim.prices().name == str(path)
    assert sim.prices().facts["device"] == "A test card"


@pytest.mark.parametrize(
    "arguments", [("cuMemMap_v2",), (None,), ("cuMemMap", -1), ("cuMemMap", 1 << 64), ("cuMemMap", True)]
)
def test_prices_of_unknown_calls_are_refused(machine: None, arguments: tuple[object, ...]) -> None:
    with pytest.raises(UsageError):
        sim.price(*arguments)  # type: ignore[arg-type]
