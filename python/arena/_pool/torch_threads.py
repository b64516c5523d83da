"""Threads of PyTorch that wait for work: those of autograd, those that wait for a backward pass, and idle pools.

Each is recognised by its stack, walked exactly: by the exported functions that it is in, each of which begins where the
symbol table of its library says. Names of threads prove nothing.

Why such a thread launches no work while live data is moved, although it needs no GIL to continue:

- It waits on a condition variable of this process, without a time limit, in a loop that checks for work. It continues
  only if another thread gives it work (``ReadyQueue::push``, ``Engine::add_thread_pool_task``, ``ThreadPool::run``)
  and notifies it. One that was notified does not sleep any more, or waits for the mutex deeper in
  ``pthread_cond_wait``, and is not recognised.
- Work is given by threads that start a backward pass, run one of its nodes, or end it. Data is moved only if all
  threads sleep, each in a place from which it cannot continue by itself, or no further than to the GIL. So the first
  one to continue must be notified by the requesting thread. That holds the GIL, runs nothing but the move until it is
  done, and gives no work.
- It does not matter that the requesting thread may be one of autograd's, in the middle of a node. The threads that wait
  for what it computes sleep until it goes on.
- A thread of another device in the middle of a node is in none of these places. It runs, or sleeps in a lock or in the
  driver, and counts as active. If its node is a hook or a function in Python, it sleeps below Python or waits for the
  GIL, like any other thread.
- If a node starts another backward pass, its thread waits in the same functions a second time, at the inner end of its
  stack. Only that end counts: the thread continues there.
- The device notifies no thread either: all its work is done before data is moved, host functions included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["MOST_FRAMES", "Function", "waits_for_work"]


class Function(NamedTuple):
    """A function on a stack."""

    name: str  # as its library exports it, mangled; empty if it does not
    path: str  # the file that it is in; empty if none is

    def is_of(self, *libraries: str) -> bool:
        return self.path.rpartition("/")[2].startswith(libraries)

    def is_local_or(self, exported: str) -> bool:
        """Whether its library keeps it to itself, or exports it under a name that begins so."""
        return not self.name or self.name.startswith(exported)


MOST_FRAMES = 6  # innermost functions that have to be known
_LIBC = ("libc.", "libc-", "libpthread")
_POSIX_WAIT = "pthread_cond_wait"
_CONDITION_WAIT = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
# Without arguments, which differ between versions.
_ENGINE = "_ZN5torch8autograd6Engine"
_THREAD_MAIN = f"{_ENGINE}11thread_mainE"
_REENTRANT_THREAD = f"{_ENGINE}21reentrant_thread_initE"
_CALLERS_OF_MAIN = (f"{_ENGINE}11thread_initE", _REENTRANT_THREAD, f"{_ENGINE}23execute_with_graph_taskE")
_EXECUTE = f"{_ENGINE}7executeE"
# These wait by themselves.
_POOLS = (_REENTRANT_THREAD, "_ZN3c1010ThreadPool9main_loopE")
# Functions that wait for those above. No version so far exports them; some other may.
_POP = "_ZN5torch8autograd10ReadyQueue3popE"
_WAIT_FOR_RESULT = "_ZN3c106ivalue6Future4waitE"


def waits_for_work(stack: Sequence[Function]) -> bool:
    """Whether the innermost functions of a stack are those of a thread that waits until PyTorch gives it work."""
    callers = _callers_of_wait(stack)
    if not callers:
        return False
    if callers[0].name.startswith(_POOLS):
        return True
    return _is_queue_of_autograd(callers) or _is_result_of_backward(callers)


def _callers_of_wait(stack: Sequence[Function]) -> Sequence[Function]:
    """What called the wait on a condition variable; nothing if a stack does not end in one without a time limit."""
    innermost = 0
    if stack and not stack[0].name and stack[0].is_of(*_LIBC):  # glibc's own function around the system call
        innermost = 1
    if len(stack) <= innermost or stack[innermost].name != _POSIX_WAIT or not stack[innermost].is_of(*_LIBC):
        return ()
    callers = stack[innermost + 1 :]
    # Some builds of libstdc++ jump there, and leave no frame.
    if callers and callers[0].name == _CONDITION_WAIT and callers[0].is_of("libstdc++"):
        callers = callers[1:]
    return callers


def _is_queue_of_autograd(callers: Sequence[Function]) -> bool:
    """Whether a thread waits for the next node.

    ``thread_main`` calls nothing in its own library that waits on a condition variable by itself, but
    ``ReadyQueue::pop``: nodes run deeper, below ``Engine::evaluate_function``.
    """
    if len(callers) < 3:
        return False
    pop, main, caller = callers[:3]
    is_main = main.name.startswith(_THREAD_MAIN) and caller.name.startswith(_CALLERS_OF_MAIN)
    return is_main and pop.path == main.path and pop.is_local_or(_POP)


def _is_result_of_backward(callers: Sequence[Function]) -> bool:
    """Whether a thread waits for a backward pass inside of so many others that the engine runs it in its pool."""
    if len(callers) < 2:
        return False
    wait, execute = callers[:2]
    return execute.name.startswith(_EXECUTE) and wait.path == execute.path and wait.is_local_or(_WAIT_FOR_RESULT)
