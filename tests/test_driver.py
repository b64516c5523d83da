"""Which driver is opened, what the error says if none can be, and how a driver describes itself.

Faulty drivers are compiled here from stubs/driver.c. Where the state of the whole process matters, a test runs a
program in a new process, with a library path in which libcuda.so.1 is what the test provides.
"""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import arena
from arena import Driver, DriverError, UsageError

from .installed_driver import nothing_installed

STUB = Path(__file__).with_name("stubs") / "driver.c"
NEEDED = [
    row.groups()
    for row in re.finditer(
        r"^ARENA_NEEDS\((\w+), \d+, (\w+), k(\w+)\)$",
        (Path(__file__).parents[1] / "src/driver/needed.def").read_text(),
        re.MULTILINE,
    )
]
WRITTEN_OUT = set(re.findall(r"^(?:HIDDEN )?int (cu[A-Z]\w+)\(", STUB.read_text(), re.MULTILINE))
SETTINGS = {
    "VERSION": 13000,
    "VERSION_RESULT": 0,
    "INIT_RESULT": 0,
    "COUNT": 1,
    "TOTAL": 8 << 30,
    "MEM_INFO_RESULT": 0,
    "SLEEP_MICROSECONDS": 0,
    "LOOKUP": 2,
}

MakeStub = Callable[..., str]


@pytest.fixture
def stub(tmp_path: Path) -> MakeStub:
    """Compile a stub driver: `without` a symbol, or with one `unknown` to its cuGetProcAddress."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def make(
        name: str = "driver.so",
        without: str = "",
        unknown: str = "",
        hidden: bool = False,
        **settings: object,
    ) -> str:
        have = [(known, symbol) for known, symbol, _ in NEEDED if symbol != without]
        functions = " ".join(f"F({symbol})" for _, symbol in have if symbol not in WRITTEN_OUT)
        rows = " ".join(f"R({known}, {symbol})" for known, symbol in have if symbol != unknown)
        defines = [f"-D{key}={value}" for key, value in (SETTINGS | settings).items()]
        defines += [f"-DFUNCTIONS={functions}", f"-DROWS={rows}"] + ["-DHIDDEN=static"] * hidden
        path = tmp_path / name
        subprocess.run([compiler, "-shared", "-fPIC", "-w", *defines, "-o", path, STUB], check=True)
        return str(path)

    return make


@pytest.fixture
def without_cuda(tmp_path: Path) -> dict[str, str]:
    """Variables that make libcuda.so.1 impossible to open, even where there is one."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/libcuda.so.1").write_text("not a library")
    return {"LD_LIBRARY_PATH": str(tmp_path / "broken")}


def refusal(choice: str, pattern: str) -> DriverError:
    with pytest.raises(DriverError, match=pattern) as caught:
        Driver.open(choice)
    return caught.value


OPEN_DEFAULT = """
    try:
        print(arena.driver().path)
    except arena.DriverError as error:
        print(error.code, error)
"""


def run(program: str, **variables: str) -> tuple[str, str]:
    """Run a Python program that imports arena first, and return its standard output and standard error."""
    foreign = ("ARENA_", "CUDASIM_", "CUDA_", "LD_LIBRARY_PATH")
    env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)} | variables
    code = "import arena, ctypes, os\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_import_prints_nothing_and_opens_no_driver() -> None:
    program = "print([line for line in open('/proc/self/maps') if 'libcuda' in line])"
    assert run(program, ARENA_DRIVER="nonsense") == ("[]", "")


@pytest.mark.parametrize("text", ["cdua", "SIM", "libcuda.so.1", " "])
def test_a_word_that_names_no_driver_is_a_usage_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENA_DRIVER", text)
    with pytest.raises(UsageError, match=f"^ARENA_DRIVER='{text}' names no driver: use auto, cuda, sim, or"):
        Driver.open()
    with pytest.raises(UsageError, match=f"^choice='{text}' names no driver: use auto, cuda, sim, or the path"):
        Driver.open(text)


def test_a_missing_library_is_named_with_the_systems_reason() -> None:
    error = refusal("/nowhere/libcuda.so.1", r"/nowhere/libcuda\.so\.1 could not be opened: .*No such file")
    assert (error.call, error.code, error.name) == ("dlopen", 0, "")


