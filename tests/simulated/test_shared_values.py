"""Known and unknown memory that the host or another process writes, and launches that mark some of their outputs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

from ..programs import run
from .cu import LEGACY, MIB, SUCCESS, Cu, prop
from .test_modules import function, load, variable
from .test_pitched import DEVICE, Copy3D
from .test_sharing import Handle
from .test_virtual_memory import GRANULE
from .values import ALL, GARBAGE, IMAGE, NONE, SOME, UNKNOWN, Values, dirty, launch, word


def managed_memory(cu: Cu, data: bytes) -> int:
    address = cu.out("cuMemAllocManaged", len(data), 1)
    ctypes.memmove(address, data, len(data))
    return address


def test_managed_memory_is_known_until_a_kernel_gets_it_and_keeps_its_bytes(cu: Cu, values: Values) -> None:
    managed, device = managed_memory(cu, b"by the host" * 50), cu.alloc(11)
    assert values.query(managed, 550) == ALL
    launch(cu, function(cu, load(cu, IMAGE), b"writes"), word(managed), ctypes.c_uint(0))
    assert values.query(managed, 550) == NONE
    assert ctypes.string_at(managed, 11) == b"by the host"  # which may read and write it all the time
    cu.ok("cuMemcpy", device, managed, 11)
    assert (values.query(device, 11), values.reads) == (NONE, [])
    assert cu.read(managed, 11) == b"by the host"
    assert values.reads == [(managed, 11, 11)]
    cu.ok("cuMemsetD8", managed, 1, 100)
    cu.ok("cuStreamSynchronize", LEGACY)
    assert (values.query(managed, 100), values.query(managed, 101)) == (ALL, SOME)


def test_unknown_bytes_that_are_copied_to_managed_memory_arrive_as_zeros(cu: Cu, values: Values) -> None:
    device, managed, other = dirty(cu, values, 512), *(managed_memory(cu, b"\x05" * 512) for _ in range(2))
    cu.ok("cuMemcpy", managed, device, 256)
    cu.ok("cuStreamSynchronize", LEGACY)
    assert ctypes.string_at(managed, 512) == bytes(256) + b"\x05" * 256
    assert (values.known(managed, 512), values.reads) == ([0] * 256 + [1] * 256, [(device, 256, 256)])
    cu.ok("cuMemcpy", other, managed, 512)
    assert (values.known(other, 512), len(values.reads)) == ([0] * 256 + [1] * 256, 1)


def test_a_framework_may_say_that_managed_memory_is_unknown(cu: Cu, values: Values) -> None:
    managed = managed_memory(cu, GARBAGE * 512)
    values.mark(managed, 256, UNKNOWN)
    assert values.known(managed, 512) == [0] * 256 + [1] * 256
    assert cu.read(managed, 300) == bytes(256) + GARBAGE * 44
    values.settle(managed, 512)
    assert ctypes.string_at(managed, 300) == bytes(256) + GARBAGE * 44


IMPORTER = """
import ctypes, sys
from arena import sim
from tests.simulated.cu import Cu, SUCCESS, MIB
from tests.simulated.test_sharing import Handle
from tests.simulated.values import Values
sim.configure(values=True)
cu, values = Cu(), Values()
cu.start()
if sys.argv[1] == "vmm":
    handle = cu.out("cuMemImportFromShareableHandle", ctypes.c_void_p(int(sys.argv[2])), 1)
    address = cu.reserve(2 * MIB)
    cu.map(address, handle)
    assert cu.allow(address) == SUCCESS
else:
    handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(sys.argv[2])))
    address = cu.out("cuIpcOpenMemHandle", handle, 1)
