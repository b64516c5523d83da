"""``arena run``: somebody's program, unchanged, with the arena in it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from arena import Trace, _core
from arena._run.without_gpu import explain

from ..installed import nothing_installed
from .test_cli import run_arena, start_arena

MIB = 1 << 20


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Writes a program, and runs it by arena with options before it and arguments after it."""

    def make(
        code: str, *arguments: object, options: tuple[object, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(code)
        return run_arena("run", *options, path, *arguments, **environment)

    return make


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return facts


ALLOCATES = """
import cupy
array = cupy.empty(10 << 20, dtype="u1")
del array
kept = cupy.empty(3 << 20, dtype="u1")
print("from the program")
"""


@nothing_installed
@pytest.mark.parametrize(
    "line",
    [
        "cupy.zeros(3)",
        "cupy.empty(3) + 1",
        "cupy.asarray([1, 2])",
        "cupy.empty(3).get()",
        "cupy.cuda.Device().mem_info",
    ],
)
def test_a_program_that_needs_a_gpu_is_told_what_works_without_one_and_what_to_do(script: Any, line: str) -> None:
    done = script(f"import cupy\n{line}\n")
    assert done.returncode == 1
    assert "CUDARuntimeError: cudaErrorInsufficientDriver" in done.stderr  # the program's own error comes first
    said, last = done.stderr.splitlines()[-2:]
    assert said.startswith(
        "arena: CuPy found no GPU (cudaErrorInsufficientDriver). Without one, only memory allocation works"
    )
    assert re.fullmatch(
        r"Next: on a machine with a GPU, arena run --record run\.arena /.*/program\.py; then, on any machine, "
        r"arena fit run\.arena",
        last,
    )
    facts = facts_of(script(f"import cupy\n{line}\n", options=("--json",)))
    assert f"arena: {facts['without_gpu']}" == said


@nothing_installed
def test_a_stream_without_a_gpu_is_explained_even_if_the_program_raises_something_else(script: Any) -> None:
    code = """
import cupy
try:
    cupy.cuda.Stream()
except Exception:
    raise RuntimeError("no stream")
"""
    done = script(code)
    assert "arena: CuPy found no GPU" in done.stderr.splitlines()[-2]
    assert facts_of(script("raise RuntimeError", options=("--json",)))["without_gpu"] is None


class CupyError(Exception):
    """Like CuPy's own."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaErrorSomething: {status}")
        self.status = status


CupyError.__module__ = "cupy_backends.cuda.api.runtime"


@pytest.mark.parametrize(
    ("status", "why", "what"),
    [(35, "this CuPy needs a newer CUDA", "update the driver"), (100, "has no device for CuPy", "nvidia-smi")],
)
def test_where_there_is_a_driver_it_is_explained_what_is_wrong_with_it(
    monkeypatch: pytest.MonkeyPatch, status: int, why: str, what: str
) -> None:
    monkeypatch.setattr(_core, "is_real_driver_here", lambda: True)
    explained = explain(CupyError(status), "train.py")
    assert explained is not None
    assert why in explained.why
    assert what in explained.next
    assert explain(CupyError(500), "train.py") is None  # a symbol that a module does not have
    assert explain(CupyError(700), "train.py") is None
    assert explain(ValueError(), "train.py") is None


def test_cupy_gets_its_memory_from_the_arena_and_the_end_tells_the_peak(script: Any) -> None:
    done = script(ALLOCATES, options=("--cap", "64MiB"))
    assert (done.returncode, done.stdout) == (0, "from the program\n")
    first, last = done.stderr.splitlines()
    assert first.startswith("arena: device 0: at most 10 MiB live and ")
    assert first.endswith(" reserved, of a cap of 64 MiB")
    assert last.startswith("Next: ")
    facts = facts_of(script(ALLOCATES, options=("--cap", "64MiB", "--json")))
    (pool,) = facts["arenas"]
    assert (facts["exit"], facts["cupy"], pool["cap"], pool["live"]) == (0, "arena", 64 * MIB, 3 * MIB)


def test_the_settings_are_those_of_the_default_arena(script: Any) -> None:
    code = """
import arena
stats = arena.default_arena().stats()
print(stats.cap >> 20, stats.headroom >> 20, stats.reserved >> 20, stats.device_total >> 20)
print(arena._core.traced_depth())
"""
    options = ("--cap", "50%", "--headroom", "8MiB", "--reserve", "6MiB", "--growth", "2MiB", "--lines")
    done = script(code, options=(*options, "--device", "sim:1GiB"), ARENA_CAP="1MiB", ARENA_DRIVER="auto")
    assert done.stdout == "512 8 6 1024\n1\n"


def test_what_follows_the_program_is_the_programs(script: Any, tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:], sys.path[0], __name__, __file__, __spec__, sys.modules['__main__'].MARK)"
    done = script(f"MARK = 7\n{code}", "--cap", "lots", "--help", "--", "-m", "")
    path = tmp_path / "program.py"
    assert done.stdout == f"['--cap', 'lots', '--help', '--', '-m', ''] {tmp_path} __main__ {path} None 7\n"


def test_modules_packages_folders_and_archives_run(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("WORD = 'other'")
    (package / "__main__.py").write_text("import sys; from .other import WORD; print(WORD, __spec__.name, sys.argv)")
    (package / "tool.py").write_text("import sys; print(__package__, __file__ == sys.argv[0], sys.argv[1:])")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "near.py").write_text("WORD = 'near'")
    (folder / "__main__.py").write_text("import near, sys; print(near.WORD, sys.argv[1:])")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        for file in folder.glob("*.py"):
            archive.write(file, file.name)

    def out(*arguments: object) -> str:
        path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        return start_arena("run", *arguments, PYTHONPATH=path).stdout

    assert out("-m", "pack", "-x") == f"other pack.__main__ ['{package / '__main__.py'}', '-x']\n"
    assert out("-m", "pack.tool", "--cap", "1") == "pack True ['--cap', '1']\n"
    assert out(folder, "-m") == "near ['-m']\n"
    assert out(tmp_path / "app.pyz", "-m") == "near ['-m']\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('enough')", 1, "enough\n"),
        ("raise SystemExit(True)", 1, ""),
        ("import arena; arena.Arena(cap='lots')", 1, "UsageError: cap='lots' is not a size"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("import os; os._exit(5)", 5, ""),
        ("raise BrokenPipeError", 1, "BrokenPipeError"),
    ],
)
def test_the_exit_code_is_the_programs(script: Any, code: str, exit_code: int, said: str) -> None:
    done = script(code)
    assert done.returncode == exit_code
    assert said in done.stderr


@pytest.mark.parametrize("code", ["def f():\n    return 1 / 0\nf()\n", "x = (\n", "import no_such_module_here\n"])
def test_an_error_is_shown_as_python_would(script: Any, tmp_path: Path, code: str) -> None:
    done = script(code)
    by_python = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False)
    *shown, _, _ = done.stderr.splitlines()
    assert (shown, done.returncode) == (by_python.stderr.splitlines(), by_python.returncode)


def test_a_hook_for_errors_that_the_program_sets_is_called(script: Any) -> None:
    code = "import sys; print(sys.excepthook is sys.__excepthook__)\n"
    done = script(code + "sys.excepthook = lambda kind, error, trace: print('hook:', error)\nraise ValueError('seen')")
    assert (done.stdout, done.returncode) == ("True\nhook: seen\n", 1)


FAILS = """
import cupy, sys
kept = cupy.empty(40 << 20, dtype="u1")
def step():
    mine = cupy.empty(10 << 20, dtype="u1")
    return cupy.empty(30 << 20, dtype="u1")
if len(sys.argv) > 1:
    try:
        step()
    except MemoryError:
        del kept
else:
    step()
"""


@pytest.mark.parametrize("caught", [False, True])
def test_the_report_is_of_the_moment_when_a_request_failed(script: Any, tmp_path: Path, caught: bool) -> None:
    path = tmp_path / "out.json"
    arguments = ("caught",) if caught else ()
    done = script(FAILS, *arguments, options=("--cap", "64MiB", "--lines", "--report", path))
    report = json.loads(path.read_text())
    assert done.returncode == (0 if caught else 1)
    assert (report["verdict"], report["request"], report["account"]["requested"]) == (
        "cap reached",
        30 * MIB,
        50 * MIB,
    )
    assert "program.py:5 in step" in {holder["name"] for holder in report["lines"]}
    assert f"wrote {path}: the report of the moment when the last request failed" in done.stderr
    # It is written before the error is shown, which says where it is.
    assert (f"The whole report: {path}" in done.stderr) is not caught


def test_a_program_that_fails_often_leaves_the_report_of_the_last_time(script: Any, tmp_path: Path) -> None:
    code = """
import cupy
for size in range(70, 100):
    try:
        cupy.empty(size << 20, dtype="u1")
    except MemoryError:
        pass
"""
    path = tmp_path / "out.json"
    facts = facts_of(script(code, options=("--cap", "64MiB", "--report", path, "--json")))
    assert json.loads(path.read_text())["request"] == 99 * MIB
    assert (facts["failures"], facts["reports"], facts["report_of"]) == (30, [str(path)], "failure")


def test_threads_that_fail_at_once_leave_one_report(script: Any, tmp_path: Path) -> None:
    code = """
import threading, cupy
together = threading.Barrier(4)
def work():
    together.wait()
    try:
        cupy.empty(70 << 20, dtype="u1")
    except MemoryError:
        pass
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    facts = facts_of(script(code, options=("--cap", "64MiB", "--report", tmp_path / "out.html", "--json")))
    assert (facts["failures"], facts["problems"], len(facts["reports"])) == (4, [], 1)


def test_the_report_has_what_is_alive_at_the_end_wherever_the_program_goes(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    code = f"import os; os.chdir('/')\n{ALLOCATES}"
    done = script(code, options=("--report", path))
    assert json.loads(path.read_text())["end"]["account"]["requested"] == 3 * MIB
    assert f"wrote {path}: the report of the peak\n" in done.stderr
    assert done.stderr.splitlines()[-1] == f"Next: arena report {path} --save {path.with_suffix('.html')}"


def test_every_arena_has_a_report_and_a_recording(script: Any, tmp_path: Path) -> None:
    (tmp_path / "out-2.txt").write_text("mine")
    (tmp_path / "run-2.arena").write_text("mine")
    code = "import arena\npools = [arena.Arena(cap=f'{n}MiB') for n in (10, 20)]\n[p.allocate(1000) for p in pools]"
    options = ("--report", tmp_path / "out.txt", "--record", tmp_path / "run.arena")
    facts = facts_of(script(code, options=(*options, "--json")))
    assert [Path(name).name for name in facts["reports"]] == ["out.txt", "out-3.txt"]
    assert "of a cap of 20 MiB" in (tmp_path / "out-3.txt").read_text()
    assert [Path(made["path"]).name for made in facts["recordings"]] == ["run.arena", "run-3.arena"]
    assert (tmp_path / "out-2.txt").read_text() == (tmp_path / "run-2.arena").read_text() == "mine"


def test_a_run_is_recorded_and_replays(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.arena"
    done = script(ALLOCATES, options=("--record", path))
    trace = Trace.read(path)
    assert [event.kind for event in trace if event.kind != "reserved"] == ["allocate", "free", "allocate"]
    assert trace.problem == ""
    assert trace.facts["program"] == str(tmp_path / "program.py")
    assert f"wrote {path}: {len(trace)} events" in done.stderr
    words = done.stderr.splitlines()[-1].removeprefix("Next: arena ").split()
    assert run_arena(*words).returncode == 0


def test_a_recording_that_ends_early_is_told_at_the_end(script: Any, tmp_path: Path) -> None:
    code = """
import resource, signal, arena
pool = arena.default_arena()
kept = pool.allocate(1000)  # the simulated device's own memory is there now
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for i in range(100_000):
    pool.allocate(i % 100 << 10).free()
"""
    path = tmp_path / "run.arena"
    (problem,) = facts_of(script(code, options=("--record", path, "--json")))["problems"]
    assert problem == f"{path} is incomplete: [Errno 27] File too large"
    path.unlink()
    assert f"arena: {problem}\n" in script(code, options=("--record", path)).stderr


@pytest.mark.parametrize("option", ["--report", "--record"])
def test_a_file_that_exists_is_refused_before_the_program_begins(script: Any, tmp_path: Path, option: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text("mine")
    done = script("print('began')", options=(option, path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"arena: {path} already exists; choose another name, or pass --force\n"
    assert path.read_text() == "mine"
    assert script(ALLOCATES, options=(option, path, "--force")).returncode == 0
    assert path.read_bytes() != b"mine"


def test_without_cupy_the_program_runs_and_it_is_said(script: Any) -> None:
    code = "import sys; sys.modules['cupy'] = None\nimport arena; buffer = arena.default_arena().allocate(1 << 20)"
    done = script(code)
    assert done.returncode == 0
    assert "arena: CuPy is not installed: only memory allocated from arena directly is counted" in done.stderr
    assert "at most 1 MiB live" in done.stderr


def test_a_program_that_asks_for_nothing_is_told_so(script: Any, tmp_path: Path) -> None:
    done = script("print(1)", options=("--report", tmp_path / "out.html", "--record", tmp_path / "run.arena"))
    assert done.stderr.startswith("arena: the program allocated no GPU memory that arena can see")
    assert not (tmp_path / "out.html").exists()


def test_the_programs_own_allocator_wins_and_it_is_said(script: Any) -> None:
    code = "import cupy\ncupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)"
    assert "arena: the program set another allocator for CuPy" in script(code).stderr
    assert facts_of(script(code, options=("--json",)))["cupy"] == "another"


def test_cupy_is_given_the_arena_wherever_and_whenever_it_is_imported(script: Any) -> None:
    code = """
import threading, importlib.util
print(type(importlib.util.find_spec("cupy").loader).__name__)
def work():
    import cupy.cuda
    import arena
    kept.append(cupy.empty(5 << 20, dtype="u1"))
    print(cupy.cuda.get_allocator() is arena.malloc, "exec_module" in vars(cupy.__loader__))
kept = []
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
    done = script(code, options=("--json",))
    assert done.stdout == "SourceFileLoader\nTrue False\nTrue False\n"
    assert facts_of(done)["arenas"][0]["live"] == 10 * MIB


def test_threads_and_exit_functions_come_before_the_end_is_told(script: Any) -> None:
    code = """
import atexit, sys, threading, time
def work():
    time.sleep(0.3)
    import cupy
    kept.append(cupy.empty(5 << 20, dtype="u1"))
kept = []
threading.Thread(target=work).start()
atexit.register(lambda: print("last words", file=sys.stderr))
"""
    done = script(code)
    lines = done.stderr.splitlines()
    assert lines[0] == "last words"
    assert "at most 5 MiB live" in lines[1]


def test_a_recording_has_what_exit_functions_do_that_were_registered_before_the_arena_was_made(
    script: Any, tmp_path: Path
) -> None:
    code = """
import atexit
def last():
    kept.clear()
    pool.allocate(7 << 20).free()
atexit.register(last)
import arena
pool = arena.Arena()
kept = [pool.allocate(1 << 20)]
"""
    path = tmp_path / "run.arena"
    facts = facts_of(script(code, options=("--record", path, "--json")))
    trace = Trace.read(path)
    assert trace.problem == ""
    assert [(event.kind, event.size >> 20) for event in trace if event.kind in ("allocate", "free")] == [
        ("allocate", 1),
        ("free", 0),
        ("allocate", 7),
        ("free", 0),
    ]
    assert facts["recordings"] == [{"path": str(path), "events": len(trace)}]
    assert facts["problems"] == []


FORKS = """
import os, sys
import cupy
if "before" in sys.argv:
    kept = cupy.empty(1 << 20, dtype="u1")
child = os.fork()
if child == 0:
    mine = cupy.empty(2 << 20, dtype="u1")
    import arena
    print("child", arena.default_arena().stats().live >> 20, arena.default_arena().stats().cap >> 20, flush=True)
else:
    _, status = os.waitpid(child, 0)
    kept = cupy.empty(3 << 20, dtype="u1")
    print("parent", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("way", ["after", "before"])
def test_a_fork_has_an_arena_of_its_own_unless_the_parent_began(script: Any, tmp_path: Path, way: str) -> None:
    options = ("--cap", "64MiB", "--record", tmp_path / "r.arena", "--report", tmp_path / "r.json", "--json")
    done = script(FORKS, way, options=options)
    assert done.returncode == 0
    # Before: the driver is the parent's, and refuses the child, who ends by that error.
    assert done.stdout == ("child 2 64\nparent 0\n" if way == "after" else "parent 1\n")
    facts = facts_of(done)
    assert [made["path"] for made in facts["recordings"]] == [str(tmp_path / "r.arena")]
    assert json.loads((tmp_path / "r.json").read_text())["end"]["account"]["requested"] == 3 * MIB
    assert done.stderr.count('"exit"') == 1  # the child says nothing
    assert Trace.read(tmp_path / "r.arena").problem == ""


def test_processes_that_are_started_have_the_settings_but_not_the_arena_in_cupy(script: Any) -> None:
    code = """
import multiprocessing
def work(queue):
    import arena, cupy
    queue.put((cupy.cuda.get_allocator() is arena.malloc, arena.default_arena().stats().cap >> 20))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get(timeout=50), flush=True)
    process.join()
"""
    done = script(code, options=("--cap", "64MiB"))
    assert (done.stdout, done.returncode) == ("(False, 64)\n", 0)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals_end_it_as_they_end_python(tmp_path: Path, number: int, exit_code: int) -> None:
    path = tmp_path / "program.py"
    path.write_text("import cupy, time\nkept = cupy.empty(1 << 20)\nprint('began', flush=True)\ntime.sleep(60)\n")
    record = tmp_path / "run.arena"
    process = subprocess.Popen(
        [sys.executable, "-m", "arena", "run", "--record", record, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ARENA_DRIVER": "sim"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which those in the background ignore
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=50)
    assert process.returncode == exit_code
    assert f"wrote {record}: 2 events" in errors
    assert Trace.read(record).problem == ""
    assert [event.kind for event in Trace.read(record) if event.kind == "allocate"] == ["allocate"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("nowhere.py",),
            "arena: nowhere.py cannot be run: the file does not exist; to run a module, write -m nowhere.py",
        ),
        (("docs",), "arena: docs cannot be run: the folder has no __main__.py"),
        (("-m", "no_such.module"), "arena: -m no_such.module cannot be run: the module does not exist"),
        (("-m", "json"), "arena: -m json cannot be run: it is a package without a __main__"),
        (("--cap", "lots", "docs/x.py"), "arena: docs/x.py cannot be run"),
        (("--cap", "lots", "examples/report.py"), "arena: cap='lots' is not a size"),
        (("--device", "gpu", "examples/report.py"), "arena: device='gpu' is not accepted"),
        (("--device", "sim:0", "examples/report.py"), "arena: device='sim:0' has no memory"),
        (("--device", "1", "examples/report.py"), 'arena: device=1: ARENA_DRIVER=sim; write "sim", or the size'),
        (("--report", "x.pdf", "examples/report.py"), "arena: 'x.pdf' does not end with .html or .json or .txt"),
        (("--record", "x.txt", "--report", "x.txt", "examples/report.py"), "arena: x.txt cannot be both the report"),
        (("--record", "no/x", "examples/report.py"), "arena: no/x cannot be written: the folder no does not exist"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: tuple[str, ...], text: str) -> None:
    done = run_arena("run", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(text)
    assert len(done.stderr.splitlines()) == 1


def test_a_device_with_a_number_is_the_only_one_the_program_sees(script: Any) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['ARENA_DRIVER'])"
    assert script(code, options=("--device", "1"), ARENA_DRIVER="auto").stdout == "1 cuda\n"
    assert script(code, options=("--device", "1"), ARENA_DRIVER="", CUDA_VISIBLE_DEVICES="4,6").stdout == "6 cuda\n"
    refused = script(code, options=("--device", "2"), ARENA_DRIVER="cuda", CUDA_VISIBLE_DEVICES="4,6")
    assert refused.stderr == "arena: device=2: CUDA_VISIBLE_DEVICES=4,6 leaves 2\n"


def test_an_archive_that_is_no_program_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"\0\1\2")
    done = run_arena("run", path)
    assert done.returncode == 1
    assert "source code" in done.stderr


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("python", "program.py", "a b"), "arena run [OPTIONS] program.py 'a b'"),
        (("python3.12", "-m", "package"), "arena run [OPTIONS] -m package"),
        ((sys.executable, "program.py"), "arena run [OPTIONS] program.py"),
        (("python",), "arena run script.py"),
    ],
)
def test_a_python_before_the_program_is_said_to_be_too_much(words: tuple[str, ...], instead: str) -> None:
    done = run_arena("run", *words)
    needless = f"arena: {words[0]} is not needed: arena runs Python programs itself; write {instead}\n"
    assert (done.returncode, done.stderr) == (1, needless)


def test_a_program_that_asks_for_no_memory_is_told_what_was_not_written_and_why(script: Any, tmp_path: Path) -> None:
    options = ("--record", tmp_path / "run.arena", "--report", tmp_path / "out.html")
    done = script("print('done')", options=options)
    assert (done.returncode, done.stdout) == (0, "done\n")
    said = done.stderr.splitlines()
    assert said[0].startswith("arena: the program allocated no GPU memory that arena can see: it did not import CuPy")
    assert said[1:3] == [
        f"arena: {tmp_path / 'run.arena'} was not written: there was nothing to record",
        f"arena: {tmp_path / 'out.html'} was not written: there was nothing to report",
    ]
    assert said[3].startswith("Next: make sure that the program allocates memory in this process")
    imported = script("import cupy").stderr
    assert imported.startswith("arena: the program allocated no GPU memory: it imported CuPy, but created no array\n")


@pytest.mark.parametrize("command", ["fit", "replay"])
def test_a_recording_without_allocations_is_not_said_to_fit(script: Any, tmp_path: Path, command: str) -> None:
    path = tmp_path / "run.arena"
    made = script("import arena; pool = arena.Arena(device='sim:1GiB')", options=("--record", path))
    assert made.stderr.splitlines()[-1].startswith("Next: make sure that the program allocates memory")
    done = run_arena(command, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"arena: {path} has no allocations: the recorded arena was not used. ")


def test_the_simulated_device_needs_no_size(script: Any) -> None:
    code = "import arena; pool = arena.default_arena(); print(pool.is_simulated, pool.stats().device_total)"
    assert script(code, options=("--device", "sim")).stdout == f"True {8 << 30}\n"
    assert script(code, options=("--device", "sim:3GB")).stdout == "True 3000000000\n"
    assert script(code, options=("--device", "sim"), CUDASIM_MEMORY="2g").stdout == f"True {2 << 30}\n"
