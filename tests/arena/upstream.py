"""An allocator for ``upstream=`` that counts what it gives and what it gets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..simulated.cu import Cu, RefusedError


class Upstream:
    """Another allocator, which counts what it gave out and got back."""

    def __init__(self, cu: Cu) -> None:
        self.cu = cu
        self.context = cu.out("cuCtxGetCurrent")
        self.sizes: list[int] = []
        self.live = 0
        self.on_request: Callable[[], object] | None = None
        self.on_return: Callable[[], object] | None = None

    def __call__(self, size: int) -> Any:
        self.sizes.append(size)
        if self.on_request:
            self.on_request()
        return Given(self, size)


class Given:
    def __init__(self, upstream: Upstream, size: int) -> None:
        self.upstream, self.size = upstream, size
        self.ptr = 0
        upstream.cu.ok("cuCtxSetCurrent", upstream.context)  # any thread may get here
        try:
            self.ptr = upstream.cu.alloc(size)
        except RefusedError as error:
            raise MemoryError(str(error)) from None
        upstream.live += size

    def __del__(self) -> None:
        if self.ptr:
            self.upstream.cu.ok("cuCtxSetCurrent", self.upstream.context)
            self.upstream.cu.ok("cuMemFree", self.ptr)
            self.upstream.live -= self.size
            if self.upstream.on_return:
                self.upstream.on_return()
