"""Settings, faults, counters and the clock, from Python and from the environment; and the errors of invalid ones."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest

from arena import UsageError, sim
from arena._util.sizes import parse_size

from .. import forked
from ..programs import run
from .cu import GIB, MIB, NOT_READY, OUT_OF_MEMORY, SUCCESS, Cu, prop

INIT = "from tests.simulated.cu import Cu; cu = Cu(); print(cu.cuInit(0))"


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("CUDASIM_MEMORY", "lots", "a number of bytes"),
        ("CUDASIM_MEMORY", "1KiB", "from 2MiB to 1TiB"),
        ("CUDASIM_MEMORY", "8GiB,", "a list (8GiB,24GiB)"),
        ("CUDASIM_MEMORY", "8GBB", "a number with a unit (80GiB, 512M, 80GB)"),
        ("CUDASIM_MEMORY", "-1", "a number of bytes"),
        ("CUDASIM_MEMORY", "nan", "a number of bytes"),
        ("CUDASIM_MEMORY", "1e99GiB", "a number of bytes"),
        ("CUDASIM_DEVICES", "many", "a number from 0 to 16"),
        ("CUDASIM_DEVICES", "17", "a number from 0 to 16"),
        ("CUDASIM_GRANULARITY", "3MiB", "a power of two from 64KiB to 1GiB"),
        ("CUDASIM_VMM", "yes", "0 or 1"),
        ("CUDASIM_VERSION", "13.0", "13000 for 13.0"),
        ("CUDASIM_DELAY", "1ms", "microseconds"),
        ("CUDASIM_OTHER", "all", "a number of bytes"),
        ("CUDASIM_PRICES", "h100", "a100, small, free, or the path of a file"),
        ("CUDASIM_RACES", "true", "0, 1, or print"),
        ("CUDASIM_VALUES", "all", "0 or 1"),
        ("CUDASIM_FAIL", "cuMemCreate", "FUNCTION:NTH:ERROR"),
        ("CUDASIM_FAIL", "cuMemCreat:1:2", "the name of a function of the driver"),
        ("CUDASIM_FAIL", "cuMemCreate:1:OOM", "the name or number of an error"),
        ("CUDASIM_FAIL", "cuMemCreate:0:2", "FUNCTION:NTH:ERROR"),
        ("CUDASIM_FAIL", "cuMemCreate:1:2:0", "FUNCTION:NTH:ERROR:TIMES"),
        ("CUDASIM_DEAD", "1", "report, print (which also writes"),
        ("CUDASIM_REUSE", "never", "0 or 1"),
        ("CUDASIM_PEERS", "0+1", "all, none, or pairs of devices with commas"),
        ("CUDASIM_PEERS", "", "all, none, or pairs of devices with commas"),
        ("CUDASIM_EXCLUSIVE", "0,all", "numbers of devices with commas"),
        ("CUDASIM_EXCLUSIVE", "16", "numbers of devices with commas"),
        ("CUDASIM_RDMA", "maybe", "0, 1, or broken"),
        ("CUDASIM_ADDRESS_SPACE", "all", "a number of bytes"),
        ("CUDASIM_PAGE_CACHE", "-1", "a number of bytes"),
        ("CUDASIM_MEMROY", "8GiB", "the settings are card, devices, memory"),
        ("CUDASIM_MEMORY", "", "a number of bytes"),
    ],
)
def test_an_invalid_variable_is_named_with_its_value_and_what_is_accepted(
    variable: str, value: str, accepted: str
) -> None:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        return forked.run(code, imported=("arena", "tests.simulated.cu"), **{variable: value})

    done = run(INIT)
    assert done.stdout == "CUDA_ERROR_INVALID_VALUE\n"
    assert done.stderr.startswith("cudasim: ")
    assert variable in done.stderr
    assert accepted in done.stderr
    through_arena = run("import arena; arena.Driver.open('sim')")
    assert through_arena.returncode == 1
    assert accepted in through_arena.stderr.splitlines()[-1]
    through_sim = run("import arena; arena.sim.settings()")
    assert through_sim.stderr.splitlines()[-1].startswith("arena.errors.UsageError: ")
    assert accepted in through_sim.stderr.splitlines()[-1]


def test_an_invalid_variable_need_not_be_utf_8() -> None:
    code = """
