"""cuDNN without the backend interface: tensors, convolutions, recurrent networks."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass

import pytest

from .library import OK, Library, ints, out

RELU, LSTM, GRU = 0, 2, 3
HALF = 2
BASE = 1 << 20  # where a weight buffer is said to be


class Performance(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


def tensor(lib: Library, *sizes: int, data_type: int = 0) -> int:
    made = lib.make("cudnnCreateFilterDescriptor")
    assert lib.cudnnSetFilterNdDescriptor(made, data_type, 0, len(sizes), ints(*sizes)) == OK
    return made


def read_tensor(lib: Library, descriptor: int) -> tuple[list[int], list[int]]:
    kind, count, sizes, strides = ctypes.c_int(), ctypes.c_int(), ints(*[0] * 8), ints(*[0] * 8)
    call = (descriptor, 8, ctypes.byref(kind), ctypes.byref(count), sizes, strides)
    assert lib.cudnnGetTensorNdDescriptor(*call) == OK
    return list(sizes)[: count.value], list(strides)[: count.value]


def test_a_tensor_keeps_sizes_and_strides_and_knows_its_bytes() -> None:
    lib = Library("libcudnn.so.9")
    made = lib.make("cudnnCreateTensorDescriptor")
    assert lib.cudnnSetTensorNdDescriptor(made, HALF, 4, ints(2, 3, 4, 5), ints(60, 1, 15, 3)) == OK
    assert read_tensor(lib, made) == ([2, 3, 4, 5], [60, 1, 15, 3])
    assert out(lib, "cudnnGetTensorSizeInBytes", made) == 2 * 2 * 3 * 4 * 5
    assert lib.cudnnSetTensorNdDescriptor(made, HALF, 9, ints(*[1] * 9), ints(*[1] * 9)) == 2000


@pytest.mark.parametrize("kind", ["Forward", "BackwardData", "BackwardFilter"])
def test_a_convolution_has_one_algorithm_whose_workspace_is_bounded(kind: str) -> None:
    lib = Library("libcudnn.so.9")
    handle, convolution = lib.make("cudnnCreate"), lib.make("cudnnCreateConvolutionDescriptor")
    x, w, y = tensor(lib, 2, 3, 8, 8), tensor(lib, 4, 3, 3, 3), tensor(lib, 2, 4, 6, 6)
    result, count = Performance(), ctypes.c_int()
    call = (handle, x, w, convolution, y, 8, ctypes.byref(count), ctypes.byref(result))
    assert getattr(lib, f"cudnnGetConvolution{kind}Algorithm_v7")(*call) == OK
    assert (count.value, result.status) == (1, 0)
    size = out(lib, f"cudnnGetConvolution{kind}WorkspaceSize", handle, x, w, convolution, y, result.algorithm)
    assert size == result.memory == 4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 36)
    find = (handle, x, 0, w, 0, convolution, y, 0, 8, ctypes.byref(count), ctypes.byref(result), 0, 0)
    assert getattr(lib, f"cudnnFindConvolution{kind}AlgorithmEx")(*find) == OK
    assert (count.value, result.memory) == (1, size)


@dataclass(frozen=True)
class Net:
    """A network as PyTorch describes it, and what it needs by PyTorch's own formulas."""

    cell: int
    inputs: int = 12
    hidden: int = 20
    projected: int = 0
    layers: int = 1
    directions: int = 1
    bias: int = 2

    @property
    def gates(self) -> int:
        return {LSTM: 4, GRU: 3}.get(self.cell, 1)

    def parameters(self) -> int:
        output = self.projected or self.hidden
        total = 0
        for layer in range(self.layers):
            inputs = self.inputs if layer == 0 else output * self.directions
            of_direction = self.gates * self.hidden * (inputs + output + self.bias)
            total += self.directions * (of_direction + (self.projected * self.hidden))
        return total

    def describe(self, lib: Library) -> int:
        made = lib.make("cudnnCreateRNNDescriptor")
        mode = (0, self.cell, self.bias, self.directions - 1, 0, 0, 0, 0)
        sizes = (self.inputs, self.hidden, self.projected, self.layers)
        assert lib.cudnnSetRNNDescriptor_v8(made, *mode, *sizes, 0, 0) == OK
        return made


NETS = [
    Net(LSTM),
    Net(LSTM, layers=3, directions=2),
    Net(LSTM, layers=2, directions=2, projected=5),
    Net(LSTM, bias=0),
    Net(LSTM, bias=1, layers=2),
    Net(LSTM, bias=3, layers=2),
    Net(GRU, layers=2, directions=2),
    Net(RELU, layers=2),
]


@pytest.mark.parametrize("net", NETS, ids=str)
def test_the_weights_of_a_network_take_what_its_parameters_take(net: Net) -> None:
    lib = Library("libcudnn.so.9")
    bias = {0: 0, 1: 1, 2: 2, 3: 1}[net.bias]
    expected = 4 * (net.parameters() + (bias - net.bias) * net.gates * net.hidden * net.layers * net.directions)
    assert out(lib, "cudnnGetRNNWeightSpaceSize", lib.make("cudnnCreate"), net.describe(lib)) == expected


