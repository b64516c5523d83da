"""Kernels that compiled code registers, and their launches."""

from __future__ import annotations

import ctypes

from arena import sim

from .rt import D2H, DEFAULT, H2D, SUCCESS, Program, Rt


def test_a_registered_kernel_is_launched_in_its_stream(program: Program, rt: Rt) -> None:
    before = sim.calls("cuLaunchKernel")
    stream = rt.stream()
    assert program.launch(stream) == SUCCESS
    assert program.launch(stream, blocks=1000, threads=1024) == SUCCESS
    rt.ok("cudaStreamSynchronize", stream)
    assert sim.calls("cuLaunchKernel") == before + 2


def test_a_module_is_loaded_when_its_kernel_is_first_used(program: Program) -> None:
    before = sim.calls("cuLibraryLoadData")
    assert program.launch() == SUCCESS
    assert program.launch() == SUCCESS
    assert sim.calls("cuLibraryLoadData") == before + 1


def test_launches_take_the_time_that_is_configured(program: Program, rt: Rt) -> None:
    stream = rt.stream()
    with sim.temporarily(delay=50_000):
        assert program.launch(stream) == SUCCESS
        assert rt.cudaStreamQuery(stream) == "cudaErrorNotReady"
    rt.ok("cudaStreamSynchronize", stream)
    rt.cudaGetLastError()


def test_a_function_that_was_never_registered_is_refused(program: Program, rt: Rt) -> None:
    program.kernel = ctypes.create_string_buffer(1)
    assert program.launch() == "cudaErrorInvalidDeviceFunction"
    assert rt.cudaGetLastError() == "cudaErrorInvalidDeviceFunction"


def test_a_launch_that_no_device_can_run_is_an_invalid_configuration(program: Program, rt: Rt) -> None:
    assert program.launch(threads=4096) == "cudaErrorInvalidConfiguration"
    assert program.launch(blocks=0) == "cudaErrorInvalidConfiguration"
    rt.cudaGetLastError()


def test_a_launch_is_captured(program: Program, rt: Rt) -> None:
    stream = rt.stream()
    rt.ok("cudaStreamBeginCapture", stream, 0)
    assert program.launch(stream) == SUCCESS
    graph = ctypes.c_uint64()
    rt.ok("cudaStreamEndCapture", stream, ctypes.byref(graph))
    count = ctypes.c_size_t()
    rt.ok("cudaGraphGetNodes", graph.value, 0, ctypes.byref(count))
    assert count.value == 1
    rt.ok("cudaGraphDestroy", graph.value)


def test_variables_of_the_device_are_read_and_written(program: Program, rt: Rt) -> None:
    variable = ctypes.addressof(program.variable)
    assert rt.out("cudaGetSymbolSize", variable) == 64
    address = rt.out("cudaGetSymbolAddress", variable)
    host, back = ctypes.create_string_buffer(b"a" * 16, 16), ctypes.create_string_buffer(16)
    rt.ok("cudaMemcpyToSymbol", variable, host, 16, 48, H2D)
    rt.ok("cudaMemcpy", back, address + 48, 16, DEFAULT)
    assert back.raw == b"a" * 16
    rt.ok("cudaMemcpyFromSymbol", back, variable, 16, 0, D2H)
    assert back.raw == bytes(16)
    assert rt.cudaMemcpyToSymbol(variable, host, 17, 48, H2D) == "cudaErrorInvalidValue"
    assert rt.cudaGetSymbolAddress(ctypes.byref(ctypes.c_uint64()), 12345) == "cudaErrorInvalidSymbol"
    rt.cudaGetLastError()


def test_occupancy_and_attributes_are_those_of_the_device(program: Program, rt: Rt) -> None:
    blocks = ctypes.c_int()
    rt.ok("cudaOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), program.address, 256, 0)
    assert 1 <= blocks.value <= 32


def test_a_pushed_configuration_is_popped_once(rt: Rt) -> None:
    from .rt import Dim3

    push = getattr(rt.lib, "__cudaPushCallConfiguration")
    pop = getattr(rt.lib, "__cudaPopCallConfiguration")
    assert push(Dim3(1, 2, 3), Dim3(4, 5, 6), ctypes.c_size_t(7), ctypes.c_void_p(8)) == 0
    grid, block, shared, stream = Dim3(), Dim3(), ctypes.c_size_t(), ctypes.c_void_p()
    assert pop(ctypes.byref(grid), ctypes.byref(block), ctypes.byref(shared), ctypes.byref(stream)) == 0
    assert (grid.z, block.x, shared.value, stream.value) == (3, 4, 7, 8)
    assert rt.name(pop(ctypes.byref(grid), ctypes.byref(block), ctypes.byref(shared), ctypes.byref(stream))) == (
        "cudaErrorMissingConfiguration"
    )
    rt.cudaGetLastError()


def test_shared_memory_beyond_what_the_driver_can_be_asked_for_is_refused(program: Program, rt: Rt) -> None:
    assert program.launch(shared=1 << 32) == "cudaErrorInvalidConfiguration"
    assert program.launch(shared=1 << 63) == "cudaErrorInvalidConfiguration"
    rt.cudaGetLastError()


def test_an_attribute_that_was_set_is_read_back(program: Program, rt: Rt) -> None:
    max_dynamic_shared, place = 8, 44  # the attribute, and where cudaFuncAttributes has it
    attributes = ctypes.create_string_buffer(256)
    rt.ok("cudaFuncSetAttribute", program.address, max_dynamic_shared, 100 << 10)
    rt.ok("cudaFuncGetAttributes", attributes, program.address)
    assert int.from_bytes(attributes.raw[place : place + 4], "little") == 100 << 10
    assert program.launch(shared=100 << 10) == SUCCESS


def test_a_variable_lives_in_new_memory_after_a_reset(rt: Rt) -> None:
    """Its size is what the compiler registered: a driver that does not unpack the code may know a smaller one."""
    program = Program(rt, variable_size=4096)
    variable = ctypes.addressof(program.variable)
    host, back = ctypes.create_string_buffer(b"a" * 4096, 4096), ctypes.create_string_buffer(4096)
    rt.ok("cudaMemcpyToSymbol", variable, host, 4096, 0, H2D)
    rt.ok("cudaDeviceReset")
    rt.ok("cudaMemcpyFromSymbol", back, variable, 4096, 0, D2H)
    assert back.raw == bytes(4096)
    program.unregister()


def test_code_is_loaded_again_after_the_simulation_was_reset(program: Program, rt: Rt) -> None:
    variable = ctypes.addressof(program.variable)
    assert program.launch() == SUCCESS
    rt.out("cudaGetSymbolAddress", variable)
    sim.reset()
    assert program.launch() == SUCCESS
    sim.reset()
    host = ctypes.create_string_buffer(64)
    rt.ok("cudaMemcpyToSymbol", variable, host, 64, 0, H2D)
    assert program.launch(stream=12345) == "cudaErrorInvalidResourceHandle"  # the stream's, not the kernel's
    assert [finding.kind for finding in sim.findings()] == ["unknown handle"]
    sim.clear_findings()
    rt.cudaGetLastError()
