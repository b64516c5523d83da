"""Cards: what a device says it is, by a profile, and what follows from that."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from arena import UsageError, sim
from arena._cards import read_cards

from .cu import GIB, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Cu
from .images import Kernel, cubin
from .test_launches import config, launch_ex
from .test_modules import NO_BINARY, function, load, try_load
from .test_settings import run

INVALID_DEVICE = "CUDA_ERROR_INVALID_DEVICE"
LEAST = {"name": '"Card"', "memory": '"4GiB"', "compute_capability": '"8.9"', "multiprocessors": "10"}


def profile(folder: Path, **values: str) -> Path:
    """Write the profile of a card with these values, as TOML, besides the least that it must have."""
    path = folder / "card.toml"
    lines = [f"{key} = {value}" for key, value in {**LEAST, **values}.items() if value]
    path.write_text("# A card\n" + "\n".join(lines) + "\n")
    return path


def start(folder: Path, **values: str) -> Cu:
    sim.configure(card=profile(folder, **values))
    cu = Cu()
    cu.start()
    return cu


def attribute(cu: Cu, what: int, device: int = 0) -> int:
    return cu.out("cuDeviceGetAttribute", what, device, kind=ctypes.c_int)


FULL = {
    "name": '"NVIDIA Example"  # said by the driver',
    "memory": "25_386_352_640",
    "compute_capability": '"9.0"',
    "multiprocessors": "132",
    "threads_per_multiprocessor": "2048",
    "shared_per_block": "49152",
    "shared_per_block_optin": '"227KiB"',
    "shared_per_multiprocessor": "233472",
    "registers_per_multiprocessor": "65536",
    "l2_cache": '"50MiB"',
    "clock_khz": "1980000",
    "memory_clock_khz": "2619000",
    "bus_width": "5120",
    "integrated": "true",
    "blocks_per_multiprocessor": "32",
    "context": '"500MiB"',
}


def test_a_device_says_what_its_profile_says(machine: None, tmp_path: Path) -> None:
    cu = start(tmp_path, **FULL)
    name = ctypes.create_string_buffer(64)
    cu.ok("cuDeviceGetName", name, 64, 0)
    assert name.value == b"NVIDIA Example"
    assert cu.out("cuDeviceTotalMem", 0) == 25_386_352_640
    told = {what: attribute(cu, what) for what in (75, 76, 16, 39, 8, 97, 81, 82, 38, 13, 36, 37, 18, 106)}
    assert told == {
        75: 9,
        76: 0,
        16: 132,
        39: 2048,
        8: 49152,
        97: 227 << 10,
        81: 233472,
        82: 65536,
        38: 50 * MIB,
        13: 1_980_000,
        36: 2_619_000,
        37: 5120,
        18: 1,
        106: 32,
    }
    assert attribute(cu, 120) == 1  # clusters come with 9.0
    major, minor = ctypes.c_int(), ctypes.c_int()
    cu.ok("cuDeviceComputeCapability", ctypes.byref(major), ctypes.byref(minor), 0)
    assert (major.value, minor.value) == (9, 0)
    assert sim.settings().card == str(tmp_path / "card.toml")


@pytest.mark.parametrize(
    ("capability", "threads", "blocks", "shared", "optin"),
    [
        ("7.5", 1024, 16, 64, 64),
        ("8.0", 2048, 32, 164, 163),
        ("8.6", 1536, 16, 100, 99),
        ("8.9", 1536, 24, 100, 99),
        ("9.0", 2048, 32, 228, 227),
        ("10.0", 2048, 32, 228, 227),
        ("12.0", 1536, 24, 100, 99),
    ],
)
def test_what_a_profile_does_not_say_follows_from_the_compute_capability(
    machine: None, tmp_path: Path, capability: str, threads: int, blocks: int, shared: int, optin: int
) -> None:
    cu = start(tmp_path, compute_capability=f'"{capability}"')
    assert [attribute(cu, what) for what in (39, 106, 81, 97)] == [threads, blocks, shared << 10, optin << 10]


def test_memory_that_is_set_counts_more_than_the_cards(machine: None, tmp_path: Path) -> None:
    card = profile(tmp_path)
    sim.configure(card=card)
    assert sim.settings().memory == (4 * GIB,)
    sim.configure(memory="2GiB")
    assert sim.settings().memory == (2 * GIB,)
    sim.configure(card=card, memory=["1GiB", "3GiB"])
    assert sim.settings().memory == (GIB, 3 * GIB)
    code = "from arena import sim; print(sim.settings().memory, sim.settings().integrated)"
    assert run(code, CUDASIM_CARD=str(card)).stdout == f"({4 * GIB},) False\n"
    assert run(code, CUDASIM_CARD=str(card), CUDASIM_MEMORY="1GiB").stdout == f"({GIB},) False\n"


def test_every_card_that_arena_knows_is_accepted(machine: None) -> None:
    for card in read_cards():
        sim.configure(card=card.key)
        assert sim.settings().memory == (card.memory,), card.key
    sim.configure(card="RTX 4090")
    cu = Cu()
    cu.start()
    assert (attribute(cu, 75), attribute(cu, 76), attribute(cu, 16)) == (8, 9, 128)
    with pytest.raises(UsageError, match="there is no card 'rtx4009'"):
        sim.configure(card="rtx4009")


def test_a_refused_change_leaves_the_card_and_its_memory(machine: None, tmp_path: Path) -> None:
    sim.configure(memory="3GiB", integrated=True)
    with pytest.raises(UsageError, match="granularity"):
        sim.configure(card=profile(tmp_path), granularity="3MiB")
    assert (sim.settings().card, sim.settings().memory, sim.settings().integrated) == ("", (3 * GIB,), True)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"colour": "3"}, "line 6: there is no key 'colour'; write one of name, memory, "),
        ({"memory": ""}, "card.toml has no memory; a profile has at least name, memory, "),
        ({"name": "Card"}, "line 2: name = Card is not accepted; write a text of 1 to 255 bytes in double quotes"),
        ({"name": '"Card'}, 'line 2: name = "Card is not accepted; write a text in double quotes'),
        ({"memory": '"much"'}, 'line 3: memory = "much" is not accepted; write bytes, such as 25386352640 or "24GiB"'),
        ({"memory": "1"}, "line 3: memory = 1 is not accepted; write bytes"),
        ({"compute_capability": "8.9"}, "line 4: compute_capability = 8.9 is not accepted; write it in double quotes"),
        ({"compute_capability": '"89"'}, 'line 4: compute_capability = "89" is not accepted'),
        ({"compute_capability": '"3.5"'}, 'line 4: compute_capability = "3.5" is not accepted'),
        ({"multiprocessors": "0"}, "line 5: multiprocessors = 0 is not accepted; write a whole number from 1 to 65536"),
        ({"multiprocessors": "1__0"}, "line 5: multiprocessors = 1__0 is not accepted"),
        ({"multiprocessors": "ten # 10"}, "line 5: multiprocessors = ten is not accepted"),
        ({"integrated": "yes"}, "line 6: integrated = yes is not accepted; write true or false"),
        ({"context": '"5GiB"'}, 'line 6: context = "5GiB" is not accepted; write bytes'),
        ({"bus_width": "# none"}, "line 6: bus_width has no value; write one behind the ="),
    ],
)
def test_a_profile_that_is_wrong_is_refused_with_its_line(
    machine: None, tmp_path: Path, values: dict[str, str], told: str
) -> None:
    with pytest.raises(UsageError, match=r"card: .*card\.toml.*" + re.escape(told.removeprefix("card.toml"))):
        sim.configure(card=profile(tmp_path, **values))


def test_what_is_no_profile_is_refused(machine: None, tmp_path: Path) -> None:
    (tmp_path / "twice.toml").write_text("bus_width = 1\nbus_width = 1\n")
    (tmp_path / "line.toml").write_text("bus_width\n")
    (tmp_path / "large.toml").write_text("#" * 70_000)
    for name, told in (
        ("absent.toml", "there is no file of that name"),
        ("twice.toml", "line 2: bus_width is there twice"),
        ("line.toml", "line 1: 'bus_width' has no value"),
        ("large.toml", "is larger than 64 KiB"),
        (".", "is not a regular file"),
    ):
        with pytest.raises(UsageError, match=told):
            sim.configure(card=tmp_path / name)


def test_a_card_whose_profile_is_gone_can_be_put_back(machine: None, tmp_path: Path) -> None:
    card = profile(tmp_path)
    sim.configure(card=card)
    card.unlink()
    sim.configure(card="")
    sim.configure(card=card)
    assert sim.settings().memory == (4 * GIB,)


def test_a_context_takes_memory_once_on_each_device(machine: None, tmp_path: Path) -> None:
    cu = start(tmp_path, context='"300MiB"')
    assert sim.used() == 300 * MIB
    second = cu.out("cuCtxCreate", 0, 0)
    assert sim.used() == 300 * MIB
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cu.ok("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (4 * GIB - 300 * MIB, 4 * GIB)
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 4 * GIB - 299 * MIB) == OUT_OF_MEMORY
    cu.ok("cuCtxDestroy", second)
    assert sim.used() == 300 * MIB
    cu.ok("cuDevicePrimaryCtxRelease", 0)
    assert sim.used() == 0
    sim.configure(other="3900MiB")
    assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_uint64()), 0) == OUT_OF_MEMORY
    sim.configure(other=0)


def test_code_and_clusters_follow_the_card(machine: None, tmp_path: Path) -> None:
    cu = start(tmp_path, compute_capability='"9.0"')
    assert try_load(cu, cubin(Kernel("old"))) == NO_BINARY
    free = function(cu, load(cu, cubin(Kernel("free"), architecture=90)), b"free")
    assert launch_ex(cu, free, config(grid=(8, 1, 1), cluster=[8, 1, 1])) == SUCCESS
    assert launch_ex(cu, free, config(grid=(16, 1, 1), cluster=[16, 1, 1])) == "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    cu.ok("cuFuncSetAttribute", free, 14, 1)
    assert launch_ex(cu, free, config(grid=(16, 1, 1), cluster=[16, 1, 1])) == SUCCESS
    assert launch_ex(cu, free, config(grid=(3, 1, 1), cluster=[2, 1, 1])) == INVALID_VALUE


def test_every_attribute_of_a_known_number_has_a_value(cu: Cu) -> None:
    for what in range(1, 145):
        attribute(cu, what)
    for what in (0, 201):
        assert cu.cuDeviceGetAttribute(ctypes.byref(ctypes.c_int()), what, 0) == INVALID_VALUE


def test_a_device_is_found_by_its_bus_id(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, _ = two_devices
    text = ctypes.create_string_buffer(16)
    cu.ok("cuDeviceGetPCIBusId", text, 16, 1)
    for given in (text.value, b"0000:02:00", b"02:00.0", b"0:2:0.0"):
        assert cu.out("cuDeviceGetByPCIBusId", given, kind=ctypes.c_int) == 1, given
    find = lambda given: cu.cuDeviceGetByPCIBusId(ctypes.byref(ctypes.c_int()), given)  # noqa: E731
    assert find(b"0000:09:00.0") == find(b"0001:02:00.0") == find(b"0000:02:01.0") == INVALID_DEVICE
    assert find(b"nonsense") == find(b"0000:02:00.0x") == find(None) == INVALID_VALUE


def test_links_between_devices_are_described(machine: None) -> None:
    sim.configure(devices=3, peers=[(0, 1)])
    cu = Cu()
    cu.start()
    ask = lambda what, one, other: cu.out("cuDeviceGetP2PAttribute", what, one, other, kind=ctypes.c_int)  # noqa: E731
    assert (ask(2, 0, 1), ask(2, 0, 2), ask(3, 0, 1)) == (1, 0, 0)
    assert cu.cuDeviceGetP2PAttribute(ctypes.byref(ctypes.c_int()), 2, 0, 0) == INVALID_DEVICE
    assert cu.cuDeviceGetP2PAttribute(ctypes.byref(ctypes.c_int()), 9, 0, 1) == INVALID_VALUE


def test_what_the_device_does_not_have_is_said(cu: Cu) -> None:
    assert (
        cu.cuDeviceGetLuid(ctypes.create_string_buffer(8), ctypes.byref(ctypes.c_uint()), 0)
        == "CUDA_ERROR_NOT_SUPPORTED"
    )
    assert cu.out("cuDeviceGetExecAffinitySupport", 0, 0, kind=ctypes.c_int) == 0
    assert cu.out("cuDeviceGetTexture1DLinearMaxWidth", 32, 4, 0) == 1 << 28
    assert cu.cuDeviceGetTexture1DLinearMaxWidth(ctypes.byref(ctypes.c_size_t()), 32, 3, 0) == INVALID_VALUE
    assert (cu.cuFlushGPUDirectRDMAWrites(0, 100), cu.cuFlushGPUDirectRDMAWrites(0, 1)) == (SUCCESS, INVALID_VALUE)
    properties = (ctypes.c_int * 14)()
    cu.ok("cuDeviceGetProperties", properties, 0)
    assert list(properties[:4]) == [1024, 1024, 1024, 64]
    assert properties[9] == 32


def test_the_limits_of_a_context_can_be_set(cu: Cu) -> None:
    get = lambda limit: cu.out("cuCtxGetLimit", limit, kind=ctypes.c_size_t)  # noqa: E731
    assert [get(limit) for limit in range(7)] == [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0]
    for limit, value, now in ((0, 4000, 4000), (2, 64 << 20, 64 << 20), (5, 33, 64), (6, 1 << 40, 30 * MIB)):
        cu.ok("cuCtxSetLimit", limit, value)
        assert get(limit) == now
    assert (
        cu.cuCtxSetLimit(9, 1)
        == cu.cuCtxGetLimit(ctypes.byref(ctypes.c_size_t()), 99)
        == "CUDA_ERROR_UNSUPPORTED_LIMIT"
    )
    assert cu.cuCtxSetLimit(5, 129) == cu.cuCtxSetLimit(3, 25) == INVALID_VALUE


def test_preferences_and_flags_of_a_context_can_be_set(cu: Cu) -> None:
    cu.ok("cuCtxSetCacheConfig", 2)
    assert cu.out("cuCtxGetCacheConfig", kind=ctypes.c_uint) == 2
    cu.ok("cuCtxSetSharedMemConfig", 2)
    assert cu.out("cuCtxGetSharedMemConfig", kind=ctypes.c_uint) == 1  # banks have one width
    assert cu.cuCtxSetCacheConfig(4) == cu.cuCtxSetSharedMemConfig(3) == INVALID_VALUE
    cu.ok("cuCtxSetFlags", 4)
    assert cu.out("cuCtxGetFlags", kind=ctypes.c_uint) == 4
    assert cu.cuCtxSetFlags(1 << 20) == INVALID_VALUE
    cu.ok("cuCtxResetPersistingL2Cache")


def test_pitched_memory_has_rows_that_are_aligned(cu: Cu) -> None:
    pitch, address = ctypes.c_size_t(), ctypes.c_uint64()
    cu.ok("cuMemAllocPitch", ctypes.byref(address), ctypes.byref(pitch), 1000, 3, 4)
    assert (pitch.value, sim.used()) == (1024, 4096)
    allocate = lambda *size: cu.cuMemAllocPitch(ctypes.byref(address), ctypes.byref(pitch), *size)  # noqa: E731
    assert allocate(1000, 3, 5) == allocate(0, 3, 4) == INVALID_VALUE
    assert allocate(1 << 20, 1 << 40, 4) == OUT_OF_MEMORY
