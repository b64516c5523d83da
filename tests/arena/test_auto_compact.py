"""The rule of compact="auto", clause by clause: which threads keep live data from being moved, and which do not.

Each program has one more thread, or the threads that a library starts. Every test also checks the live data and the
findings of the simulated driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .. import forked
from ..notebook import run_cells
from .native import compile_with_driver

MOVED, REFUSED = "moved\n", "re-backing not allowed\n"

BEFORE = """
import ctypes, os, queue, select, socket, subprocess, sys, threading, time
from tests.arena.stranded import Stranded, end, start
from arena import _core
stranded = Stranded()
libc = ctypes.CDLL(None)
"""
AFTER = """
end(stranded.attempt())
"""


def outcome(code: str, *arguments: str, before: str = BEFORE, after: str = AFTER) -> str:
    done = forked.run(before + code + after, *arguments, imported=("arena", "tests.arena.stranded"), ARENA_DRIVER="sim")
    assert done.stderr == ""
    return done.stdout


WAITING = {
    "an event": "start(threading.Event().wait)",
    "an event, for a time": "start(threading.Event().wait, 60)",
    "a condition": """
condition = threading.Condition()
def wait():
    with condition:
        condition.wait()
start(wait)""",
    "a lock, in the program's own code": """
lock = threading.Lock()
lock.acquire()
start(lambda: lock.acquire())""",
    "a queue": "start(queue.Queue().get)",
    "a simple queue": "start(queue.SimpleQueue().get)",
    "the end of a thread": "start(start(threading.Event().wait).join)",
    "a time, in the program's own code": "start(lambda: time.sleep(60))",
    "a socket": "pair = socket.socketpair()\nstart(pair[0].recv, 1)",
    "a connection": "server = socket.create_server(('127.0.0.1', 0))\nstart(server.accept)",
    "a selector": "pair = socket.socketpair()\nstart(select.select, [pair[0]], [], [])",
    "a pipe": "pipe = os.pipe()\nstart(os.read, pipe[0], 1)",
    "a process": "process = subprocess.Popen(['sleep', '60'])\nstart(process.wait)",
    "an event loop": "import asyncio\nstart(asyncio.new_event_loop().run_forever)",
    "requests to a server": """
import socketserver
server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
start(server.serve_forever, 60)""",
    "an event, in a thread that threading does not know": """
import _thread
lock = threading.Lock()
lock.acquire()
_thread.start_new_thread(lambda: lock.acquire(), ())
time.sleep(0.1)""",
}


@pytest.mark.parametrize("code", WAITING.values(), ids=WAITING)
def test_live_data_is_moved_while_another_thread_waits_in_python_for(code: str) -> None:
    assert outcome(code) == MOVED


OTHERS = {
    "a recording": """
import tempfile
stranded.pool.record(tempfile.mkdtemp() + "/run.arena")
assert threading.active_count() > 1""",
    "an idle executor": """
from concurrent.futures import ThreadPoolExecutor
executor = ThreadPoolExecutor(2)
list(executor.map(abs, range(4)))
time.sleep(0.05)""",
    "an idle executor that gave the device work": """
from concurrent.futures import ThreadPoolExecutor
executor = ThreadPoolExecutor(2)
context = stranded.cu.out("cuCtxGetCurrent")
def fill(block):
    stranded.cu.ok("cuCtxSetCurrent", context)
    stranded.cu.ok("cuMemsetD8", block.ptr, 1 + stranded.live.index(block), block.nbytes)
for _ in range(20):
    list(executor.map(fill, stranded.live))
time.sleep(0.05)""",
    "a listener of a log": """
import logging, logging.handlers
records = queue.SimpleQueue()
listener = logging.handlers.QueueListener(records, logging.NullHandler())
listener.start()
logging.getLogger().addHandler(logging.handlers.QueueHandler(records))
logging.warning("written by another thread")
time.sleep(0.05)""",
    "a timer": "timer = threading.Timer(60, print)\ntimer.daemon = True\ntimer.start()\ntime.sleep(0.05)",
    "a pool of threads": """
