"""Modules, libraries, kernels and variables: which images are accepted, what is found in them, and when it goes."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from arena import sim

from ..findings import expect
from .cu import INVALID_VALUE, SUCCESS, Cu
from .images import LZ4, PTX, Kernel, Variable, cubin, entry, fat_binary, wrapper

INVALID_HANDLE, INVALID_IMAGE = "CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_IMAGE"
NO_BINARY, NOT_FOUND, INVALID_PTX = "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_NOT_FOUND", "CUDA_ERROR_INVALID_PTX"
MAX_THREADS, SHARED_SIZE, CONST_SIZE, REGISTERS, BINARY_VERSION, MAX_DYNAMIC = 0, 1, 2, 4, 6, 8

IMAGE = cubin(
    Kernel("scale", params=(8, 4), registers=40, shared=512, max_threads=256),
    Kernel("nothing"),
    Variable("counter", 4),
    Variable("table", 16, initial=b"abcd"),
    Variable("factors", 32, initial=b"\x01", constant=True),
    Variable("both", 8, initial=b"\x09", managed=True),
)


def load(cu: Cu, image: bytes = IMAGE) -> int:
    return cu.out("cuModuleLoadData", image)


def load_library(cu: Cu, image: bytes = IMAGE) -> int:
    return cu.out("cuLibraryLoadData", image, None, None, 0, None, None, 0)


def try_load(cu: Cu, image: bytes) -> str:
    return cu.cuModuleLoadData(ctypes.byref(ctypes.c_uint64()), image)


def function(cu: Cu, module: int, name: bytes = b"scale") -> int:
    return cu.out("cuModuleGetFunction", module, name)


def variable(cu: Cu, module: int, name: bytes, call: str = "cuModuleGetGlobal") -> tuple[int, int]:
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    cu.ok(call, ctypes.byref(address), ctypes.byref(size), module, name)
    return address.value, size.value


def attribute(cu: Cu, what: int, function: int) -> int:
    return cu.out("cuFuncGetAttribute", what, function, kind=ctypes.c_int)


def test_functions_of_a_cubin_are_found_by_their_names(cu: Cu) -> None:
    module = load(cu)
    assert function(cu, module) == function(cu, module) != function(cu, module, b"nothing")
    assert cu.cuModuleGetFunction(ctypes.byref(ctypes.c_uint64()), module, b"absent") == NOT_FOUND
    assert cu.out("cuModuleGetFunctionCount", module, kind=ctypes.c_uint) == 2
    functions = (ctypes.c_uint64 * 3)()
    cu.ok("cuModuleEnumerateFunctions", functions, 3, module)
    assert sorted(functions) == [0, *sorted((function(cu, module), function(cu, module, b"nothing")))]
    name = ctypes.c_char_p()
    cu.ok("cuFuncGetName", ctypes.byref(name), function(cu, module))
    assert name.value == b"scale"
    assert cu.out("cuFuncGetModule", function(cu, module)) == module
    cu.ok("cuModuleUnload", module)


def test_a_function_says_what_its_image_says(cu: Cu) -> None:
    module = load(cu)
    scale, nothing = function(cu, module), function(cu, module, b"nothing")
    told = {
        what: attribute(cu, what, scale) for what in (MAX_THREADS, SHARED_SIZE, CONST_SIZE, REGISTERS, BINARY_VERSION)
    }
    assert told == {MAX_THREADS: 256, SHARED_SIZE: 512, CONST_SIZE: 32, REGISTERS: 40, BINARY_VERSION: 80}
    assert attribute(cu, MAX_DYNAMIC, scale) == (48 << 10) - 512
    assert attribute(cu, MAX_THREADS, nothing) == 1024
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    cu.ok("cuFuncGetParamInfo", scale, 1, ctypes.byref(offset), ctypes.byref(size))
    assert (offset.value, size.value) == (8, 4)
    assert cu.cuFuncGetParamInfo(scale, 2, ctypes.byref(offset), None) == INVALID_VALUE
    assert cu.cuFuncGetAttribute(ctypes.byref(ctypes.c_int()), 99, scale) == INVALID_VALUE


def test_attributes_are_set_within_the_devices_limits(cu: Cu) -> None:
    scale = function(cu, load(cu))
    optin = 163 << 10
    cu.ok("cuFuncSetAttribute", scale, MAX_DYNAMIC, optin - 512)
    assert attribute(cu, MAX_DYNAMIC, scale) == optin - 512
    assert cu.cuFuncSetAttribute(scale, MAX_DYNAMIC, optin - 511) == INVALID_VALUE
    assert cu.cuFuncSetAttribute(scale, REGISTERS, 10) == INVALID_VALUE  # only the image says so
    assert cu.cuFuncSetCacheConfig(scale, 4) == cu.cuFuncSetSharedMemConfig(scale, 3) == INVALID_VALUE
    assert cu.cuFuncSetCacheConfig(scale, 3) == cu.cuFuncSetSharedMemConfig(scale, 2) == SUCCESS


def test_variables_are_device_memory_with_their_initial_values(cu: Cu) -> None:
    used = sim.used()
    module = load(cu)
    assert sim.used() > used
    address, size = variable(cu, module, b"table")
    assert (size, cu.read(address, size)) == (16, b"abcd".ljust(16, b"\0"))
    counter, size = variable(cu, module, b"counter")
    assert size == 4
    cu.write(counter, b"wxyz")
    assert cu.read(variable(cu, module, b"counter")[0], 4) == b"wxyz"
    assert cu.read(variable(cu, module, b"factors")[0], 1) == b"\x01"
    both, _ = variable(cu, module, b"both")
    assert ctypes.string_at(both, 1) == b"\x09"  # the host reads it, too
    missing = cu.cuModuleGetGlobal(ctypes.byref(ctypes.c_uint64()), None, module, b"absent")
    assert missing == NOT_FOUND
    assert cu.cuModuleGetGlobal(None, None, module, b"table") == INVALID_VALUE
    assert cu.cuMemFree(address) == INVALID_VALUE  # it is the module's
    cu.ok("cuModuleUnload", module)
    assert sim.used() == used
    assert cu.cuMemcpyDtoH(ctypes.create_string_buffer(4), address, 4) == "CUDA_ERROR_ILLEGAL_ADDRESS"


def test_a_module_with_more_variables_than_memory_is_out_of_memory(cu: Cu) -> None:
    assert try_load(cu, cubin(Variable("huge", 9 << 30))) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert sim.census().modules == 0


def test_a_cubin_runs_on_later_devices_of_its_generation_only(cu: Cu) -> None:
    assert [try_load(cu, cubin(architecture=arch)) for arch in (75, 80, 86, 90)] == [
        NO_BINARY,
        SUCCESS,
        NO_BINARY,
        NO_BINARY,
    ]


def test_what_is_no_image_is_refused(cu: Cu) -> None:
    for image in (
        b"",
        b"\x7f",
        b"nonsense",
        b"\x7fELF" + bytes(60),
        b"/",
        b"// .version",
        fat_binary()[:4] + bytes(60),
    ):
        assert try_load(cu, image + b"\0") == INVALID_IMAGE, image
    assert try_load(cu, b".version 9.0\n.entry f() { ret; }\0") == INVALID_PTX  # for which device?
    assert try_load(cu, b".version 9.0\n.target sm_90\n\0") == INVALID_PTX  # for a newer one
    assert cu.cuModuleLoadData(ctypes.byref(ctypes.c_uint64()), None) == INVALID_VALUE
    assert cu.cuModuleLoadFatBinary(ctypes.byref(ctypes.c_uint64()), IMAGE) == INVALID_IMAGE


@pytest.mark.parametrize("image", [IMAGE, PTX, fat_binary(entry(IMAGE)), b"arena-skipped-kernel", b"x\0", b"\0"])
def test_an_image_is_not_read_beyond_its_end(cu: Cu, image: bytes) -> None:
    """The next page cannot be touched: a read of it would end the process."""
    pages = -(-len(image) // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = address + (pages - 1) * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
    ctypes.memmove(guard - len(image), image, len(image))
    module = ctypes.c_uint64()
    cu.cuModuleLoadData(ctypes.byref(module), guard - len(image))
    assert libc.mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 3) == 0


def test_kernels_and_variables_of_ptx_are_found(cu: Cu) -> None:
    module = load(cu, PTX)
    assert cu.out("cuModuleGetFunctionCount", module, kind=ctypes.c_uint) == 2
    saxpy = function(cu, module, b"saxpy")
    assert (attribute(cu, MAX_THREADS, saxpy), attribute(cu, SHARED_SIZE, saxpy)) == (256, 256)
    places = []
    for index in range(3):
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        cu.ok("cuFuncGetParamInfo", saxpy, index, ctypes.byref(offset), ctypes.byref(size))
        places.append((offset.value, size.value))
    assert places == [(0, 8), (8, 4), (16, 24)]
    address, size = variable(cu, module, b"counter")
    assert (size, cu.read(address, 4)) == (4, b"\x07\0\0\0")
    address, size = variable(cu, module, b"factors")
    assert (size, cu.read(address, 16)[14:]) == (16, b"\x00\x40")
    assert variable(cu, module, b"shared_counter")[1] == 4
    for name in (b"elsewhere", b"helper"):
        assert cu.cuModuleGetGlobal(ctypes.byref(ctypes.c_uint64()), None, module, name) == NOT_FOUND


def test_a_type_that_ptx_does_not_have_is_refused(cu: Cu) -> None:
    """16 variables of 2**60 bytes would be 2**64, and so nothing."""
    declared = "".join(f".global .b{1 << 63} large{i};" for i in range(16))
    code = f".version 8.0 .target sm_80 {declared}".encode()
    assert cu.cuModuleLoadData(ctypes.byref(ctypes.c_uint64()), code) == "CUDA_ERROR_INVALID_PTX"


def test_a_fat_binary_is_searched_for_the_best_image(cu: Cu) -> None:
    older, newer = cubin(Kernel("older")), cubin(Kernel("newer"), architecture=86)
    ptx = entry(PTX.rstrip(b"\0"), kind=1, architecture=75)
    module = load(cu, fat_binary(entry(newer, architecture=86), ptx, entry(older)))
    function(cu, module, b"older")
    module = load(cu, fat_binary(entry(newer, architecture=86), ptx))  # no cubin for it: the PTX is compiled
    function(cu, module, b"saxpy")
    assert try_load(cu, fat_binary(entry(newer, architecture=86))) == NO_BINARY
    fat = ctypes.create_string_buffer(fat_binary(entry(older)))
    module = load(cu, wrapper(ctypes.addressof(fat)))
    function(cu, module, b"older")
    function(cu, cu.out("cuModuleLoadFatBinary", fat), b"older")


@pytest.mark.parametrize("image", [fat_binary(entry(b"(compressed)", flags=LZ4)), b"arena-skipped-kernel 1"])
def test_an_image_that_cannot_be_looked_into_has_whatever_is_asked_for(cu: Cu, image: bytes) -> None:
    module = load(cu, image)
    anything = function(cu, module, b"anything")
    assert attribute(cu, REGISTERS, anything) == 32
    assert cu.cuFuncGetParamInfo(anything, 0, ctypes.byref(ctypes.c_size_t()), None) == "CUDA_ERROR_NOT_SUPPORTED"
    address, size = variable(cu, module, b"something")
    assert (size, variable(cu, module, b"something")) == (1024, (address, size))
    cu.ok("cuModuleUnload", module)


def test_the_functions_of_an_unloaded_module_are_dead(cu: Cu) -> None:
    module = load(cu)
    scale = function(cu, module)
    cu.ok("cuModuleUnload", module)
    assert cu.cuModuleUnload(module) == INVALID_VALUE
    assert cu.cuFuncGetAttribute(ctypes.byref(ctypes.c_int()), 0, scale) == INVALID_HANDLE
    assert cu.cuFuncGetAttribute(ctypes.byref(ctypes.c_int()), 0, 0x1234) == INVALID_HANDLE
    assert cu.cuFuncGetAttribute(ctypes.byref(ctypes.c_int()), 0, 0) == INVALID_HANDLE  # null: an ordinary mistake
    expect("dead module", "dead function", "unknown handle")


def test_modules_go_with_their_context(cu: Cu) -> None:
    load(cu)
    library = load_library(cu)
    cu.ok("cuKernelGetFunction", ctypes.byref(ctypes.c_uint64()), cu.out("cuLibraryGetKernel", library, b"scale"))
    assert sim.census().modules == 2
    cu.ok("cuDevicePrimaryCtxReset", 0)
    assert (sim.census().modules, sim.used()) == (0, 0)
    cu.start()
    module = cu.out("cuLibraryGetModule", library)  # a library outlives contexts
    assert module != 0
    cu.ok("cuLibraryUnload", library)


def test_a_library_is_loaded_into_each_context_that_needs_it(two_devices: tuple[Cu, int, int]) -> None:
    cu, first, second = two_devices
    library = load_library(cu)
    kernel = cu.out("cuLibraryGetKernel", library, b"scale")
    assert kernel == cu.out("cuLibraryGetKernel", library, b"scale")
    assert cu.cuLibraryGetKernel(ctypes.byref(ctypes.c_uint64()), library, b"absent") == NOT_FOUND
    assert cu.out("cuLibraryGetKernelCount", library, kind=ctypes.c_uint) == 2
    assert cu.out("cuKernelGetLibrary", kernel) == library
    assert sim.used(0) == sim.used(1) == 0  # not before it is needed
    places = []
    for context in (first, second):
        cu.ok("cuCtxSetCurrent", context)
        places.append((cu.out("cuKernelGetFunction", kernel), *variable(cu, library, b"table", "cuLibraryGetGlobal")))
        assert cu.cuModuleUnload(cu.out("cuLibraryGetModule", library)) == "CUDA_ERROR_NOT_PERMITTED"
    assert places[0] != places[1]
    assert sim.used(0) == sim.used(1) > 0
    both, size = variable(cu, library, b"both", "cuLibraryGetManaged")
    assert (size, ctypes.string_at(both, 1)) == (8, b"\x09")
    assert cu.cuLibraryGetManaged(ctypes.byref(ctypes.c_uint64()), None, library, b"table") == NOT_FOUND
    cu.ok("cuLibraryUnload", library)
    assert sim.used(0) == sim.used(1) == 0
    assert cu.cuKernelGetName(ctypes.byref(ctypes.c_char_p()), kernel) == INVALID_HANDLE
    expect("dead kernel")


def test_what_is_set_on_a_function_counts_more_than_what_is_set_on_its_kernel(cu: Cu) -> None:
    kernel = cu.out("cuLibraryGetKernel", load_library(cu), b"nothing")
    scale = cu.out("cuKernelGetFunction", kernel)
    cu.ok("cuFuncSetAttribute", scale, MAX_DYNAMIC, 1000)
    cu.ok("cuKernelSetAttribute", MAX_DYNAMIC, 2000, kernel, 0)
    assert attribute(cu, MAX_DYNAMIC, scale) == 1000
    assert cu.out("cuKernelGetAttribute", MAX_DYNAMIC, kernel, 0, kind=ctypes.c_int) == 2000
    assert cu.cuKernelSetAttribute(MAX_DYNAMIC, 2000, kernel, 7) == "CUDA_ERROR_INVALID_DEVICE"


def test_modules_need_a_context_and_libraries_do_not(machine: None) -> None:
    cu = Cu()
    cu.ok("cuInit", 0)
    assert try_load(cu, IMAGE) == "CUDA_ERROR_INVALID_CONTEXT"
    library = load_library(cu)
    cu.out("cuLibraryGetKernel", library, b"scale")
    assert cu.cuLibraryGetModule(ctypes.byref(ctypes.c_uint64()), library) == "CUDA_ERROR_INVALID_CONTEXT"
    cu.ok("cuLibraryUnload", library)


def test_the_log_of_a_compiler_that_never_ran_is_empty(cu: Cu) -> None:
    log = ctypes.create_string_buffer(b"untouched", 64)
    options = (ctypes.c_uint * 2)(5, 6)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 64)
    cu.ok("cuModuleLoadDataEx", ctypes.byref(ctypes.c_uint64()), PTX, 2, options, values)
    assert (log.value, values[1]) == (b"", None)
