"""Known and unknown memory: what copies, fills, launches and graphs do to the marks."""

from __future__ import annotations

import ctypes
import threading
import time

from arena import sim

from ..programs import run
from .conftest import fresh
from .cu import GIB, LEGACY, MIB, SUCCESS, Cu, PoolProps, prop
from .test_graphs import Builder, KernelNode
from .test_modules import function, load, variable
from .values import (
    ALL,
    GARBAGE,
    IMAGE,
    KNOWN,
    NONE,
    SOME,
    UNKNOWN,
    ZERO,
    Values,
    captured,
    dirty,
    launch,
    word,
)


def test_without_tracking_all_is_known_and_marks_do_nothing(cu: Cu) -> None:
    values, address = Values(), cu.alloc(512)
    cu.write(address, b"left")
    values.mark(address, 512, UNKNOWN)
    values.settle(address, 512)
    assert (values.enabled(), values.query(address, 512), cu.read(address, 4)) == (0, ALL, b"left")
    assert values.reads == []


def test_the_environment_turns_tracking_on() -> None:
    code = "from tests.simulated.test_values import Values; print(Values().enabled())"
    assert run(code, check=True, CUDASIM_VALUES="1").stdout == "1\n"
    assert run(code, check=True, CUDASIM_VALUES="0").stdout == "0\n"


def test_what_was_written_before_tracking_was_turned_on_is_unknown(cu: Cu) -> None:
    values, address = Values(), cu.alloc(512)
    cu.write(address, b"before")
    for _ in range(2):
        values.enable(1)
        assert (sim.settings().values, values.query(address, 6)) == (True, NONE)
        cu.write(address, b"since ")
        values.enable(1)  # is on already
        assert values.query(address, 6) == ALL
        values.enable(0)


def test_copies_on_the_device_move_marks(cu: Cu, values: Values) -> None:
    source, target = dirty(cu, values, 4096), cu.alloc(4096)
    cu.ok("cuMemsetD8", target, 1, 4096)
    cu.write(source + 700, b"known")
    values.write(source + 710, 0, 0)  # computed from unknown values
    cu.ok("cuMemcpyDtoD", target + 1, source + 690, 30)
    assert values.known(target, 33) == [1] + [0] * 10 + [1] * 5 + [0] * 15 + [1, 1]
    expected = b"\x01" + bytes(10) + b"known" + bytes(5) + GARBAGE * 2 + bytes(8) + b"\x01\x01"
    assert cu.read(target, 33) == expected


def test_marks_of_an_overlapping_copy_are_those_before_it(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 4096)
    cu.write(address, bytes(1024))
    cu.ok("cuMemcpyDtoD", address + 512, address, 2048)
    assert values.known(address, 4096) == [1] * 1536 + [0] * 2560


def test_copies_between_devices_move_marks(two_devices: tuple[Cu, int, int]) -> None:
    cu, first, second = two_devices
    sim.configure(values=True)
    values = Values()
    source = cu.alloc(512)
    cu.ok("cuCtxSetCurrent", second)
    target = dirty(cu, values, 512)
    cu.write(source, b"known")
    cu.ok("cuMemcpyPeer", target, second, source, first, 8)
    assert (values.known(target, 9), cu.read(target, 9)) == ([1] * 5 + [0] * 4, b"known" + bytes(4))


def test_memory_of_the_host_is_always_known(cu: Cu, values: Values) -> None:
    device, other = dirty(cu, values, 512), cu.out("cuMemAllocHost", 512)
    values.mark(other, 512, UNKNOWN)
    assert values.query(other, 512) == ALL
    ctypes.memset(other, 5, 512)
    cu.ok("cuMemcpy", device, other, 256)
    assert values.known(device, 512) == [1] * 256 + [0] * 256
    cu.ok("cuMemcpy", other, device, 512)
    cu.ok("cuStreamSynchronize", LEGACY)
    assert ctypes.string_at(other, 512) == b"\x05" * 256 + bytes(256)