import os
os.environ["CUDASIM_PRICES"] = os.fsdecode(bytes([255]))
import arena
try:
    arena.sim.settings()
except arena.UsageError as error:
    print(error)
"""
    assert run(code).stdout.startswith("CUDASIM_PRICES: '\\xff' is not accepted; write a100, small, free, or the path")


def test_contradictory_variables_are_refused() -> None:
    done = run(INIT, CUDASIM_DEVICES="3", CUDASIM_MEMORY="8GiB,24GiB")
    assert "3 devices, but memory for 2" in done.stderr


def test_variables_are_applied() -> None:
    code = "import arena; print(arena.sim.settings())"
    done = run(
        code,
        check=True,
        CUDASIM_MEMORY="8GiB,1.5GiB",
        CUDASIM_GRANULARITY="64KiB",
        CUDASIM_VMM="0",
        CUDASIM_VERSION="12040",
        CUDASIM_DELAY="7",
        CUDASIM_SEED="11",
        CUDASIM_OTHER="1MiB",
        CUDASIM_PRICES="small",
        CUDASIM_RACES="1",
        CUDASIM_PEERS="0-1",
        CUDASIM_INTEGRATED="1",
        CUDASIM_RDMA="broken",
        CUDASIM_PAGE_CACHE="2MiB",
        CUDASIM_ADDRESS_SPACE="1GiB",
        CUDASIM_EXCLUSIVE="1,3",
        CUDASIM_SYNC_UNMAP="1",
        CUDASIM_REUSE="0",
        CUDASIM_DEAD="print",
        CUDASIM_VALUES="1",
    )
    expected = sim.Settings(
        *("", 2, (8 * GIB, 3 * GIB // 2), 64 << 10, False, 12040, 7, 11, MIB, "small", True),
        *("0-1", True, "broken", 2 * MIB, GIB, (1, 3), True, False, "print", True),
    )
    assert done.stdout.strip() == repr(expected)


def test_settings_can_be_changed_from_python(machine: None) -> None:
    sim.configure(memory=["8GiB", 24 * GIB], delay=3, prices="small", other=5 * MIB)
    found = sim.settings()
    assert (found.devices, found.memory) == (2, (8 * GIB, 24 * GIB))
    sim.configure(memory=found.memory)  # what is read can be set
    sim.configure(memory=["4GiB"], other=5 * MIB)
    assert (sim.settings().devices, sim.settings().memory) == (1, (4 * GIB,))
    sim.configure(memory="6GiB", devices=2)
    assert sim.settings().memory == (6 * GIB, 6 * GIB)
    sim.configure(memory=["8GiB", 24 * GIB])
    assert (found.delay, found.prices, found.other) == (3, "small", 5 * MIB)
    cu = Cu()
    cu.start(1)
    assert cu.out("cuDeviceGetCount", kind=ctypes.c_int) == 2
    assert cu.out("cuDeviceTotalMem", 1) == 24 * GIB


@pytest.mark.parametrize(
    "text", ["30MiB", "30M", "30MB", " 3 mib ", "1.5K", "1.5kB", "2500000", "7.3GiB", "1TiB", "0.5t", "8gb"]
)
def test_sizes_are_read_like_those_of_an_arena(machine: None, text: str) -> None:
    sim.configure(other=text)
    assert sim.settings().other == parse_size(text, None, "other")
    size = parse_size(text, None, "memory")
    if size >= 2 * MIB:
        sim.configure(memory=[text, text.upper(), text.lower()])
        assert sim.settings().memory == (size,) * 3


@pytest.mark.parametrize("text", ["4Gi", "4iB", "4XB", "GB", "80%", "-1G", "1e3G", "1 2", "4GBB", "inf", "nanM"])
def test_what_is_no_size_for_an_arena_is_none_here(machine: None, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"other: '{text}' is not accepted; write a number of bytes")):
        sim.configure(other=text)
    with pytest.raises(UsageError):
        parse_size(text, None, "other")


@pytest.mark.parametrize(
    "change",
    [
        {"memory": "lots"},
        {"devices": -1},
        {"delay": -5},
        {"seed": -1},
        {"prices": "cheap"},
        {"races": "maybe"},
        {"granularity": 3},
    ],
)
def test_an_invalid_setting_from_python_is_named_and_changes_nothing(machine: None, change: dict[str, object]) -> None:
    before = sim.settings()
    [(name, value)] = change.items()
    with pytest.raises(UsageError, match=f"{name}: '{re.escape(str(value))}' is not accepted; write "):
        sim.configure(**change)  # type: ignore[arg-type]
    assert sim.settings() == before


def test_a_setting_of_the_wrong_type_is_named(machine: None) -> None:
    with pytest.raises(UsageError, match=r"memory: 1\.5 is a float; write a number or a string, or a list of them"):
        sim.configure(memory=1.5)  # type: ignore[arg-type]


def test_the_machine_is_not_rebuilt_while_it_runs(cu: Cu) -> None:
    with pytest.raises(UsageError, match="describes the machine, which is running"):
        sim.configure(memory="16GiB")
    sim.reset()
    sim.configure(memory="16GiB")
    cu.start()
    assert cu.out("cuDeviceTotalMem", 0) == 16 * GIB


def test_temporary_settings_are_restored(machine: None) -> None:
    def fail_meanwhile() -> None:
        with sim.temporarily(delay=99, races="print", other="1GiB"):
            assert sim.settings().delay == 99
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_meanwhile()
    assert (sim.settings().delay, sim.settings().other) == (0, 0)


def test_no_devices_is_an_error_of_the_driver(machine: None) -> None:
    sim.configure(devices=0)
    assert Cu().cuInit(0) == "CUDA_ERROR_NO_DEVICE"


def test_the_nth_call_from_now_fails_and_does_nothing(cu: Cu) -> None:
    cu.create()
    sim.fail("cuMemCreate", OUT_OF_MEMORY, nth=2, times=2)
    results = [cu.cuMemCreate(ctypes.byref(ctypes.c_uint64()), 2 * MIB, ctypes.byref(prop()), 0) for _ in range(5)]
    assert results == [SUCCESS, OUT_OF_MEMORY, OUT_OF_MEMORY, SUCCESS, SUCCESS]
    assert sim.used() == 8 * MIB


def test_any_function_can_fail_with_any_error(cu: Cu) -> None:
    for error in ("CUDA_ERROR_UNKNOWN", 999):
        sim.fail("cuStreamSynchronize", error)
        assert cu.cuStreamSynchronize(0) == "CUDA_ERROR_UNKNOWN"
    assert cu.cuStreamSynchronize(0) == SUCCESS


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cuMemCreate_v2", 2), "'cuMemCreate_v2' is not accepted; write the name of a function"),
        (("cuMemCreate", "OOM"), "'OOM' is not accepted; write the name or number of an error"),
        (("cuMemCreate", 0), "'0' is not accepted; write the name or number of an error, not of success"),
    ],
)
def test_an_invalid_fault_is_refused(machine: None, arguments: tuple[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        sim.fail(*arguments)
    for wrong in (0, -1, 1.5, "3", True, 1 << 64):
        with pytest.raises(UsageError, match="write a whole number from 1 up"):
            sim.fail("cuMemCreate", 2, nth=wrong)  # type: ignore[arg-type]


def test_calls_are_counted_by_the_name_of_the_api(cu: Cu) -> None:
    sim.reset_counts()
    cu.alloc(512)
    cu.alloc(512)
    cu.cuMemAlloc(None, 512)  # a refused call is a call
    assert sim.calls("cuMemAlloc") == 3
    assert sim.call_table() == {"cuMemAlloc": 3, "cuGetErrorName": 1}  # which the tests call once for each error
    assert sim.calls() == 4
    with pytest.raises(UsageError, match="'cuMemAlloc_v2' is not the name"):
        sim.calls("cuMemAlloc_v2")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("a100", 193 + 1.5 + 36 + 26 + 30 + 19 + (193 + 0.4 * 62) + (100 + 0.4 * 4) + 1 + 0.5),
        ("small", 7.6 + 1.1 + 21 + 11 + 5 + 9 + (7.6 + 0.4 * 62) + (60 + 0.2 * 4) + 1 + 0.5),
        ("free", 0),
    ],
)
def test_the_clock_adds_up_prices(cu: Cu, table: str, expected: float) -> None:
    event = cu.event()
    sim.configure(prices=table)
    sim.reset_counts()
    address, handle = cu.mapped()
    cu.ok("cuMemUnmap", address, 2 * MIB)
    cu.ok("cuMemRelease", handle)
    cu.create(64 * MIB)
    cu.alloc(4 * MIB)
    cu.ok("cuEventRecord", event, 0)
    cu.cuEventQuery(event)
    assert sim.clock() == pytest.approx(expected)


def test_a_device_can_be_added_while_the_machine_runs(cu: Cu) -> None:
    number = sim.add_device("80GiB")
    assert number == 1
    cu.start(number)
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 79 * GIB) == SUCCESS
    assert (sim.used(0), sim.used(1)) == (0, 79 * GIB)
    with pytest.raises(UsageError, match="memory: 'big' is not accepted"):
        sim.add_device("big")
    with pytest.raises(UsageError, match="one size for the device"):
        sim.add_device("8GiB,8GiB")
    for _ in range(14):
        sim.add_device("2MiB")
    with pytest.raises(UsageError, match="there are already 16 devices"):
        sim.add_device("2MiB")


def test_a_reset_clears_everything_but_the_settings(cu: Cu) -> None:
    sim.configure(delay=1)
    cu.mapped()
    cu.alloc(MIB)
    stream = cu.stream()
    sim.fail("cuInit", 999)
    sim.reset()
    assert sim.census() == sim.Census(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert (sim.used(), sim.calls(), sim.clock(), sim.settings().delay) == (0, 0, 0, 1)
    assert cu.cuStreamSynchronize(stream) == "CUDA_ERROR_NOT_INITIALIZED"
    cu.start()
    assert cu.cuStreamSynchronize(stream) == "CUDA_ERROR_INVALID_HANDLE"


def test_a_restart_leaves_the_driver_initialised(cu: Cu) -> None:
    cu.alloc(MIB)
    sim.restart()
    assert (sim.census().devices, sim.used()) == (1, 0)
    assert cu.out("cuDeviceGetCount", kind=ctypes.c_int) == 1


def test_functions_are_found_by_name_and_version(cu: Cu) -> None:
    def look_up(name: bytes, version: int) -> tuple[int, bool, int]:
        found, state = ctypes.c_void_p(), ctypes.c_uint(9)
        code = cu.lib.cuGetProcAddress_v2(name, ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(state))
        return code, found.value is not None, state.value

    assert look_up(b"cuMemAlloc", 13000) == (0, True, 0)
    assert look_up(b"cuMemAlloc", 2000) == (0, False, 2)  # known, but not in such an old form
    assert look_up(b"cuNoSuchFunction", 13000) == (0, False, 1)
    assert look_up(b"cuMemAlloc", 14000)[0] == 1  # newer than the driver
    forms = set()
    for version in (2000, 13000):
        found = ctypes.c_void_p()
        cu.lib.cuGetProcAddress_v2(b"cuCtxSynchronize", ctypes.byref(found), version, ctypes.c_uint64(0), None)
        forms.add(found.value)
    assert len(forms) == 2


def test_undocumented_tables_are_always_an_error(cu: Cu) -> None:
    table = ctypes.c_void_p(1)
    assert cu.cuGetExportTable(ctypes.byref(table), b"0123456789abcdef") == "CUDA_ERROR_NOT_FOUND"
    assert table.value is None


def test_every_setting_is_documented_in_configure() -> None:
    text = sim.configure.__doc__ or ""
    for name in sim.Settings.__dataclass_fields__:
        assert f"``{name}``" in text
        assert f"CUDASIM_{name.upper()}" in text


def test_settings_are_changed_all_or_none(machine: None) -> None:
    before = sim.settings()
    for change in (lambda: sim.configure(memory="4GiB", delay=7, prices="oops"), lambda: enter(races="zzz", delay=500)):
        with pytest.raises(UsageError):
            change()
        assert sim.settings() == before


def enter(**settings: object) -> None:
    with sim.temporarily(**settings):  # type: ignore[arg-type]
        pass


def test_a_temporary_change_restores_only_what_it_changed(machine: None) -> None:
    with sim.temporarily(delay=5):
        sim.configure(prices="small")
    assert (sim.settings().delay, sim.settings().prices) == (0, "small")


@pytest.mark.parametrize("memory", ["", [], "8GiB\0x", "1MiB", [None], {}])
def test_invalid_memory_sizes_are_refused(machine: None, memory: object) -> None:
    with pytest.raises(UsageError):
        sim.configure(memory=memory)  # type: ignore[arg-type]


def test_a_device_smaller_than_a_granule_is_refused(machine: None) -> None:
    with pytest.raises(UsageError, match="has no room for one granule"):
        sim.configure(memory="3MiB", granularity="1GiB")


def test_a_reset_can_restore_the_default_settings(machine: None) -> None:
    code = """