def test_a_library_that_is_no_driver_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-"], input=b"int other;", check=True)
    refusal(str(path), rf"{path} is not a CUDA driver: it does not have cuInit\. Name a driver library")


def test_a_missing_function_is_named_with_versions_and_library(stub: MakeStub) -> None:
    path = stub(without="cuMemSetAccess", VERSION=12040)
    missing = r"cuMemSetAccess \(version 10020\)"
    error = refusal(path, rf"^{path} \(CUDA 12\.4\) does not have {missing}\. Update the driver")
    assert error.name == "CUDA_ERROR_NOT_FOUND"


@pytest.mark.parametrize("symbol", [symbol for _, symbol, need in NEEDED if need == "Optional"])
def test_an_optional_function_may_be_missing(stub: MakeStub, symbol: str) -> None:
    assert Driver.open(stub(without=symbol)).version == 13000


def test_the_error_for_an_old_driver_says_what_is_needed(stub: MakeStub) -> None:
    path = stub(VERSION=11010, without="cuMemMap")
    refusal(path, rf"{path} is too old: it supports CUDA 11\.1, but CUDA 11\.2 is needed\. Update the driver")
    assert Driver.open(stub("oldest.so", VERSION=11020)).version == 11020


@pytest.mark.parametrize("wrong", [{"INIT_RESULT": 100}, {"COUNT": 0}])
def test_a_driver_without_a_device_is_refused(stub: MakeStub, wrong: dict[str, int]) -> None:
    path = stub(**wrong)
    error = refusal(path, rf"{path} has no device\. Check that nvidia-smi lists a device.*ARENA_DRIVER=sim")
    assert (error.code, error.name) == (100, "CUDA_ERROR_NO_DEVICE")


def test_the_error_for_a_driver_that_does_not_start_has_its_reason(stub: MakeStub) -> None:
    path = stub(INIT_RESULT=803)
    error = refusal(path, rf"^cuInit failed in {path}: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH \(803\), kernel module")
    assert (error.call, error.code) == ("cuInit", 803)
    refusal(stub("own.so", INIT_RESULT=4242), r"STUB_OWN_ERROR \(4242\)\. Check that nvidia-smi works")
    refusal(stub("linking.so", VERSION_RESULT=34), r"^cuDriverGetVersion failed in .*STUB_LIBRARY \(34\)")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"LOOKUP": 0}, id="by symbol from a driver without cuGetProcAddress"),
        pytest.param({"LOOKUP": 1, "hidden": True}, id="by the first cuGetProcAddress alone"),
        pytest.param({"LOOKUP": 2, "hidden": True}, id="by the second cuGetProcAddress alone"),
        pytest.param({"unknown": "cuMemCreate"}, id="by symbol when cuGetProcAddress does not know"),
    ],
)
def test_functions_are_found(stub: MakeStub, how: dict[str, object]) -> None:
    path = stub(**how)
    driver = Driver.open(path)
    assert (driver.path, driver.version, driver.is_simulated) == (path, 13000, False)
    assert [device.total for device in driver.devices()] == [8 << 30]
    assert repr(driver) == f"<arena.Driver CUDA 13.0, {path}>"


def test_a_function_is_missing_only_if_neither_lookup_finds_it(stub: MakeStub) -> None:
    refusal(stub(hidden=True, unknown="cuMemCreate"), r"does not have cuMemCreate \(version 10020\)")


def test_the_path_is_the_file_that_was_really_loaded(stub: MakeStub, tmp_path: Path) -> None:
    path = stub()
    (tmp_path / "link.so").symlink_to(path)
    assert Driver.open(str(tmp_path / "link.so")).path == path


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (511, "511 B"),
        (1536 << 10, "1.5 MiB"),
        ((1 << 30) - 1, "1 GiB"),
        (86118400, "82.13 MiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_sizes_are_printed_readably(stub: MakeStub, total: int, text: str) -> None:
    [device] = Driver.open(stub(TOTAL=f"{total}ULL")).devices()
    assert repr(device) == f"<arena.DeviceInfo 0: , 512 B of {text} free, no virtual memory>"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (719, r"CUDA_ERROR_LAUNCH_FAILED \(719\), unspecified launch failure"),
        (4242, r"STUB_OWN_ERROR \(4242\)"),
        (4343, r"unknown result \(4343\)"),
    ],
)
def test_a_refused_call_is_named_and_leaves_no_context_behind(stub: MakeStub, code: int, text: str) -> None:
    path = stub(MEM_INFO_RESULT=code)
    with pytest.raises(DriverError, match=f"^cuMemGetInfo failed: {text}$") as caught:
        Driver.open(path).devices()
    assert (caught.value.call, caught.value.code) == ("cuMemGetInfo", code)
    library = ctypes.CDLL(path)
    assert ctypes.c_int.in_dll(library, "stub_contexts_held").value == 0
    assert ctypes.c_int.in_dll(library, "stub_contexts_current").value == 0