def test_fills_make_memory_known(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 4096)
    cu.ok("cuMemsetD32", address + 8, 0x01020304, 2)
    cu.ok("cuMemsetD2D8", address + 512, 512, 3, 2, 3)
    assert values.known(address, 20) == [0] * 8 + [1] * 8 + [0] * 4
    assert [values.known(address + 512 * row, 3) for row in range(1, 5)] == [[1, 1, 0]] * 3 + [[0, 0, 0]]
    assert cu.read(address, 20) == bytes(8) + b"\x04\x03\x02\x01" * 2 + bytes(4)


def test_a_value_written_by_a_stream_is_known(cu: Cu, values: Values) -> None:
    address, stream = dirty(cu, values, 512), cu.stream()
    cu.ok("cuStreamWriteValue32", stream, address, 7, 0)
    cu.ok("cuStreamWriteValue64", stream, address + 16, 8, 0)
    assert values.known(address, 32) == [1] * 4 + [0] * 12 + [1] * 8 + [0] * 8


def test_marks_hold_for_each_byte(cu: Cu, values: Values) -> None:
    address = cu.alloc(8192)
    model = [0] * 8192
    for begin_, size, state in [
        (3, 1, KNOWN),
        (512, 1024, KNOWN),
        (1000, 48, UNKNOWN),
        (4000, 200, ZERO),
        (4100, 3000, KNOWN),
        (0, 600, KNOWN),
        (511, 2, UNKNOWN),
        (512, 512, KNOWN),
        (1, 8000, ZERO),
        (4095, 2, KNOWN),
        (0, 8192, KNOWN),
        (8191, 1, UNKNOWN),
    ]:
        values.mark(address + begin_, size, state)
        model[begin_ : begin_ + size] = [int(state == KNOWN)] * size
        assert values.known(address, 8192) == model
        for at, length in [(0, 8192), (begin_, size), (500, 30), (4000, 500)]:
            expected = {(True, True): ALL, (True, False): SOME, (False, False): NONE}
            part = model[at : at + length]
            assert values.query(address + at, length) == expected[any(part), all(part)]


def test_writing_marks_keeps_the_bytes_and_settling_clears_what_is_unknown(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 4096)
    values.write(address + 2, 1, 0, 1)
    values.settle(address, 1000)
    assert values.known(address, 6) == [0, 0, 1, 0, 1, 0]
    assert ctypes.string_at(address, 1001) == bytes(2) + GARBAGE * 3 + bytes(995) + GARBAGE
    assert cu.read(address, 8) == bytes(2) + GARBAGE * 3 + bytes(3)
    assert values.reads == [(address, 8, 6)]


def test_any_address_and_size_are_accepted(cu: Cu, values: Values) -> None:
    address = dirty(cu, values, 4096)
    top = (1 << 64) - 1
    for nonsense, size in [(0, 0), (0, top), (top, top), (1, 100), (address, 0), (address - MIB, 1 << 63)]:
        values.mark(nonsense, size, 7)  # no such state
        values.settle(nonsense, min(size, 100))
        assert values.query(nonsense, min(size, 100)) == ALL
    assert values.query(address, 4096) == NONE
    assert values.query(address - 4096, 3 * 4096) == SOME  # what surrounds it is no device memory
    values.mark(0, top, KNOWN)
    assert values.query(0, top) == ALL
    values.known(0, 8)


def test_marks_follow_a_handle_that_is_mapped_elsewhere_and_mapped_twice(cu: Cu, values: Values) -> None:
    address, handle = cu.mapped(2 * MIB)
    cu.write(address + 100, b"known")
    other = cu.reserve(4 * MIB)
    cu.map(other + 2 * MIB, handle, 2 * MIB)
    assert cu.allow(other + 2 * MIB) == SUCCESS
    assert values.known(other + 2 * MIB + 99, 7) == [0, 1, 1, 1, 1, 1, 0]
    cu.ok("cuStreamSynchronize", LEGACY)
    cu.ok("cuMemUnmap", address, 2 * MIB)
    assert values.query(address + 100, 5) == ALL  # nothing is mapped there
    values.mark(other + 2 * MIB + 102, 1, UNKNOWN)
    cu.map(address, handle)
    assert cu.allow(address) == SUCCESS
    assert cu.read(address + 100, 5) == b"kn\0wn"
    fresh_handle = cu.create(2 * MIB)
    cu.map(other, fresh_handle)
    assert values.query(other, 2 * MIB) == NONE


