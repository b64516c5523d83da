"""A process that has imported the command line, and becomes a new one for each command: fresh, and without that time.

Nothing is opened or set before the fork. tests/cli/test_cli.py also starts `python -m arena` as a user does.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class Server:
    """The other end."""

    def __init__(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDASIM_", "ARENA_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean,
        )

    def run(self, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            files = [f"{folder}/out", f"{folder}/err"]
            request = {"arguments": arguments, "environment": environment, "files": files}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(arguments, code, *(Path(file).read_text() for file in files))

    def close(self) -> None:
        self._process.communicate(timeout=60)


@functools.cache
def server() -> Server:
    made = Server()
    atexit.register(made.close)
    return made


def become(request: dict[str, Any]) -> None:
    """In the child: what a new process would find."""
    for number, name in enumerate((os.devnull, *request["files"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def main() -> None:
    import plotly.offline  # noqa: F401
    import rich.table  # noqa: F401

    import arena._cli  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
    import arena._cli

    arena._cli.main()  # as arena/__main__.py does, at the end of which the interpreter ends
