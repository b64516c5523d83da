"""Native threads that call Python now and then, as those of PyTorch do: waiting for the GIL they are harmless."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from .test_auto_compact import outcome

# Threads that do nothing but take the GIL, by the functions that there are for it, and threads in a wait of their own.
CODE = """
#include <Python.h>
#include <pthread.h>
static PyThreadState *state;
static void *ensure(void *unused) {
  PyGILState_Release(PyGILState_Ensure());
  return unused;
}
static void *acquire(void *unused) {
  PyEval_AcquireThread(state);
  PyEval_ReleaseThread(state);
  return unused;
}
static void *wait_for_condition(void *unused) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_lock(&mutex);
  for (;;) pthread_cond_wait(&condition, &mutex);
  return unused;
}
static int begin(void *(*function)(void *)) { pthread_t thread; return pthread_create(&thread, 0, function, 0); }
int begin_ensure(void) { return begin(ensure); }
int begin_acquire(void) {
  state = PyThreadState_New(PyInterpreterState_Head());
  return begin(acquire);
}
int begin_wait(void) { return begin(wait_for_condition); }
"""


def compiled(folder: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    headers = sysconfig.get_path("include")
    if compiler is None or not Path(headers, "Python.h").exists():
        pytest.skip("there is no C compiler, or Python's headers are not installed")
    source, built = folder / "native.c", folder / "native.so"
    source.write_text(CODE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-pthread", f"-I{headers}", str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    return str(built)


# The GIL is held all the time: nothing here releases it, and no thread gets it by asking.
INSPECT = """
from arena._pool.stacks import Code
sys.setswitchinterval(1000)
native = ctypes.PyDLL(sys.argv[1])
code = Code()
before = set(_core.Standstill(set()).threads)
assert native.{function}() == 0
over = time.monotonic() + 0.2
while time.monotonic() < over:
    pass
sleeps = [sleep for thread, sleep in _core.Standstill(before).threads.items()]
found = [code.is_below_python(sleep, is_known=False) for sleep in sleeps]
"""


@pytest.mark.parametrize("function", ["begin_ensure", "begin_acquire"])
def test_a_native_thread_that_waits_for_the_gil_needs_it_to_continue(function: str, tmp_path: Path) -> None:
    code = INSPECT.format(function=function)
    assert outcome(code, compiled(tmp_path), after="\nend(str(found))") == "[True]\n"


def test_a_native_thread_that_waits_for_another_is_not_taken_for_one(tmp_path: Path) -> None:
    code = INSPECT.format(function="begin_wait") + "found.append(code.waits_for_pytorch(sleeps[0]))"
    assert outcome(code, compiled(tmp_path), after="\nend(str(found))") == "[False, False]\n"


def test_live_data_is_not_moved_beside_a_native_thread_that_waits_for_another(tmp_path: Path) -> None:
    code = "assert ctypes.CDLL(sys.argv[1]).begin_wait() == 0\ntime.sleep(0.05)\n"
    assert outcome(code, compiled(tmp_path)) == "re-backing not allowed\n"
