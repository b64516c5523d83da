"""Copies and fills in two and three dimensions."""

from __future__ import annotations

import ctypes

import pytest

from arena import sim

from ..findings import expect
from .cu import ILLEGAL_ADDRESS, INVALID_VALUE, SUCCESS, Cu
from .test_streams import SLOW

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
SIZE = ctypes.c_size_t


class Copy2D(ctypes.Structure):
    _fields_ = [
        *(("src_x", SIZE), ("src_y", SIZE), ("src_type", ctypes.c_uint), ("src_host", ctypes.c_void_p)),
        *(("src_device", ctypes.c_uint64), ("src_array", ctypes.c_void_p), ("src_pitch", SIZE)),
        *(("dst_x", SIZE), ("dst_y", SIZE), ("dst_type", ctypes.c_uint), ("dst_host", ctypes.c_void_p)),
        *(("dst_device", ctypes.c_uint64), ("dst_array", ctypes.c_void_p), ("dst_pitch", SIZE)),
        *(("width", SIZE), ("height", SIZE)),
    ]


class Copy3D(ctypes.Structure):
    _fields_ = [
        *(("src_x", SIZE), ("src_y", SIZE), ("src_z", SIZE), ("src_lod", SIZE), ("src_type", ctypes.c_uint)),
        *(("src_host", ctypes.c_void_p), ("src_device", ctypes.c_uint64), ("src_array", ctypes.c_void_p)),
        *(("reserved0", ctypes.c_void_p), ("src_pitch", SIZE), ("src_height", SIZE)),
        *(("dst_x", SIZE), ("dst_y", SIZE), ("dst_z", SIZE), ("dst_lod", SIZE), ("dst_type", ctypes.c_uint)),
        *(("dst_host", ctypes.c_void_p), ("dst_device", ctypes.c_uint64), ("dst_array", ctypes.c_void_p)),
        *(("reserved1", ctypes.c_void_p), ("dst_pitch", SIZE), ("dst_height", SIZE)),
        *(("width", SIZE), ("height", SIZE), ("depth", SIZE)),
    ]


def rows(data: bytes, pitch: int) -> list[bytes]:
    return [data[at : at + pitch] for at in range(0, len(data), pitch)]


def test_a_copy_in_two_dimensions_moves_a_rectangle(cu: Cu) -> None:
    source = ctypes.create_string_buffer(bytes(range(40)), 40)
    address = cu.alloc(64)
    up = Copy2D(src_x=1, src_y=1, src_type=HOST, src_host=ctypes.addressof(source), src_pitch=8)
    up.dst_x, up.dst_type, up.dst_device, up.dst_pitch, up.width, up.height = 2, DEVICE, address, 16, 3, 2
    cu.ok("cuMemcpy2D", ctypes.byref(up))
    expected = bytes(2) + bytes([9, 10, 11]) + bytes(11) + bytes(2) + bytes([17, 18, 19]) + bytes(11)
    assert cu.read(address, 32) == expected
    back = ctypes.create_string_buffer(6)
    down = Copy2D(src_x=2, src_type=UNIFIED, src_device=address, src_pitch=16)
    down.dst_type, down.dst_host, down.width, down.height = HOST, ctypes.addressof(back), 3, 2  # packed: no pitch
    cu.ok("cuMemcpy2DUnaligned", ctypes.byref(down))
    assert back.raw == bytes([9, 10, 11, 17, 18, 19])


def test_a_copy_in_three_dimensions_moves_a_box(cu: Cu) -> None:
    cu.write(source := cu.alloc(4 * 4 * 4), bytes(range(64)))
    target = cu.alloc(64)
    box = Copy3D(src_x=1, src_y=1, src_z=1, src_type=DEVICE, src_device=source, src_pitch=4, src_height=4)
    box.dst_type, box.dst_device, box.dst_pitch, box.dst_height = DEVICE, target, 2, 2
    box.width, box.height, box.depth = 2, 2, 2
    cu.ok("cuMemcpy3DAsync", ctypes.byref(box), 0)
    assert cu.read(target, 8) == bytes(16 * z + 4 * y + x for z in (1, 2) for y in (1, 2) for x in (1, 2))
    box.src_lod = 1
    assert cu.cuMemcpy3D(ctypes.byref(box)) == INVALID_VALUE