def test_memory_of_a_pool_is_unknown_again_when_it_is_reused(cu: Cu, values: Values) -> None:
    stream = cu.stream()
    props = PoolProps(*[getattr(prop(), name) for name in ("type", "handle_types", "location")])
    pool = cu.out("cuMemPoolCreate", ctypes.byref(props))
    address = cu.out("cuMemAllocFromPoolAsync", 8192, pool, stream)
    cu.ok("cuMemsetD8Async", address, 1, 8192, stream)
    cu.ok("cuMemFreeAsync", address, stream)
    assert cu.out("cuMemAllocFromPoolAsync", 5000, pool, stream) == address
    assert values.query(address, 5000) == NONE
    cu.ok("cuStreamSynchronize", stream)
    assert cu.read(address, 10) == bytes(10)


def test_a_kernel_makes_unknown_what_its_parameters_point_into(cu: Cu, values: Values) -> None:
    first, second, third = (cu.alloc(3000) for _ in range(3))
    for address in (first, second, third):
        cu.ok("cuMemsetD8", address, 1, 3000)
    module = load(cu, IMAGE)
    launch(cu, function(cu, module, b"writes"), word(first + 2999), ctypes.c_uint(0))
    assert [values.query(address, 3000) for address in (first, second, third)] == [NONE, ALL, ALL]
    launch(cu, function(cu, module, b"takes_struct"), (ctypes.c_uint64 * 3)(5, third, 0))
    assert [values.query(address, 3000) for address in (first, second, third)] == [NONE, ALL, NONE]
    assert cu.read(third, 4) == bytes(4)


def test_a_kernel_makes_unknown_all_that_is_mapped_next_to_its_parameter(cu: Cu, values: Values) -> None:
    address = cu.reserve(10 * MIB)
    places = [address, address + 2 * MIB, address + 4 * MIB, address + 8 * MIB]
    for place in places:
        cu.map(place, cu.create())
        assert cu.allow(place) == SUCCESS
        cu.ok("cuMemsetD8", place, 1, 2 * MIB)
    launch(cu, function(cu, load(cu, IMAGE), b"writes"), word(address + 3 * MIB), ctypes.c_uint(0))
    assert [values.query(place, 2 * MIB) for place in places] == [NONE, NONE, NONE, ALL]


def test_a_kernel_whose_parameters_are_not_known_makes_all_unknown(cu: Cu, values: Values) -> None:
    address = cu.alloc(512)
    cu.write(address, b"known")
    opaque = cu.out("cuModuleLoadData", b"arena-skipped-kernel\0")
    cu.ok("cuLaunchKernel", function(cu, opaque, b"any"), 1, 1, 1, 1, 1, 1, 0, 0, None, None)
    assert values.query(address, 5) == NONE
    cu.write(address, b"again")
    assert cu.read(address, 6) == b"again\0"


def test_a_kernel_makes_its_modules_variables_unknown_but_not_its_constants(cu: Cu, values: Values) -> None:
    module = load(cu, IMAGE)
    counter, factors = variable(cu, module, b"counter")[0], variable(cu, module, b"factors")[0]
    assert (cu.read(counter, 4), cu.read(factors, 8)) == (b"\x07\0\0\0", b"\x09" + bytes(7))
    assert values.reads == []
    launch(cu, function(cu, module, b"bare"))
    assert (values.query(counter, 4), values.query(factors, 8)) == (NONE, ALL)