from multiprocessing.pool import ThreadPool
pool = ThreadPool(2)
time.sleep(0.05)""",
}


@pytest.mark.parametrize("code", OTHERS.values(), ids=OTHERS)
def test_live_data_is_moved_beside(code: str) -> None:
    assert outcome(code) == MOVED


def test_live_data_is_moved_beside_the_monitor_of_a_progress_bar() -> None:
    pytest.importorskip("tqdm")
    code = """
from tqdm import tqdm
bar = tqdm(total=3, file=open(os.devnull, "w"))
assert "tqdm_monitor" in {thread.name for thread in threading.enumerate()}
time.sleep(0.05)
"""
    assert outcome(code) == MOVED


def test_live_data_is_moved_beside_the_history_thread_of_a_shell(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    code = """
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config({"HistoryManager": {"hist_file": sys.argv[1]}}))
shell.run_cell("x = 1", store_history=True)
assert "IPythonHistorySavingThread" in {thread.name for thread in threading.enumerate()}
deadline = time.monotonic() + 20
while shell.history_manager.db_input_cache and time.monotonic() < deadline:
    time.sleep(0.01)  # until it has saved the cell
time.sleep(0.05)
"""
    assert outcome(code, str(tmp_path / "history.sqlite")) == MOVED


def test_live_data_is_moved_by_a_worker_that_the_main_thread_waits_for() -> None:
    code = """
found = []
def work():
    stranded.cu.start()
    found.append(stranded.attempt())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert outcome(code, after="end(found[0])") == MOVED


BUSY = {
    "that runs": "start(exec, 'while True: pass')",
    "that runs most of the time": """
def work():
    while True:
        time.sleep(0.0001)
        sum(range(10000))
start(work)""",
    "in a call without the GIL": "start(libc.usleep, 60_000_000)",
    "in a call without the GIL, in an executor": """
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(1).submit(libc.usleep, 60_000_000)
time.sleep(0.05)""",
    "that gives the device work": """
context, block = stranded.cu.out("cuCtxGetCurrent"), stranded.live[0]
def work():
    stranded.cu.ok("cuCtxSetCurrent", context)
    while True:
        stranded.cu.ok("cuMemsetD8Async", block.ptr, 1, block.nbytes, 0)
        stranded.cu.ok("cuStreamSynchronize", 0)
thread = start(work)""",
    "that Python knows nothing of": """
thread, sleep = ctypes.c_ulong(), ctypes.cast(libc.usleep, ctypes.c_void_p)
assert libc.pthread_create(ctypes.byref(thread), None, sleep, ctypes.c_void_p(60_000_000)) == 0
time.sleep(0.05)""",
    "that waits for what a user types": """
pipe = os.pipe()
os.dup2(pipe[0], 0)
start(os.read, 0, 1)""",
    "that waits by a lock of its own": """
class Lock:
    def acquire(self, *arguments): return libc.usleep(60_000_000)
    def release(self): pass
    def __enter__(self): pass
    def __exit__(self, *error): pass
    def _is_owned(self): return True
    def _acquire_restore(self, saved): self.acquire()
condition = threading.Condition(Lock())
start(condition.wait, 0.01)""",
    "whose trace function makes a call without the GIL": """
threading.settrace(lambda *event: libc.usleep(60_000_000))
start(threading.Event().wait)""",
    "that drops an object whose end takes long": """
class Slow:
    def __del__(self): libc.usleep(60_000_000)
waiting = queue.Queue()
waiting.put(Slow())
start(waiting.get)""",
}


@pytest.mark.parametrize("code", BUSY.values(), ids=BUSY)
def test_live_data_is_not_moved_beside_a_thread(code: str) -> None:
    assert outcome(code) == REFUSED


def test_a_function_is_not_considered_harmless_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "threading.py").write_text("""
import ctypes
class Condition:
    def wait(self, timeout=None):
        return ctypes.CDLL(None).usleep(60_000_000)
""")
    code = """
import importlib.util
spec = importlib.util.spec_from_file_location("threading", sys.argv[1] + "/threading.py")
other = importlib.util.module_from_spec(spec)
spec.loader.exec_module(other)
start(other.Condition().wait)
"""
    assert outcome(code, str(tmp_path)) == REFUSED


INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"


def test_live_data_is_not_moved_beside_another_interpreter() -> None:
    pytest.importorskip(INTERPRETERS)
    code = f"""
import {INTERPRETERS} as interpreters
other = interpreters.create()
start(interpreters.run_string, other, "import time; time.sleep(60)")
"""
    assert outcome(code) == REFUSED


def test_live_data_is_not_moved_beside_a_waiting_thread_without_a_gil() -> None:
    code = "start(threading.Event().wait)\nsys._is_gil_enabled = lambda: False\n"
    assert outcome(code) == REFUSED


@pytest.mark.parametrize(
    "code",
    [
        "def fail(*_): raise OSError\nstacks.open = fail",
        "_core.Sleep.walk = lambda sleep: ([], True)",
        "stacks._PYTHON = ('another',)",
        "threads._IS_FREE_THREADED = True",
        "sys.is_finalizing = lambda: True",
    ],
    ids=["code unknown", "no way back to Python", "Python in another program", "built without a GIL", "at the end"],
)
def test_live_data_is_not_moved_if_a_waiting_thread_may_not_need_the_gil(code: str) -> None:
    before = f"{BEFORE}from arena._pool import stacks, threads\nstart(threading.Event().wait)\n"
    assert outcome(code, before=before) == REFUSED


# Frame pointers, which some systems build with, end an exact walk at once.
NO_WALK = "_core.Sleep.walk = lambda sleep: ([], False)\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (WAITING["an event"], MOVED),
        (WAITING["a queue"], MOVED),
        (WAITING["an event, in a thread that threading does not know"], REFUSED),
        (BUSY["that runs"], REFUSED),
        (BUSY["in a call without the GIL"], REFUSED),
        (BUSY["that Python knows nothing of"], REFUSED),
        (BUSY["that waits by a lock of its own"], REFUSED),
    ],
    ids=["event", "queue", "unknown", "runs", "call", "native", "lock"],
)
def test_a_stack_that_cannot_be_walked_is_searched(code: str, expected: str) -> None:
    assert outcome(NO_WALK + code) == expected


def test_a_thread_that_ran_and_sleeps_in_the_same_place_again_is_noticed() -> None:
    code = """
waiting = queue.SimpleQueue()
def wait():
    while True:
        waiting.get()
thread = start(wait)
standstill = _core.Standstill({t for t in map(int, os.listdir("/proc/self/task")) if t != thread.native_id})
found = [standstill.holds(), standstill.holds()]
waiting.put(None)
time.sleep(0.1)
found.append(standstill.holds())
standstill = _core.Standstill(set(map(int, os.listdir("/proc/self/task"))))
found.append(standstill.holds())
start(threading.Event().wait)
found.append(standstill.holds())
"""
    assert outcome(code, after="end(str(found))") == "[True, True, False, True, False]\n"


def test_a_thread_that_wakes_up_during_the_wait_for_the_device_keeps_live_data_in_place() -> None:
    """It is asleep when inspected, and asleep again before data would be moved, every time."""
    code = """
import arena._pool.threads as threads
waiting = queue.SimpleQueue()
def wait():
    while True:
        waiting.get()
start(wait)
inspect = threads._inspect
def inspect_and_wake():
    found = inspect()
    assert found.standstill
    waiting.put(None)
    time.sleep(0.02)
    return found
threads._inspect = inspect_and_wake
"""
    assert outcome(code) == REFUSED


def test_inspecting_threads_keeps_no_references_to_their_frames() -> None:
    code = """
import gc, weakref
gc.disable()
class Local: pass
def look():
    local = Local()
    stranded.pool.stats()
    return weakref.ref(local)
start(threading.Event().wait)
found = look()() is None
"""
    assert outcome(code, after="end(str(found))") == "True\n"


def test_live_data_is_moved_in_a_notebook_cell(tmp_path: Path) -> None:
    """A kernel has a dozen threads: ZeroMQ's, the event loops of its channels, its heartbeat, its history."""
    outputs = run_cells(
        tmp_path,
        "import os, sys; sys.path.insert(0, os.getcwd()); from tests.arena.stranded import Stranded",
        "stranded = Stranded()",
        "print('some output')",
        "import time; time.sleep(0.1); print(stranded.attempt())",
    )
    assert [output.text for output in outputs] == ["", "", "some output\n", "moved\n"]


