"""``arena run``: an unchanged program whose CuPy memory comes from the arena."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from arena import Trace

from .command import ALLOCATES, facts_of, run_arena, start_arena

MIB = 1 << 20


def test_cupy_gets_its_memory_from_the_arena_and_the_peak_is_printed(script: Any) -> None:
    done = script(ALLOCATES, options=("--cap", "64MiB"))
    assert (done.returncode, done.stdout) == (0, "from the program\n")
    first, last = done.stderr.splitlines()
    assert first.startswith("arena: device 0: at most 10 MiB live and ")
    assert first.endswith(" reserved, of a cap of 64 MiB")
    assert last.startswith("Next: ")
    facts = facts_of(script(ALLOCATES, options=("--cap", "64MiB", "--json")))
    (pool,) = facts["arenas"]
    assert (facts["exit"], facts["frameworks"]["cupy"], pool["cap"], pool["live"]) == (0, "arena", 64 * MIB, 3 * MIB)


def test_the_options_configure_the_default_arena(script: Any) -> None:
    code = """
import arena
stats = arena.default_arena().stats()
print(stats.cap >> 20, stats.headroom >> 20, stats.reserved >> 20, stats.device_total >> 20)
print(arena._core.traced_depth())
"""
    options = ("--cap", "50%", "--headroom", "8MiB", "--reserve", "6MiB", "--growth", "2MiB", "--lines")
    done = script(code, options=(*options, "--device", "sim:1GiB"), ARENA_CAP="1MiB", ARENA_DRIVER="auto")
    assert done.stdout == "512 8 6 1024\n1\n"


def test_arguments_after_the_program_go_to_the_program(script: Any, tmp_path: Path) -> None:
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
def test_the_exit_code_is_the_programs_own(script: Any, code: str, exit_code: int, said: str) -> None:
    done = script(code)
    assert done.returncode == exit_code
    assert said in done.stderr


@pytest.mark.parametrize("code", ["def f():\n    return 1 / 0\nf()\n", "x = (\n", "import no_such_module_here\n"])
def test_an_error_is_shown_as_python_shows_it(script: Any, tmp_path: Path, code: str) -> None:
    done = script(code)
    by_python = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False)
    *shown, _, _ = done.stderr.splitlines()
    assert (shown, done.returncode) == (by_python.stderr.splitlines(), by_python.returncode)


def test_the_programs_own_excepthook_is_called(script: Any) -> None:
    code = "import sys; print(sys.excepthook is sys.__excepthook__)\n"
    done = script(code + "sys.excepthook = lambda kind, error, trace: print('hook:', error)\nraise ValueError('seen')")
    assert (done.stdout, done.returncode) == ("True\nhook: seen\n", 1)


def test_a_program_without_any_framework_may_use_an_arena_itself(script: Any) -> None:
    code = "import sys; sys.modules['cupy'] = None\nimport arena; buffer = arena.default_arena().allocate(1 << 20)"
    done = script(code)
    assert done.returncode == 0
    assert "at most 1 MiB live" in done.stderr
    assert "CuPy" not in done.stderr


def test_a_program_that_requests_nothing_gets_a_note(script: Any, tmp_path: Path) -> None:
    done = script("print(1)", options=("--report", tmp_path / "out.html", "--record", tmp_path / "run.arena"))
    assert done.stderr.startswith("arena: the program allocated no GPU memory that arena can see")
    assert not (tmp_path / "out.html").exists()


def test_the_programs_own_allocator_wins_and_a_note_says_so(script: Any) -> None:
    code = "import cupy\ncupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)"
    assert "arena: the program set another allocator for CuPy" in script(code).stderr
    assert facts_of(script(code, options=("--json",)))["frameworks"]["cupy"] == "another"


def test_cupy_uses_the_arena_wherever_and_whenever_it_is_imported(script: Any) -> None:
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


def test_threads_and_exit_functions_run_before_the_summary(script: Any) -> None:
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
def test_a_forked_child_has_its_own_arena_unless_the_parent_used_the_driver(
    script: Any, tmp_path: Path, way: str
) -> None:
    options = ("--cap", "64MiB", "--record", tmp_path / "r.arena", "--report", tmp_path / "r.json", "--json")
    done = script(FORKS, way, options=options)
    assert done.returncode == 0
    # Before: the driver belongs to the parent and refuses the child, which exits with that error.
    assert done.stdout == ("child 2 64\nparent 0\n" if way == "after" else "parent 1\n")
    facts = facts_of(done)
    assert [made["path"] for made in facts["recordings"]] == [str(tmp_path / "r.arena")]
    assert json.loads((tmp_path / "r.json").read_text())["end"]["account"]["requested"] == 3 * MIB
    assert done.stderr.count('"exit"') == 1  # the child prints nothing
    assert Trace.read(tmp_path / "r.arena").problem == ""


def test_spawned_processes_get_the_settings_but_not_the_arena_in_cupy(script: Any) -> None:
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
def test_signals_end_the_program_as_they_end_python(tmp_path: Path, number: int, exit_code: int) -> None:
    path = tmp_path / "program.py"
    path.write_text("import cupy, time\nkept = cupy.empty(1 << 20)\nprint('began', flush=True)\ntime.sleep(60)\n")
    record = tmp_path / "run.arena"
    process = subprocess.Popen(
        [sys.executable, "-m", "arena", "run", "--record", record, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ARENA_DRIVER": "sim"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background processes ignore it
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
def test_an_invalid_command_line_is_refused_in_one_line(arguments: tuple[str, ...], text: str) -> None:
    done = run_arena("run", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(text)
    assert len(done.stderr.splitlines()) == 1


def test_with_a_device_number_the_program_sees_only_that_device(script: Any) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['ARENA_DRIVER'])"
    assert script(code, options=("--device", "1"), ARENA_DRIVER="auto").stdout == "1 cuda\n"
    assert script(code, options=("--device", "1"), ARENA_DRIVER="", CUDA_VISIBLE_DEVICES="4,6").stdout == "6 cuda\n"
    refused = script(code, options=("--device", "2"), ARENA_DRIVER="cuda", CUDA_VISIBLE_DEVICES="4,6")
    assert refused.stderr == "arena: device=2: CUDA_VISIBLE_DEVICES=4,6 leaves 2\n"


def test_a_file_that_is_no_program_is_pythons_own_error(tmp_path: Path) -> None:
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
def test_a_python_before_the_program_is_refused_as_unnecessary(words: tuple[str, ...], instead: str) -> None:
    done = run_arena("run", *words)
    needless = f"arena: {words[0]} is not needed: arena runs Python programs itself; write {instead}\n"
    assert (done.returncode, done.stderr) == (1, needless)


def test_the_simulated_device_needs_no_size(script: Any) -> None:
    code = "import arena; pool = arena.default_arena(); print(pool.is_simulated, pool.stats().device_total)"
    assert script(code, options=("--device", "sim")).stdout == f"True {8 << 30}\n"
    assert script(code, options=("--device", "sim:3GB")).stdout == "True 3000000000\n"
    assert script(code, options=("--device", "sim"), CUDASIM_MEMORY="2g").stdout == f"True {2 << 30}\n"
