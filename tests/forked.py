"""Run programs in forks of a process that has already imported what they need, which saves the import time.

Nothing is opened or set before the fork. A program that must be observed from its very start uses `programs.run`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from .programs import ROOT, clean_environment

# The threads of a numerical library would not exist in the fork.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Server:
    """The parent's side: a child process that takes lines, and answers with lines."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**clean_environment(), **ONE_THREAD, **environment},
        )

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise RuntimeError(f"the process that runs the others has ended, with {self._process.wait()}")

    def close(self) -> None:
        self._process.communicate(timeout=60)


@functools.cache
def server(modules: tuple[str, ...]) -> Server:
    made = Server("tests.forked", *modules)
    atexit.register(made.close)
    return made


def run(
    code: str, *arguments: str, imported: tuple[str, ...], timeout: int = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code as `programs.run` does, in a process that has imported these modules."""
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/out", f"{folder}/err"]
        variables = {**clean_environment(), **environment}
        request = {"code": code, "arguments": arguments, "timeout": timeout, "environment": variables, "files": files}
        server(imported).ask(json.dumps(request))
        done = server(imported).answer()
        return subprocess.CompletedProcess(code, done, *(Path(file).read_text() for file in files))


def main() -> dict[str, Any]:
    """Fork a process for each request. Returns only in those."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that children do not scan what exists already
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


def become(request: dict[str, Any]) -> dict[str, Any]:
    """In the child: set up what a new process would find."""
    for number, name in enumerate((os.devnull, *request["files"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = ["-c", *request["arguments"]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    signal.alarm(request["timeout"])
    return request


if __name__ == "__main__":
    exec(main()["code"], vars(sys.modules["__main__"]))  # after this the interpreter exits as usual
