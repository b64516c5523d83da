"""NCCL, NVRTC, nvJitLink, NVML, NVTX and cuSPARSELt."""

from __future__ import annotations

import ctypes

import pytest

from arena import sim

from ..simulated.cu import Cu
from .library import OK, Library, ints, out


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


def test_a_communicator_knows_its_size_and_rank() -> None:
    lib = Library("libnccl.so.2")
    unique, made = UniqueId(), ctypes.c_size_t()
    assert lib.ncclGetUniqueId(ctypes.byref(unique)) == OK
    initialise = ctypes.CDLL(lib._library._name).ncclCommInitRank
    initialise.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    assert initialise(ctypes.byref(made), 1, unique, 0) == OK
    assert out(lib, "ncclCommCount", made.value, kind=ctypes.c_int) == 1
    assert out(lib, "ncclCommUserRank", made.value, kind=ctypes.c_int) == 0
    assert out(lib, "ncclCommGetAsyncError", made.value, kind=ctypes.c_int) == OK
    assert lib.ncclAllReduce(0, 0, 4, 7, 0, made.value, 0) == OK
    assert lib.ncclCommDestroy(made.value) == OK
    assert lib.ncclAllReduce(0, 0, 4, 7, 0, made.value, 0) == 4
    assert initialise(ctypes.byref(made), 1, unique, 1) == 4  # there is no such rank


def test_one_process_makes_communicators_for_several_devices() -> None:
    lib, made = Library("libnccl.so.2"), (ctypes.c_size_t * 3)()
    assert lib.ncclCommInitAll(made, 3, ints(0, 2, 1)) == OK
    assert [out(lib, "ncclCommUserRank", c, kind=ctypes.c_int) for c in made] == [0, 1, 2]
    assert [out(lib, "ncclCommCuDevice", c, kind=ctypes.c_int) for c in made] == [0, 2, 1]


def test_collectives_copy_as_if_all_ranks_had_the_same_data() -> None:
    sim.configure(memory="1GiB")
    sim.enable()
    cu = Cu()
    cu.start()
    lib, made, float32 = Library("libnccl.so.2"), (ctypes.c_size_t * 2)(), 7
    assert lib.ncclCommInitAll(made, 2, ints(0, 0)) == OK
    stream, source, target = cu.stream(), cu.alloc(64), cu.alloc(64)

    def after(call: str, *arguments: int) -> list[int]:
        """The first bytes of the four floats that a collective leaves in the target."""
        for i in range(4):
            cu.ok("cuMemsetD8Async", source + 4 * i, i + 1, 4, stream)
        cu.ok("cuMemsetD8Async", target, 0, 64, stream)
        assert getattr(lib, call)(source, target, *arguments, stream) == OK
        cu.ok("cuStreamSynchronize", stream)
        return list(cu.read(target, 16)[::4])

    first, second = made
    assert after("ncclAllReduce", 4, float32, 0, first) == [1, 2, 3, 4]
    assert after("ncclReduce", 4, float32, 0, 1, first) == [0, 0, 0, 0]
    assert after("ncclBroadcast", 4, float32, 1, second) == [1, 2, 3, 4]
    assert after("ncclReduceScatter", 2, float32, 0, second) == [3, 4, 0, 0]
    assert after("ncclAllGather", 2, float32, first) == [1, 2, 1, 2]
    assert after("ncclAlltoAll", 2, float32, first) == [1, 2, 3, 4]


@pytest.mark.parametrize(("version", "major"), [("13", 13), ("12", 12)])
def test_programs_compile_to_an_image_that_is_marked(version: str, major: int) -> None:
    lib = Library(f"nocompiler/libnvrtc.so.{version}")
    found = ctypes.c_int(), ctypes.c_int()
    assert lib.nvrtcVersion(*map(ctypes.byref, found)) == OK
    assert found[0].value == major
    program = lib.make("nvrtcCreateProgram", b"__global__ void f() {}", b"f.cu", 0, 0, 0)
    assert lib.nvrtcAddNameExpression(program, b"scale<float, 4>") == OK
    assert lib.nvrtcCompileProgram(program, 0, 0) == OK
    size = out(lib, "nvrtcGetPTXSize", program)
    image = ctypes.create_string_buffer(b"x" * size)
    assert lib.nvrtcGetPTX(program, image) == OK
    assert image.raw.startswith(b"arena-skipped-kernel")
    assert image.raw[size - 1] == 0
    assert out(lib, "nvrtcGetProgramLogSize", program) == 1
    assert lib.nvrtcDestroyProgram(ctypes.byref(ctypes.c_size_t(program))) == OK
    assert lib.nvrtcGetPTXSize(program, ctypes.byref(ctypes.c_size_t())) == 4


