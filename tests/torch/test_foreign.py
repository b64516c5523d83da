"""Operators of other libraries, whose own kernels no wrapper sees, in dry runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from arena._dryrun import marks, tools

# Its operator finds positive elements. On the device a kernel writes the mask, and kernels are skipped.
SOURCE = """
#include <ATen/ATen.h>
#include <torch/library.h>
at::Tensor on_device(const at::Tensor& x) {
  const at::Tensor mask = at::zeros({x.numel()}, x.options().dtype(at::kBool));
  return at::arange(x.numel(), x.options().dtype(at::kLong)).masked_select(mask);
}
at::Tensor on_host(const at::Tensor& x) { return x.flatten().gt(0).nonzero().flatten(); }
TORCH_LIBRARY(arena_foreign, m) { m.def("positive(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(arena_foreign, CUDA, m) { m.impl("positive", &on_device); }
TORCH_LIBRARY_IMPL(arena_foreign, CPU, m) { m.impl("positive", &on_host); }
"""

Find = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def positive(tmp_path: Path) -> Find:
    source, library = tmp_path / "foreign.cpp", tmp_path / "foreign.so"
    source.write_text(SOURCE)
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    links = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-w"]
    subprocess.run([tools.compiler("a test"), *flags, *includes, source, "-o", library, *links], check=True)
    torch.ops.load_library(library)
    found: Find = torch.ops.arena_foreign.positive.default
    return found


def test_a_library_finds_what_its_own_kernel_would_have_found(positive: Find) -> None:
    given = torch.tensor([1.0, -1.0, 2.0, 0.0], device="cuda")
    assert positive(given).tolist() == [0, 2]


def test_what_a_library_finds_among_unknown_elements_is_at_most_all_of_them(positive: Find) -> None:
    found = positive(torch.empty(1 << 17, device="cuda"))
    assert found.shape == (1 << 17,)
    assert marks.query(found.data_ptr(), found.nbytes) == 0


def test_a_function_of_python_under_an_operator_computes_as_anywhere_else() -> None:
    @torch.library.custom_op("arena_foreign_python::positive", mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).nonzero().flatten()

    given = torch.zeros(1 << 10, device="cuda")
    given[3] = 1
    assert positive(given).tolist() == [3]