def test_other_threads_run_during_a_driver_query(stub: MakeStub) -> None:
    driver = Driver.open(stub(SLEEP_MICROSECONDS=300_000))
    asking = threading.Thread(target=driver.devices)
    asking.start()
    turns = 0
    while asking.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_pickle_and_copy_with_their_attributes(again: Callable[[Exception], Exception]) -> None:
    thrown = refusal("/nowhere/libcuda.so.1", "nowhere")
    for error in (thrown, DriverError("text", call="cuInit", code=3, name="N"), UsageError("text")):
        twin = again(error)
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


def test_errors_are_also_the_built_in_ones() -> None:
    assert DriverError.__mro__[1:3] == (arena.ArenaError, RuntimeError)
    assert UsageError.__mro__[1:3] == (arena.ArenaError, ValueError)


def test_opening_can_be_retried_after_a_failure(stub: MakeStub) -> None:
    path = stub(without="cuMemMap")
    refusal(path, "does not have cuMemMap")
    os.replace(stub("good.so"), path)
    assert Driver.open(path).version == 13000


def test_the_default_driver_is_shared_and_can_be_retried(stub: MakeStub) -> None:
    program = """
        from concurrent.futures import ThreadPoolExecutor
        try:
            arena.driver()
        except arena.DriverError as error:
            print(error.call)
        os.environ["ARENA_DRIVER"] = os.environ["GOOD"]
        with ThreadPoolExecutor(8) as threads:
            drivers = list(threads.map(lambda _: arena.driver(), range(64)))
        print(all(driver is arena.driver() for driver in drivers), arena.driver().path == os.environ["GOOD"])
    """
    assert run(program, ARENA_DRIVER="/nowhere/lib.so", GOOD=stub()) == ("dlopen\nTrue True", "")


@pytest.mark.parametrize("choice", ["", "auto", "cuda"])
def test_a_real_driver_with_a_device_is_used_without_a_message(stub: MakeStub, tmp_path: Path, choice: str) -> None:
    path = stub("libcuda.so.1")
    assert run(OPEN_DEFAULT, LD_LIBRARY_PATH=str(tmp_path), ARENA_DRIVER=choice) == (path, "")


def test_cuda_never_means_the_simulated_driver(without_cuda: dict[str, str]) -> None:
    out, err = run(OPEN_DEFAULT, ARENA_DRIVER="cuda", **without_cuda)
    assert re.match(r"0 libcuda\.so\.1 .* could not be opened: .*\. Reinstall NVIDIA's driver, or set ARENA_", out)
    assert err == ""


@nothing_installed
def test_auto_names_both_drivers_when_neither_can_be_used() -> None:
    program = "arena._core.set_simulated_library('/nowhere/libcudasim.so')\n" + textwrap.dedent(OPEN_DEFAULT)
    out, err = run(program)
    assert re.match(r"0 neither .*no NVIDIA driver is installed.*; .*'/nowhere/libcudasim\.so' could not", out)
    assert err == ""


# What is wrong with the libcuda.so.1 on the library path, and what the error says.
BROKEN = {
    "no device": ({"INIT_RESULT": 100}, r"has no device\. Check that nvidia-smi lists a device"),
    "no device, counted": ({"COUNT": 0}, r"has no device\. Check that nvidia-smi lists a device"),
    "does not start": ({"INIT_RESULT": 999}, r"cuInit failed .*\(999\).*Check that nvidia-smi works"),
    "other kernel module": ({"INIT_RESULT": 803}, r"cuInit failed .*\(803\).* reboot after updating"),
    "stub for linking": ({"VERSION_RESULT": 34}, r"\(34\).*toolkit's stub, which is for linking only: remove its"),
    "too old": ({"VERSION": 11010}, r"is too old: it supports CUDA 11\.1.*Update the driver"),
    "function missing": ({"without": "cuMemMap"}, r"does not have cuMemMap .*Update the driver"),
}