def test_whatever_is_linked_is_an_image_that_is_marked() -> None:
    lib = Library("nocompiler/libnvJitLink.so.12")
    linker = lib.make("__nvJitLinkCreate_12_9", 0, 0)
    assert lib.__nvJitLinkAddData_12_9(linker, 1, b"code", 4, b"a") == OK
    assert lib.nvJitLinkComplete(linker) == OK
    image = ctypes.create_string_buffer(out(lib, "nvJitLinkGetLinkedCubinSize", linker))
    assert lib.nvJitLinkGetLinkedCubin(linker, image) == OK
    assert image.raw.startswith(b"arena-skipped-kernel")
    assert lib.nvJitLinkDestroy(ctypes.byref(ctypes.c_size_t(linker))) == OK
    assert lib.nvJitLinkComplete(linker) == 3


def test_lowered_names_are_identifiers_and_differ() -> None:
    lib = Library("nocompiler/libnvrtc.so.13")
    program = lib.make("nvrtcCreateProgram", b"", 0, 0, 0, 0)
    expressions = [b"plain", b"scale<float>", b"scale<double>", b"&space::table[3]"]
    name = ctypes.c_char_p()
    for expression in expressions:
        assert lib.nvrtcAddNameExpression(program, expression) == OK
    assert lib.nvrtcGetLoweredName(program, b"plain", ctypes.byref(name)) == 9  # not compiled yet
    assert lib.nvrtcCompileProgram(program, 0, 0) == OK
    names = []
    for expression in expressions:
        assert lib.nvrtcGetLoweredName(program, expression, ctypes.byref(name)) == OK
        names.append((name.value or b"").decode())
    assert names[0] == "plain"
    assert all(n.isidentifier() for n in names)
    assert len(set(names)) == len(names)
    assert lib.nvrtcGetLoweredName(program, b"unknown", ctypes.byref(name)) == 10


def test_nvml_sees_the_simulated_devices_without_initialising_cuda() -> None:
    sim.configure(devices=2, memory="4GiB")
    sim.enable()
    lib = Library("libnvidia-ml.so.1")
    count = ctypes.c_uint()
    assert lib.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 1  # NVML_ERROR_UNINITIALIZED
    assert lib.nvmlInit_v2() == OK
    assert lib.nvmlDeviceGetCount_v2(ctypes.byref(count)) == OK
    assert count.value == 2
    assert sim.calls("cuInit") == 0
    device, memory, text = ctypes.c_size_t(), (ctypes.c_uint64 * 3)(), ctypes.create_string_buffer(96)
    assert lib.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)) == OK
    assert lib.nvmlDeviceGetMemoryInfo(device.value, memory) == OK
    assert (memory[0], memory[1] + memory[2]) == (4 << 30, 4 << 30)
    assert lib.nvmlDeviceGetUUID(device.value, text, 96) == OK
    assert len(text.value) == len("GPU-01234567-89ab-cdef-0123-456789abcdef")
    again = ctypes.c_size_t()
    assert lib.nvmlDeviceGetHandleByUUID(text, ctypes.byref(again)) == OK
    assert again.value == device.value
    assert lib.nvmlDeviceGetName(device.value, text, 96) == OK
    assert lib.nvmlDeviceGetName(device.value, text, 2) == 7  # NVML_ERROR_INSUFFICIENT_SIZE
    fabric = (ctypes.c_uint * 9)((2 << 24) | 36, *[7] * 8)  # nvmlGpuFabricInfo_v2_t
    assert lib.nvmlDeviceGetGpuFabricInfoV(device.value, fabric) == OK
    assert list(fabric) == [(2 << 24) | 36, *[0] * 8]  # its state is "not supported"
    fabric[0] = 36
    assert lib.nvmlDeviceGetGpuFabricInfoV(device.value, fabric) == 25  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert lib.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(device)) == 2
    assert lib.nvmlShutdown() == OK
    assert lib.nvmlShutdown() == 1


def test_ranges_nest() -> None:
    lib = Library("libnvToolsExt.so.1")
    assert [lib.nvtxRangePushA(b"outer"), lib.nvtxRangePushA(b"inner")] == [0, 1]
    assert [lib.nvtxRangePop(), lib.nvtxRangePop(), lib.nvtxRangePop()] == [1, 0, -2]


def test_half_sparse_matrices_are_compressed_to_nine_sixteenths() -> None:
    lib = Library("libcusparseLt.so.0")
    handle, matrix = ctypes.create_string_buffer(512), ctypes.create_string_buffer(512)
    assert lib.cusparseLtStructuredDescriptorInit(handle, matrix, 64, 32, 32, 16, 2, 1, 0) == 1  # no handle yet
    assert lib.cusparseLtInit(handle) == OK
    assert lib.cusparseLtStructuredDescriptorInit(handle, matrix, 64, 32, 32, 16, 2, 1, 0) == OK
    size, buffer = ctypes.c_size_t(), ctypes.c_size_t()
    assert lib.cusparseLtSpMMACompressedSize2(handle, matrix, ctypes.byref(size), ctypes.byref(buffer)) == OK
    assert size.value == 64 * 32 * 2 * 9 // 16
    assert lib.cusparseLtDestroy(handle) == OK
    assert lib.cusparseLtSpMMACompressedSize2(handle, matrix, ctypes.byref(size), ctypes.byref(buffer)) == 1