# Launches work on the device without the GIL, for some milliseconds.
LAUNCHER = """
#include <stddef.h>
typedef unsigned long long word;
extern int cuMemsetD8Async(word, unsigned char, size_t, word);
extern int cuStreamSynchronize(word);
int launch(word address, unsigned char value, size_t size, word stream, int times) {
  int failed = 0;
  while (times-- > 0 && !failed) {
    failed = cuMemsetD8Async(address, value, size, stream);
    if (!failed) failed = cuStreamSynchronize(stream);
  }
  return failed;
}
"""

STRESS = """
import random
context = stranded.cu.out("cuCtxGetCurrent")
launch = ctypes.CDLL(sys.argv[1]).launch
launch.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int]
tasks, done = queue.Queue(), queue.SimpleQueue()
def work():
    stranded.cu.ok("cuCtxSetCurrent", context)
    stream = stranded.cu.stream()
    while (task := tasks.get()) is not None:
        index, times, address, size = task
        failed = launch(address, index + 1, size, stream, times)
        stranded.cu.ok("cuMemsetD8Async", address, index + 1, size, stream)
        done.put(failed)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
found = {"moved": 0, "re-backing not allowed": 0}
random.seed(5)
over = time.monotonic() + 6
while time.monotonic() < over:
    # One block each: two that fill the same one would be a race of the program's own.
    indices = random.sample(range(len(stranded.live)), random.randrange(4))
    for index in indices:
        tasks.put((index, random.choice([1, 5, 50, 500, 3000]), stranded.live[index].ptr, stranded.live[index].nbytes))
    time.sleep(random.choice([0, 0.001, 0.003]))
    found[stranded.ask()] += 1
    assert [done.get() for _ in indices] == [0 for _ in indices]
    stranded.cu.ok("cuCtxSynchronize_v2", 0)
    stranded.check_data()
    stranded.strand()
stranded.attempt()
"""


def test_data_is_never_moved_under_threads_that_launch_work_now_and_then(tmp_path: Path) -> None:
    """With compact=True the same program finds its data destroyed, or the driver reports an illegal access."""
    built = compile_with_driver(LAUNCHER, tmp_path)
    answer = outcome(STRESS, str(built), after='end(f"{min(found.values()) > 0} {found}")')
    assert answer.startswith("True"), answer


WAKES = """
import arena, hashlib, json
pool, go = stranded.pool, threading.Event()
def work():
    go.wait()
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1 << 30)  # without the GIL, and for longer than the test takes
start(work)
def places():
    metrics = dict(line.rsplit(" ", 1) for line in pool.metrics().splitlines() if not line.startswith("#"))
    (measured,) = (int(value) for name, value in metrics.items() if name.startswith("arena_largest_request_bytes"))
    report, stats = pool.report(), pool.stats()
    data = json.loads(json.dumps(report.to_dict()))
    assert stats.largest_with_moving > stats.largest_without_moving
    assert report.largest["with_moving"] == stats.largest_with_moving
    words = "with moving live data," if stats.largest == stats.largest_with_moving else "without moving live data,"
    assert words in report.caption, report.caption
    return {stats.largest, measured, report.largest["now"], data["largest"]["now"], pool.snapshot().stats["largest"]}
assert places() == {pool.stats().largest_with_moving}  # it only waits
go.set()
time.sleep(0.05)  # not as long as what was seen before was ever believed
(now,) = places()
assert now == pool.stats().largest_without_moving
try:
    pool.allocate(now + 1)
except arena.OutOfMemoryError as error:
    assert (error.largest, error.largest_with_moving) == (now, pool.stats().largest_with_moving), error
    assert (pool.stats().largest, error.moving) == (now, "other threads")
else:
    raise AssertionError
pool.allocate(now).free()
"""


def test_stats_report_and_error_agree_on_what_passes_although_a_thread_just_slept() -> None:
    assert outcome(WAKES, after="end('as it was said')") == "as it was said\n"