def parts(lib: Library, net: Net) -> list[tuple[int, list[int]]]:
    """Where all matrices and biases of a network begin, in elements, and their sizes."""
    handle, descriptor = lib.make("cudnnCreate"), net.describe(lib)
    size = out(lib, "cudnnGetRNNWeightSpaceSize", handle, descriptor)
    matrix, bias = lib.make("cudnnCreateTensorDescriptor"), lib.make("cudnnCreateTensorDescriptor")
    found = []
    for layer in range(net.layers * net.directions):
        for number in range(2 * net.gates + (1 if net.projected else 0)):
            at, bias_at = ctypes.c_size_t(), ctypes.c_size_t()
            where = (matrix, ctypes.byref(at), bias, ctypes.byref(bias_at))
            assert lib.cudnnGetRNNWeightParams(handle, descriptor, layer, size, BASE, number, *where) == OK
            for address, tensor_ in ((at.value, matrix), (bias_at.value, bias)):
                if address:
                    found.append(((address - BASE) // 4, read_tensor(lib, tensor_)[0]))
    return found


@pytest.mark.parametrize("net", NETS, ids=str)
def test_the_weights_of_a_network_fill_its_buffer_without_overlaps(net: Net) -> None:
    lib = Library("libcudnn.so.9")
    end = 0
    for offset, (one, rows, columns) in sorted(parts(lib, net)):
        assert (one, offset) == (1, end)
        end = offset + rows * columns
    assert 4 * end == out(lib, "cudnnGetRNNWeightSpaceSize", lib.make("cudnnCreate"), net.describe(lib))


def test_matrices_of_the_same_kind_are_neighbours() -> None:
    """PyTorch takes the input matrices of all gates as one tensor, and so on."""
    net = Net(LSTM, layers=2)
    found = [offset for offset, sizes in parts(Library("libcudnn.so.9"), net) if sizes[2] == net.inputs]
    assert [b - a for a, b in itertools.pairwise(found)] == [net.hidden * net.inputs] * 3


@pytest.mark.parametrize(
    ("cell", "parameters", "workspace", "reserve"),
    [(LSTM, 3_034_880, 17_730_560, 736_000_000), (GRU, 2_276_160, 13_169_920, 864_000_000)],
)
def test_a_network_takes_what_was_read_on_a_card(cell: int, parameters: int, workspace: int, reserve: int) -> None:
    """https://github.com/pytorch/pytorch/issues/2895, where 3,210 parameters more are those of a linear layer."""
    lib = Library("libcudnn.so.9")
    net = Net(cell, inputs=123, hidden=320, layers=4)
    assert net.parameters() == parameters
    sequences = lib.make("cudnnCreateRNNDataDescriptor")
    assert lib.cudnnSetRNNDataDescriptor(sequences, 0, 0, 250, 100, 123, ints(*[250] * 100), 0) == OK
    work, kept = ctypes.c_size_t(), ctypes.c_size_t()
    call = (lib.make("cudnnCreate"), net.describe(lib), 1, sequences, ctypes.byref(work), ctypes.byref(kept))
    assert lib.cudnnGetRNNTempSpaceSizes(*call) == OK
    assert (work.value, kept.value) == (workspace, reserve)


def test_training_reserves_memory_that_grows_with_the_sequence_and_inference_none() -> None:
    lib = Library("libcudnn.so.9")
    handle, net = lib.make("cudnnCreate"), Net(LSTM, layers=2).describe(lib)
    sequences = lib.make("cudnnCreateRNNDataDescriptor")

    def sizes(mode: int, length: int) -> tuple[int, int]:
        assert lib.cudnnSetRNNDataDescriptor(sequences, 0, 0, length, 3, 12, ints(*[length] * 3), 0) == OK
        work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        call = (handle, net, mode, sequences, ctypes.byref(work), ctypes.byref(reserve))
        assert lib.cudnnGetRNNTempSpaceSizes(*call) == OK
        return work.value, reserve.value

    assert sizes(0, 10)[1] == 0
    assert sizes(1, 20)[1] == 2 * sizes(1, 10)[1] > 4 * 10 * 3 * 2 * 4 * 20  # at least the gates of both layers
    assert sizes(1, 10)[0] > 0


def test_an_error_has_a_name() -> None:
    lib = Library("libcudnn.so.9")
    assert lib.text("cudnnGetErrorString", 2000) == "CUDNN_STATUS_BAD_PARAM"
    message = ctypes.create_string_buffer(b"before", 16)
    lib.cudnnGetLastErrorString(message, 16)
    assert message.value == b""
    assert out(lib, "cudnnQueryRuntimeError", lib.make("cudnnCreate"), kind=ctypes.c_int) == 0
