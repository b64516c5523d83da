"""A tour of the simulated device: memory stitched and moved, a rule broken, a failure planned, a race found.

Everything here runs on the simulated driver, through the calls that a GPU's driver would get. No GPU is involved.
"""

from __future__ import annotations

import ctypes
from typing import Any

import arena
from arena import sim

MIB, GIB = 1 << 20, 1 << 30


class Cuda:
    """Just enough of the CUDA driver API, called directly. Programs would use a library for this."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(sim.library()))

    def call(self, function: str, *arguments: Any) -> str:
        words = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        code, name = getattr(self.lib, function)(*words), ctypes.c_char_p()
        self.lib.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"?").decode()

    def make(self, function: str, *arguments: Any) -> int:
        made = ctypes.c_uint64()
        result = self.call(function, ctypes.byref(made), *arguments)
        if result != "CUDA_SUCCESS":
            raise arena.DriverError(f"{function}: {result}", call=function, name=result)
        return made.value


def location(kind: int, device: int) -> bytes:
    return kind.to_bytes(4, "little") + device.to_bytes(4, "little")


PINNED_ON_DEVICE_0 = (1).to_bytes(4, "little") + bytes(4) + location(1, 0) + bytes(16)
READ_WRITE_ON_DEVICE_0 = location(1, 0) + (3).to_bytes(4, "little")


def show_device() -> None:
    driver = arena.Driver.open("sim")
    print(f"driver {driver.path.rsplit('/', 1)[-1]}, CUDA {driver.version // 1000}.{driver.version % 1000 // 10}")
    for device in driver.devices():
        size, granule = device.total >> 30, device.granularity >> 20
        print(f"device {device.number}: {device.name}, {size} GiB, in granules of {granule} MiB")


def stitch(cuda: Cuda, size: int) -> tuple[int, list[int]]:
    """Back one range of addresses with pieces of physical memory, each smaller than the whole."""
    address, handles = cuda.make("cuMemAddressReserve", 2 * size, 0, 0, 0), []
    for offset in range(0, size, GIB):
        handles.append(cuda.make("cuMemCreate", GIB, PINNED_ON_DEVICE_0, 0))
        cuda.call("cuMemMap", address + offset, GIB, 0, handles[-1], 0)
    cuda.call("cuMemSetAccess", address, size, READ_WRITE_ON_DEVICE_0, 1)
    return address, handles


def show_memory(cuda: Cuda) -> int:
    address, handles = stitch(cuda, 4 * GIB)
    print(
        f"\n4 GiB at {address:#x}, stitched from four handles of 1 GiB; the device counts {sim.used() >> 30} GiB taken"
    )
    print(f"fill 16 bytes across two of them:     {cuda.call('cuMemsetD8_v2', address + GIB - 8, 7, 16)}")
    cuda.call("cuCtxSynchronize")  # unmapping does not wait
    cuda.call("cuMemUnmap", address, GIB)
    print(f"the same after the first is unmapped: {cuda.call('cuMemsetD8_v2', address + GIB - 8, 7, 16)}")
    elsewhere = address + 4 * GIB
    cuda.call("cuMemMap", elsewhere, GIB, 0, handles[0], 0)
    cuda.call("cuMemSetAccess", elsewhere, GIB, READ_WRITE_ON_DEVICE_0, 1)
    moved = ctypes.create_string_buffer(8)
    cuda.call("cuMemcpyDtoH_v2", moved, elsewhere + GIB - 8, 8)
    print(f"mapped elsewhere, it holds its bytes: {moved.raw.hex(' ')}")
    print("calls:  " + ", ".join(f"{name} {n}" for name, n in sim.call_table().items() if name.startswith("cuMem")))
    print(f"priced: {sim.clock() / 1000:.2f} ms on a device with the prices '{sim.settings().prices}'")
    return elsewhere


def show_failure(cuda: Cuda) -> None:
    sim.fail("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", nth=2)
    results = [cuda.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), MIB) for _ in range(3)]
    print(f"\nThree allocations, the second of which was planned to fail: {', '.join(results)}")


def show_race(cuda: Cuda, address: int) -> None:
    one, two = (cuda.make("cuStreamCreate", 1) for _ in range(2))
    cuda.call("cuMemsetD8Async", address, 1, 4096, one)
    cuda.call("cuMemcpyDtoDAsync_v2", address + MIB, address, 4096, two)
    print("\nTwo streams, and nothing that orders them:")
    for race in sim.races():
        print(f"  {race.second}\n  is not ordered after\n  {race.first}")


def main() -> None:
    sim.configure(memory="8GiB", devices=1, races=True)
    show_device()
    cuda = Cuda()
    cuda.call("cuCtxSetCurrent", cuda.make("cuDevicePrimaryCtxRetain", 0))
    sim.reset_counts()
    address = show_memory(cuda)
    show_failure(cuda)
    show_race(cuda, address)
    print("\nNext: `make test`, or read docs/simulated-driver.md.")


if __name__ == "__main__":
    main()