print(cu.read(address, 5), values.query(address, 5), values.reads == [(address, 5, 5)])
cu.write(address, b"again")
print(cu.read(address, 6), values.known(address, 6))
"""
SEEN = ["b'there' 0 True", r"b'again\x00' [1, 1, 1, 1, 1, 0]"]


def test_values_of_another_process_are_delivered_and_count_as_unknown(cu: Cu, values: Values) -> None:
    address = cu.reserve(GRANULE)
    handle = cu.out("cuMemCreate", GRANULE, ctypes.byref(prop(handle_types=1)), 0)
    cu.map(address, handle)
    assert cu.allow(address) == SUCCESS
    cu.write(address, b"there")
    shared = cu.out("cuMemExportToShareableHandle", handle, 1, 0, kind=ctypes.c_int)
    os.set_inheritable(shared, True)
    assert run(IMPORTER, "vmm", str(shared), check=True).stdout.splitlines() == SEEN
    os.close(shared)
    assert cu.read(address, 6) == b"again\0"  # not known here, but not zeros in its place either


def test_memory_that_was_shared_by_a_handle_holds_what_the_other_process_wrote(cu: Cu, values: Values) -> None:
    address, handle = dirty(cu, values, 1 << 20), Handle()
    cu.write(address, b"there")
    cu.ok("cuIpcGetMemHandle", ctypes.byref(handle), address)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER, "ipc", bytes(handle.bytes).hex()], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == SEEN, done.stderr
    assert cu.read(address, 8) == b"again" + bytes(3)
    assert values.known(address, 6) == [1] * 5 + [0]


def test_memory_imported_by_the_process_that_exported_it_is_read_at_both_addresses(cu: Cu, values: Values) -> None:
    handle = cu.out("cuMemCreate", GRANULE, ctypes.byref(prop(handle_types=1)), 0)
    shared = cu.out("cuMemExportToShareableHandle", handle, 1, 0, kind=ctypes.c_int)
    again = cu.out("cuMemImportFromShareableHandle", ctypes.c_void_p(shared), 1)
    os.close(shared)
    first, second = cu.reserve(GRANULE), cu.reserve(GRANULE)
    for address, one in ((first, handle), (second, again)):
        cu.map(address, one)
        assert cu.allow(address) == SUCCESS
    cu.write(second, b"there")
    assert cu.read(first, 5) == b"there"


def test_a_box_marks_its_own_bytes_and_no_others(cu: Cu, values: Values) -> None:
    source, target = dirty(cu, values, 4096), dirty(cu, values, 4096)
    for z in range(3):
        for y in range(4):
            cu.write(source + z * 256 + y * 16, b"abc")
    box = Copy3D(src_type=DEVICE, src_device=source, src_pitch=16, src_height=16)
    box.dst_type, box.dst_device, box.dst_pitch, box.dst_height = DEVICE, target, 8, 5
    box.src_x, box.src_y, box.src_z, box.dst_x, box.dst_y, box.dst_z = 1, 1, 1, 2, 1, 1
    box.width, box.height, box.depth = 4, 2, 2
    cu.ok("cuMemcpy3D", ctypes.byref(box))
    model = [0] * 160
    for z in (1, 2):
        for y in (1, 2):
            model[z * 40 + y * 8 + 2] = model[z * 40 + y * 8 + 3] = 1
    assert values.known(target, 160) == model


def test_a_kernel_that_the_caller_marks_may_write_its_modules_variables(cu: Cu, values: Values) -> None:
    module = load(cu, IMAGE)
    counter, factors = variable(cu, module, b"counter")[0], variable(cu, module, b"factors")[0]
    values.enter()
    launch(cu, function(cu, module, b"bare"))
    values.leave()
    assert (values.query(counter, 4), values.query(factors, 8)) == (NONE, ALL)


def test_an_alias_sees_what_a_kernel_wrote_through_another_address(cu: Cu, values: Values) -> None:
    address, handle = cu.mapped(2 * MIB)
    alias = cu.reserve(2 * MIB)
    cu.map(alias, handle)
    assert cu.allow(alias) == SUCCESS
    cu.write(address, b"known")
    launch(cu, function(cu, load(cu, IMAGE), b"writes"), word(alias + 3), ctypes.c_uint(0))
    assert values.query(address, 5) == NONE
    cu.ok("cuMemcpyDtoD", alias, address, 5)  # onto itself
    assert cu.read(address, 5) == bytes(5)