@pytest.mark.parametrize(("wrong", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_auto_never_simulates_in_place_of_a_driver_that_fails(
    stub: MakeStub, tmp_path: Path, wrong: dict[str, object], said: str
) -> None:
    stub("libcuda.so.1", **wrong)
    out, err = run(OPEN_DEFAULT, LD_LIBRARY_PATH=str(tmp_path))
    assert re.search(rf"{said}.*or set ARENA_DRIVER=sim to work on the simulated driver\.$", out), out
    assert err == ""


def test_auto_never_simulates_in_place_of_a_library_that_does_not_load(without_cuda: dict[str, str]) -> None:
    out, err = run(OPEN_DEFAULT, **without_cuda)
    assert re.match(r"0 libcuda\.so\.1 .* could not be opened: .*Reinstall NVIDIA's.*ARENA_DRIVER=sim to", out), out
    assert err == ""


def test_auto_never_simulates_in_place_of_a_driver_whose_own_libraries_are_missing(tmp_path: Path) -> None:
    library = ["cc", "-shared", "-fPIC", "-x", "c", "-"]
    subprocess.run([*library, "-o", tmp_path / "libother.so"], input=b"int other = 1;", check=True)
    linked = ["-Wl,--no-as-needed", f"-L{tmp_path}", "-lother"]
    subprocess.run([*library, "-o", tmp_path / "libcuda.so.1", *linked], input=b"int cuInit;", check=True)
    (tmp_path / "libother.so").unlink()
    out, err = run(OPEN_DEFAULT, LD_LIBRARY_PATH=str(tmp_path))
    assert re.match(r"0 libcuda\.so\.1 .* could not be opened: libother\.so.*ARENA_DRIVER=sim to", out), out
    assert err == ""


def test_hidden_devices_are_no_reason_to_simulate(stub: MakeStub, tmp_path: Path) -> None:
    stub("libcuda.so.1", INIT_RESULT=100)
    out, _ = run(OPEN_DEFAULT, LD_LIBRARY_PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="-1")
    assert re.search(r"has no device\. CUDA_VISIBLE_DEVICES='-1' may hide.* or set ARENA_DRIVER=sim", out), out


@nothing_installed
def test_auto_does_not_simulate_where_only_the_drivers_library_is_missing(tmp_path: Path) -> None:
    pretend = b"""
        #define _GNU_SOURCE
        #include <string.h>
        #include <unistd.h>
        int access(const char* path, int mode) {
          return strcmp(path, "/proc/driver/nvidia/version") ? faccessat(-100, path, mode, 0) : 0;
        }
    """
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, "-x", "c", "-"], input=pretend, check=True)
    for before in ("", "arena.Arena(device='sim:1GiB')\n", "arena.sim.used(0)\n"):
        out, err = run(before + textwrap.dedent(OPEN_DEFAULT), LD_PRELOAD=str(shim))
        if not before:
            assert "(/proc/driver/nvidia/version exists), but libcuda.so.1 was not found" in out
        assert re.search("ARENA_DRIVER=sim", out), out
        assert err == ""


# From here on with the simulated driver.


WARNING = r"SimulatedDriverWarning: running on simulated memory, because no NVIDIA driver is installed .*\n"


@nothing_installed
def test_auto_warns_once_at_the_programs_line_that_it_simulates() -> None:
    program = """
        def make():
            return arena.Arena(cap="1GiB")
        print([make().is_simulated for _ in range(3)], arena.driver().is_simulated)
    """
    out, err = run(program)
    assert out == "[True, True, True] True"
    assert re.fullmatch(rf"<string>:4: {WARNING}", err), err


@nothing_installed
def test_the_warning_as_an_error_leaves_no_driver_open() -> None:
    program = """
        import warnings
        warnings.simplefilter("error")
        for _ in range(2):
            try:
                arena.Arena()
            except arena.SimulatedDriverWarning as warning:
                print(warning)
    """
    out, err = run(program)
    assert re.fullmatch(r"(running on simulated memory.* Set ARENA_DRIVER=sim .*\n?){2}", out), out
    assert err == ""


