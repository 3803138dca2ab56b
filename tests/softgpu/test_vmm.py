"""Virtual memory and pools of one process: aliasing, access, the driver's refusals, and books that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram, scripted_programs
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

UNIT = 2 << 20
INVALID = "CUDA_ERROR_INVALID_VALUE"


def used(directory: Path) -> int:
    counters = manage.inspect(directory, 0)
    return int(counters["memory_bytes"]) - int(counters["memory_free_bytes"])


def mapped(puppet: ScriptedProgram, handle: int, size: int = UNIT) -> int:
    """The handle at a new address, with access."""
    address = int(puppet.do("reserve", size))
    puppet.do("map", address, size, handle)
    puppet.do("access", address, size)
    return address


def test_one_memory_at_two_addresses_is_one_memory(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        handle = puppet.do("create", UNIT)
        first, second = mapped(puppet, handle), mapped(puppet, handle)
        puppet.do("fill", first, 7, 100)
        assert puppet.do("read", second, 100) == "07" * 100
        assert used(softgpu) == UNIT
        # The memory lives until its last handle and its last mapping are gone, whichever comes last.
        puppet.do("release", handle)
        assert puppet.code("release", handle) == INVALID
        puppet.do("unmap", first, UNIT)
        assert used(softgpu) == UNIT
        again = puppet.do("retain", second)
        puppet.do("unmap", second, UNIT)
        assert used(softgpu) == UNIT
        assert puppet.do("read", mapped(puppet, again), 100) == "07" * 100
        puppet.do("release", again)
        assert used(softgpu) == UNIT


def test_addresses_are_refused_as_the_driver_refuses_them(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        assert puppet.code("create", UNIT + 4096) == INVALID
        assert puppet.code("reserve", 100) == INVALID
        handle, address = puppet.do("create", UNIT), puppet.do("reserve", 4 * UNIT)
        assert puppet.code("map", address + 4096, UNIT, handle) == INVALID
        assert puppet.code("map", address, 2 * UNIT, handle) == INVALID
        assert puppet.code("map", address, UNIT, handle, 4096) == INVALID
        assert puppet.code("map", address + 4 * UNIT, UNIT, handle) == INVALID
        assert puppet.code("unmap", address, UNIT) == INVALID
        puppet.do("map", address, UNIT, handle)
        assert puppet.code("map", address, UNIT, handle) == INVALID
        puppet.do("map", address + UNIT, UNIT, handle)
        assert puppet.code("unreserve", address, 4 * UNIT) == INVALID
        assert puppet.code("unmap", address + UNIT, 2 * UNIT) == INVALID
        assert puppet.code("free", address) == INVALID
        assert puppet.do("range", address + UNIT + 5) == [address + UNIT, UNIT]
        puppet.do("unmap", address, 2 * UNIT)
        assert puppet.code("unreserve", address, UNIT) == INVALID
        puppet.do("unreserve", address, 4 * UNIT)
        puppet.do("release", handle)
        assert used(softgpu) == 0


def test_without_access_nothing_is_read_or_written(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        handle, address = puppet.do("create", 2 * UNIT), puppet.do("reserve", 2 * UNIT)
        puppet.do("map", address, 2 * UNIT, handle)
        assert puppet.do("get_access", address) == 0
        assert puppet.code("read", address, 1) == INVALID
        assert puppet.code("fill", address, 1, 1) == INVALID
        puppet.do("access", address, 2 * UNIT, "READ")
        assert puppet.do("read", address, 1) == "00"
        assert puppet.code("fill", address, 1, 1) == INVALID
        puppet.do("access", address, 2 * UNIT)
        assert puppet.do("get_access", address) == 3
        puppet.do("fill", address, 1, 1)
        assert puppet.do("read", address, 1) == "01"
        puppet.do("unmap", address, 2 * UNIT)
        puppet.do("map", address, 2 * UNIT, handle)
        assert puppet.code("read", address, 1) == INVALID


def test_mappings_side_by_side_are_one_piece(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        one, two = puppet.do("create", UNIT), puppet.do("create", UNIT)
        address = puppet.do("reserve", 2 * UNIT)
        puppet.do("map", address, UNIT, one)
        puppet.do("map", address + UNIT, UNIT, two)
        puppet.do("access", address, UNIT)
        assert puppet.code("fill", address + UNIT - 1, 5, 2) == INVALID
        puppet.do("access", address, 2 * UNIT)
        puppet.do("fill", address + UNIT - 1, 5, 2)
        assert puppet.do("read", address + UNIT - 1, 3) == "050500"


def test_memory_beyond_the_device_is_refused_and_counted_nowhere(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        total = manage.inspect(softgpu, 0)["memory_bytes"]
        handle = puppet.do("create", total - UNIT)
        assert puppet.code("create", 2 * UNIT) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert used(softgpu) == total - UNIT
        puppet.do("release", handle)
        assert used(softgpu) == 0


def test_a_pool_keeps_its_reservation_until_it_is_trimmed(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        pool = puppet.do("pool_make", exportable=False)
        pointer = puppet.do("pool_alloc", pool, UNIT + 1)
        assert puppet.do("pool_get", pool, "USED_MEM_CURRENT") == UNIT + 512
        assert puppet.do("pool_get", pool, "RESERVED_MEM_CURRENT") == used(softgpu) == 2 * UNIT
        puppet.do("free_async", pointer)
        assert puppet.do("pool_get", pool, "USED_MEM_CURRENT") == 0
        assert puppet.do("pool_get", pool, "RESERVED_MEM_CURRENT") == used(softgpu) == 2 * UNIT
        puppet.do("sync")
        assert puppet.do("pool_get", pool, "RESERVED_MEM_CURRENT") == used(softgpu) == 0
        puppet.do("pool_threshold", pool, 4 * UNIT)
        pointer = puppet.do("pool_alloc", pool, 8 * UNIT)
        puppet.do("free_async", pointer)
        puppet.do("sync")
        assert used(softgpu) == 4 * UNIT
        puppet.do("pool_trim", pool, UNIT)
        assert used(softgpu) == UNIT
        assert puppet.do("pool_get", pool, "RESERVED_MEM_HIGH") == 8 * UNIT
        # Destroyed with an allocation still out: that one lives on, and takes the pool along.
        pointer = puppet.do("pool_alloc", pool, 3 * UNIT)
        puppet.do("pool_destroy", pool)
        assert puppet.code("pool_trim", pool, 0) == INVALID
        puppet.do("fill", pointer, 9, 3)
        assert puppet.do("read", pointer, 3) == "090909"
        assert used(softgpu) == 3 * UNIT
        puppet.do("free", pointer)
        assert used(softgpu) == 0


def test_memory_that_a_pool_keeps_is_available_to_other_allocations(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [puppet]:
        total = manage.inspect(softgpu, 0)["memory_bytes"]
        pool = puppet.do("pool_make", exportable=False)
        puppet.do("pool_threshold", pool, total)
        puppet.do("free_async", puppet.do("pool_alloc", pool, total - UNIT))
        puppet.do("sync")
        assert used(softgpu) == total - UNIT
        pointer = puppet.do("alloc", total - UNIT)
        assert used(softgpu) == total - UNIT
        puppet.do("free", pointer)
        assert used(softgpu) == 0


def test_kernels_see_mapped_memory_and_fault_without_access(softgpu: Path) -> None:
    assert "faulted" in run(softgpu, "virtual.py")
    assert used(softgpu) == 0


def test_every_location_has_its_pools(softgpu: Path) -> None:
    assert "pools" in run(softgpu, "pools.py")
    assert used(softgpu) == 0


def test_managed_memory_remembers_advice(softgpu: Path) -> None:
    assert "advised" in run(softgpu, "advised.py")


def test_cuda_core_on_virtual_memory_and_pools(softgpu: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert "core maps" in run(softgpu, "coremaps.py")
    assert used(softgpu) == 0


def test_peers_are_distinguished(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 2)
    try:
        assert "peers" in run(directory, "peers.py")
    finally:
        manage.destroy(directory)