def test_launches_change_no_marks_of_a_thread_that_marks_by_itself(cu: Cu, values: Values) -> None:
    address, kernel = cu.alloc(512), function(cu, load(cu, IMAGE), b"writes")
    cu.write(address, b"known")

    def elsewhere() -> None:
        cu.start()
        launch(cu, kernel, word(address), ctypes.c_uint(0))

    values.enter()
    values.enter()
    values.leave()
    launch(cu, kernel, word(address), ctypes.c_uint(0))
    assert values.query(address, 5) == ALL
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert values.query(address, 5) == NONE
    cu.write(address, b"known")
    values.leave()
    values.leave()  # one too many
    launch(cu, kernel, word(address), ctypes.c_uint(0))
    assert values.query(address, 5) == NONE


def test_a_captured_graph_changes_marks_at_each_launch_and_not_before(cu: Cu, values: Values) -> None:
    address, pinned = cu.alloc(512), cu.out("cuMemAllocHost", 512)
    kernel = function(cu, load(cu, IMAGE), b"writes")
    cu.write(address, b"known")
    values.enter()

    def work(stream: int) -> None:
        cu.ok("cuMemcpyDtoHAsync", pinned, address, 5, stream)
        launch(cu, kernel, word(address), ctypes.c_uint(0), stream=stream)
        cu.ok("cuMemsetD8Async", address, 3, 2, stream)

    graph = captured(cu, work)
    assert (values.query(address, 5), values.reads) == (ALL, [])
    for read in (b"known", b"\x03\x03\0\0\0"):
        cu.ok("cuGraphLaunch", graph, LEGACY)
        cu.ok("cuStreamSynchronize", LEGACY)
        assert ctypes.string_at(pinned, 5) == read
        assert values.known(address, 5) == [1, 1, 0, 0, 0]
        ctypes.memset(pinned, 9, 5)
    assert values.reads == [(address, 5, 3)]
    values.leave()


def test_nodes_of_a_built_graph_change_marks_like_calls(cu: Cu, values: Values) -> None:
    source, target, written = (dirty(cu, values, 512) for _ in range(3))
    cu.write(written, b"known")
    kernel = function(cu, load(cu, IMAGE), b"writes")
    arguments = [word(written), ctypes.c_uint(0)]
    pointers = (ctypes.c_void_p * 2)(*[ctypes.addressof(argument) for argument in arguments])
    graph = Builder(cu)
    one = (ctypes.c_uint * 3)(1, 1, 1)
    filled = graph.memset(source, 5, width=3)
    copied = graph.memcpy(target, source, 8, filled)
    graph.kernel(KernelNode(function=kernel, grid=one, block=one, params=pointers), copied)
    assert (values.query(source, 3), values.query(written, 5)) == (NONE, ALL)
    graph.run()
    assert values.known(target, 8) == [1] * 3 + [0] * 5
    assert (values.query(written, 5), cu.read(target, 8)) == (NONE, b"\x05" * 3 + bytes(5))


def test_a_reset_forgets_all_marks_and_expectations(cu: Cu, values: Values) -> None:
    values.expect(b"expected")
    cu.write(cu.alloc(512), b"known")
    sim.reset()
    driver = Cu()
    driver.start()
    address = driver.alloc(512)
    assert (sim.settings().values, values.query(address, 8), driver.read(address, 8)) == (True, NONE, bytes(8))


def test_marks_of_large_memory_take_little_time(machine: None) -> None:
    fresh(memory="64GiB", values=True, races=False)
    cu = Cu()
    cu.start()
    values, address = Values(), cu.alloc(48 * GIB)
    begin_time = time.process_time()
    values.mark(address + 5, 1, KNOWN)
    values.mark(address + GIB, GIB, KNOWN)
    assert (values.query(address + GIB, GIB), values.query(address, 48 * GIB)) == (ALL, SOME)
    values.mark(address, 48 * GIB, UNKNOWN)
    assert values.query(address, 48 * GIB) == NONE
    assert time.process_time() - begin_time < 2
    cu.ok("cuMemFree", address)