@nothing_installed
@pytest.mark.parametrize(
    ("before", "is_told"),
    [
        ("arena.Arena(device='sim:1GiB')", True),
        ("arena.sim.used(0)", True),
        ("arena.sim.configure(memory='1GiB')", False),
        ("arena.sim.enable()", False),
        ("ctypes.CDLL(arena.sim.library())", False),
    ],
)
def test_only_a_program_that_requests_a_simulation_gets_no_warning(before: str, is_told: bool) -> None:
    out, err = run(f"{before}\nprint(arena.driver().is_simulated)")
    assert out == "True"
    assert bool(re.search(WARNING, err)) == is_told, err


def test_sim_is_silent(without_cuda: dict[str, str]) -> None:
    out, err = run("print(arena.driver())", ARENA_DRIVER="sim", **without_cuda)
    assert re.fullmatch(r"<arena\.Driver CUDA 13\.0, simulated, /.*/libcudasim\.so>", out)
    assert err == ""


def test_a_real_driver_keeps_its_name_and_is_not_started(stub: MakeStub, tmp_path: Path) -> None:
    stub("libcuda.so.1")
    program = """
        simulated = arena.Driver.open("sim")
        assert arena.Driver.open(simulated.path).is_simulated
        theirs = ctypes.CDLL("libcuda.so.1")
        print(hasattr(theirs, "cudasimError"), ctypes.c_int.in_dll(theirs, "stub_inits").value)
        print(arena.Driver.open("cuda").is_simulated)
    """
    assert run(program, LD_LIBRARY_PATH=str(tmp_path)) == ("False 0\nFalse", "")


def test_cuda_is_refused_when_the_simulated_driver_has_its_name(without_cuda: dict[str, str]) -> None:
    program = 'arena.Driver.open("sim")\n' + textwrap.dedent(OPEN_DEFAULT)
    out, err = run(program, ARENA_DRIVER="cuda", **without_cuda)
    assert re.match(r"0 libcuda\.so\.1 is the simulated driver in this process: /.*libcudasim\.so was loaded", out)
    assert err == ""


@pytest.mark.parametrize(
    ("variables", "pattern"),
    [
        ({"CUDASIM_MEMORY": "lots"}, r"\d+ cuInit failed .*CUDASIM_MEMORY.*lots.*Check the CUDASIM_"),
        ({"CUDASIM_DEVICES": "0"}, r"100 the driver .*libcudasim\.so has no device.*Check the CUDASIM_"),
        ({"CUDASIM_VERSION": "11010"}, r"36 the driver .*libcudasim\.so is too old: it supports CUDA 11\.1"),
        ({"CUDASIM_FAIL": "cuInit:1:999"}, r"999 cuInit failed .*CUDA_ERROR_UNKNOWN \(999\)"),
    ],
    ids=["a bad setting", "no device", "an old version", "a planned failure"],
)
def test_what_is_wrong_with_the_simulated_driver_is_reported(variables: dict[str, str], pattern: str) -> None:
    out, _ = run(OPEN_DEFAULT, ARENA_DRIVER="sim", **variables)
    assert re.match(pattern, out), out


def test_devices_are_described_and_left_as_they_were() -> None:
    program = """
        driver = arena.driver()
        for d in driver.devices():
            print(d.number, d.total >> 30, (d.total - d.free) >> 30, d.virtual_memory, d.granularity >> 20)
        library = ctypes.CDLL(driver.path)
        current = ctypes.c_void_p()
        print(library.cuCtxGetCurrent(ctypes.byref(current)), current.value)
        size = library.cudasimCensus(None, 0)
        text = ctypes.create_string_buffer(size + 1)
        library.cudasimCensus(text, size + 1)
        print([line for line in text.value.decode().splitlines() if line.startswith("contexts")])
    """
    machine = {"CUDASIM_MEMORY": "8GiB,24GiB", "CUDASIM_OTHER": "1GiB"}
    out, _ = run(program, ARENA_DRIVER="sim", **machine)
    assert out.splitlines() == ["0 8 1 True 2", "1 24 1 True 2", "0 None", "['contexts 0']"]
    out, _ = run(program, ARENA_DRIVER="sim", CUDASIM_VMM="0")
    assert out.splitlines()[0] == "0 8 0 False 0"
