"""Take one file out of a wheel on PyPI, without downloading the wheel.

    take_from_wheel.py torch 2.13.0 torch/cuda/_memory_viz.py HERE

A wheel is a zip file: its directory and the one member are read with HTTP range requests, one or two megabytes of
several hundred. A server that knows no ranges sends the whole of it. PIP_INDEX_URL names another index.
"""

from __future__ import annotations

import hashlib
import html
import io
import os
import re
import sys
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
AHEAD = 1 << 18  # zipfile asks for a few bytes at a time


class Remote(io.RawIOBase):
    """A file at a URL, to be read in pieces."""

    def __init__(self, url: str) -> None:
        self._url, self._at, self._start, self._piece = url, 0, 0, b""
        self._size = self._fetch("bytes=-1")

    def _fetch(self, wanted: str) -> int:
        with urllib.request.urlopen(
            urllib.request.Request(self._url, headers={"Range": wanted}), timeout=120
        ) as answer:
            self._piece = answer.read()
            found = re.match(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        self._start, size = map(int, found.groups()) if found else (0, len(self._piece))
        return size

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._size - self._at))
        if not self._start <= self._at <= self._at + count <= self._start + len(self._piece):
            self._fetch(f"bytes={self._at}-{min(self._at + max(count, AHEAD), self._size) - 1}")
        offset = self._at - self._start
        buffer[:count] = self._piece[offset : offset + count]
        self._at += count
        return count


def find_wheel(project: str, version: str) -> str:
    page = f"{INDEX.rstrip('/')}/{project}/"
    with urllib.request.urlopen(page, timeout=120) as answer:
        links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', answer.read().decode())]
    for link in links:
        if f"/{project}-{version}-" in urllib.parse.unquote(link) and link.partition("#")[0].endswith(".whl"):
            return urllib.parse.urljoin(page, link.partition("#")[0])
    sys.exit(f"take_from_wheel.py: {page} lists no wheel of version {version}")


def main(project: str, version: str, member: str, target: str) -> None:
    with zipfile.ZipFile(Remote(find_wheel(project, version))) as wheel:  # type: ignore[arg-type]
        data = wheel.read(member)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(data)
    print(f"{target}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