from arena import sim
first = sim.settings()
sim.configure(memory=["8GiB", "24GiB"], delay=5, races=True)
sim.reset(settings=True)
print(sim.settings() == first, first.delay)
"""
    assert run(code, CUDASIM_DELAY="3").stdout == "True 3\n"


def test_a_failure_can_be_planned_for_several_calls_from_the_environment() -> None:
    code = (
        "from tests.simulated.cu import Cu; cu = Cu(); cu.start()\nfor _ in range(4): print(cu.cuStreamSynchronize(0))"
    )
    done = run(code, check=True, CUDASIM_FAIL="cuStreamSynchronize:2:600:2")
    assert done.stdout.split() == [SUCCESS, NOT_READY, NOT_READY, SUCCESS]


def test_failures_that_have_not_happened_yet_can_be_listed(cu: Cu) -> None:
    sim.fail("cuMemAlloc", nth=2)
    cu.alloc(512)
    assert sim.planned() == ["cuMemAlloc:1:CUDA_ERROR_OUT_OF_MEMORY"]
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == OUT_OF_MEMORY
    assert sim.planned() == []


def test_two_plans_for_one_call_both_take_effect(cu: Cu) -> None:
    sim.fail("cuMemAlloc", 2, nth=2)
    sim.fail("cuMemAlloc", 999, nth=2)
    results = [cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) for _ in range(3)]
    assert results == [SUCCESS, OUT_OF_MEMORY, SUCCESS]


def test_queries_that_cannot_be_answered_are_errors(machine: None) -> None:
    for device in (99, -1, "0", None, True):
        refusal = r"device=-?\d+ does not exist; this machine has \d devices?$|write a number from 0 up"
        with pytest.raises(UsageError, match=refusal):
            sim.used(device)  # type: ignore[arg-type]
    for function in (None, 5):
        with pytest.raises(UsageError, match="is not the name of a driver function"):
            sim.fail(function)  # type: ignore[arg-type]
    sim.configure(races=False)
    with pytest.raises(UsageError, match="the race checker is off"):
        sim.races()
    sim.configure(races=True, devices=0)
    with pytest.raises(UsageError, match="CUDA_ERROR_NO_DEVICE"):
        sim.restart()


def test_an_unmodified_program_gets_the_driver_by_preloading() -> None:
    code = """
from cuda.bindings import driver
driver.cuInit(0)
print(driver.cuDeviceTotalMem(0)[1])
"""
    done = run(code, LD_PRELOAD=str(sim.library()), CUDASIM_MEMORY="3GiB")
    assert done.stdout == f"{3 * GIB}\n", done.stderr


def test_numba_imported_too_early_is_noticed() -> None:
    done = run("from numba import cuda; cuda.is_available(); import arena; arena.sim.enable()")
    assert "looks for a driver only once; call arena.sim.enable() before" in done.stderr.splitlines()[-1]


def test_no_warning_is_given_for_a_driver_that_was_requested() -> None:
    done = run("import arena; arena.sim.enable(); print(arena.driver().is_simulated)")
    assert (done.stdout, done.stderr) == ("True\n", "")
