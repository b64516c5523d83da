"""Which stacks are those of a thread that waits until PyTorch gives it work, and which only look like it.

The stacks are those of PyTorch 2.4 to 2.15, innermost function first. tests/torch/test_moving.py has the real threads.
"""

from __future__ import annotations

import pytest

from arena._pool.torch_threads import Function, waits_for_work

LIBC, LIBSTDCXX = "/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"
TORCH = "/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"
PYTHON_SIDE = "/venv/lib/python3.11/site-packages/torch/lib/libtorch_python.so"
C10 = "/venv/lib/python3.11/site-packages/torch/lib/libc10.so"

FUTEX = Function("", LIBC)
WAIT = Function("pthread_cond_wait", LIBC)
CONDITION = Function("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", LIBSTDCXX)
POP = Function("", TORCH)
MAIN = Function("_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE", TORCH)
INIT = Function("_ZN5torch8autograd6Engine11thread_initEiRKSt10shared_ptrINS0_10ReadyQueueEEb", TORCH)
REENTRANT = Function("_ZN5torch8autograd6Engine21reentrant_thread_initEv", TORCH)
EXECUTE = Function(
    "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11"
    "InputBufferE",
    TORCH,
)
RUN = Function("_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EE", TORCH)
EVALUATE = Function("_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeE", TORCH)
POOL = Function("_ZN3c1010ThreadPool9main_loopEv", C10)
THREAD = Function("", LIBSTDCXX)
ASLEEP = [FUTEX, WAIT, CONDITION]

WAITING = {
    "idle in autograd": [*ASLEEP, POP, MAIN, INIT, Function("", PYTHON_SIDE), THREAD],
    "waiting for a backward pass": [*ASLEEP, POP, MAIN, EXECUTE, Function("", PYTHON_SIDE)],
    "waiting for a deep backward pass": [*ASLEEP, POP, MAIN, REENTRANT, THREAD],
    "idle in autograd's pool": [*ASLEEP, REENTRANT, THREAD],
    "idle in a pool": [*ASLEEP, POOL, THREAD],
    "idle in an older pool": [*ASLEEP, Function("_ZN3c1010ThreadPool9main_loopEm", C10), THREAD],
    "waiting for the pool": [*ASLEEP, Function("", TORCH), RUN, Function("", PYTHON_SIDE)],
    "an older glibc": [Function("pthread_cond_wait", "/lib64/libpthread-2.28.so"), CONDITION, POP, MAIN, INIT],
    "a libstdc++ that leaves no frame": [FUTEX, WAIT, POP, MAIN, INIT],
    "a queue that is exported": [*ASLEEP, Function("_ZN5torch8autograd10ReadyQueue3popEv", TORCH), MAIN, INIT],
}


@pytest.mark.parametrize("stack", WAITING.values(), ids=WAITING)
def test_a_thread_that_waits_for_work_is_recognised(stack: list[Function]) -> None:
    assert waits_for_work(stack)


SIMILAR = {
    "no stack": [],
    "a stack that could not be walked further": [*ASLEEP, POP, MAIN],
    "a wait for the mutex of the queue, after it was notified": [FUTEX, FUTEX, WAIT, CONDITION, POP, MAIN, INIT],
    "another wait": [FUTEX, Function("pthread_cond_timedwait", LIBC), POP, MAIN, INIT],
    "a wait of another library": [FUTEX, Function("pthread_cond_wait", "/tmp/other.so"), CONDITION, POP, MAIN, INIT],
    "another library below the wait": [Function("", "/tmp/other.so"), WAIT, CONDITION, POP, MAIN, INIT],
    "a lock": [FUTEX, Function("pthread_mutex_lock", LIBC), POP, MAIN, INIT],
    "a node": [*ASLEEP, Function("", TORCH), EVALUATE, MAIN, INIT],
    "a node of another library": [*ASLEEP, Function("", "/tmp/other.so"), MAIN, INIT],
    "another exported function": [*ASLEEP, Function("_ZN5torch8autograd4Node4waitEv", TORCH), MAIN, INIT],
    "a function deeper": [*ASLEEP, POP, POP, MAIN, INIT],
    "an unknown caller": [*ASLEEP, POP, MAIN, Function("", TORCH)],
    "a function of the engine that does not wait for work": [*ASLEEP, EXECUTE],
    "a backward pass that waits by itself": [*ASLEEP, RUN],
    "a backward pass of another library": [*ASLEEP, Function("", "/tmp/other.so"), RUN],
    "a task of a pool": [*ASLEEP, Function("", TORCH), POOL, THREAD],
    "running": [POP, MAIN, INIT],
    "a function like it": [*ASLEEP, POP, Function("_ZN5other8autograd6Engine11thread_mainEv", TORCH), INIT],
}


@pytest.mark.parametrize("stack", SIMILAR.values(), ids=SIMILAR)
def test_a_thread_elsewhere_is_not_taken_for_one_that_waits_for_work(stack: list[Function]) -> None:
    assert not waits_for_work(stack)