def test_a_description_of_a_copy_is_checked(cu: Cu) -> None:
    address = cu.alloc(4096)
    good = {"src_type": DEVICE, "src_device": address, "src_pitch": 16, "dst_type": DEVICE, "width": 16, "height": 2}
    good |= {"dst_device": address + 1024, "dst_pitch": 16}
    for bad, result in (
        ({}, SUCCESS),
        ({"width": 0}, SUCCESS),
        ({"src_x": 1}, INVALID_VALUE),  # beyond the pitch
        ({"dst_pitch": 15}, INVALID_VALUE),
        ({"src_pitch": 1 << 31}, INVALID_VALUE),
        ({"src_type": 0}, INVALID_VALUE),
        ({"src_type": ARRAY}, "CUDA_ERROR_NOT_SUPPORTED"),
        ({"src_device": 0x1000}, ILLEGAL_ADDRESS),
        ({"height": 200}, ILLEGAL_ADDRESS),  # beyond the end of the allocation
        ({"dst_type": HOST, "dst_host": 0}, INVALID_VALUE),
    ):
        assert cu.cuMemcpy2D(ctypes.byref(Copy2D(**{**good, **bad}))) == result, bad
    assert cu.cuMemcpy2D(None) == INVALID_VALUE


def test_pageable_rows_may_be_changed_as_soon_as_a_copy_from_them_returns(cu: Cu) -> None:
    source, stream, address = ctypes.create_string_buffer(b"ab..cd..", 8), cu.stream(), cu.alloc(512)
    copy = Copy2D(src_type=HOST, src_host=ctypes.addressof(source), src_pitch=4, dst_type=DEVICE, dst_device=address)
    copy.dst_pitch, copy.width, copy.height = 8, 2, 2
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemcpy2DAsync", ctypes.byref(copy), stream)
        source.value = b"--------"
        cu.ok("cuStreamSynchronize", stream)
    assert rows(cu.read(address, 16), 8) == [b"ab" + bytes(6), b"cd" + bytes(6)]


@pytest.mark.parametrize(("bits", "value"), [(8, 0x11), (16, 0x2211), (32, 0x44332211)])
def test_a_fill_of_rows_leaves_what_is_between_them(cu: Cu, bits: int, value: int) -> None:
    address, unit = cu.alloc(4096), bits // 8
    cu.ok(f"cuMemsetD2D{bits}", address, 64, value, 3, 4)
    filled = value.to_bytes(unit, "little") * 3
    assert rows(cu.read(address, 256), 64) == [filled.ljust(64, b"\0")] * 4
    getattr(cu, f"cuMemsetD2D{bits}Async")(address, 64, 0, 3, 4, 0)
    assert cu.read(address, 256) == bytes(256)
    call = getattr(cu, f"cuMemsetD2D{bits}")
    assert call(address, 3 * unit - unit, value, 3, 4) == INVALID_VALUE  # rows on one another
    assert call(address, 0, value, 3, 1) == SUCCESS  # one row has no pitch
    if unit > 1:
        assert call(address + 1, 64, value, 3, 4) == call(address, 65, value, 3, 4) == INVALID_VALUE
    assert call(address, 64, value, 3, 65) == ILLEGAL_ADDRESS


def test_rows_that_nothing_orders_race_and_what_is_between_them_does_not(cu: Cu) -> None:
    address, one, two = cu.alloc(4096), cu.stream(), cu.stream()
    cu.ok("cuMemsetD2D8Async", address, 64, 1, 16, 4, one)
    cu.ok("cuMemsetD2D8Async", address + 16, 64, 2, 16, 4, two)  # beside them
    assert sim.findings() == []
    cu.ok("cuMemsetD8Async", address + 64, 3, 1, two)
    expect("race")


def test_a_place_before_the_memory_is_refused(cu: Cu) -> None:
    """As from an int that is -1: the sum is an address of the same memory."""
    address, back = cu.alloc(64), ctypes.create_string_buffer(64)
    for place in ("src_x", "src_y", "src_z"):
        box = Copy3D(src_type=DEVICE, src_device=address + 32, src_pitch=8, src_height=2)
        box.dst_type, box.dst_host, box.width, box.height, box.depth = HOST, ctypes.addressof(back), 4, 1, 1
        cu.ok("cuMemcpy3D", ctypes.byref(box))
        setattr(box, place, (1 << 64) - 1)
        assert cu.cuMemcpy3D(ctypes.byref(box)) == INVALID_VALUE


def test_rows_beyond_the_memory_are_refused_however_many(cu: Cu) -> None:
    address, back = cu.alloc(64), ctypes.create_string_buffer(64)
    for height in (1 << 20, 1 << 40):
        down = Copy2D(src_type=DEVICE, src_device=address, src_pitch=2, width=1, height=height)
        down.dst_type, down.dst_host, down.dst_pitch = HOST, ctypes.addressof(back), 2
        assert cu.cuMemcpy2D(ctypes.byref(down)) == ILLEGAL_ADDRESS
        assert cu.cuMemsetD2D8(address, 2, 0, 1, height) == ILLEGAL_ADDRESS
