"""Virtual memory and pools of one process: aliasing, access, the driver's errors, and memory counters."""

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


def map_memory(program: ScriptedProgram, handle: int, size: int = UNIT) -> int:
    """Map the handle at a new address with access, and return the address."""
    address = int(program.do("reserve", size))
    program.do("map", address, size, handle)
    program.do("access", address, size)
    return address


def test_memory_mapped_at_two_addresses_is_shared(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        handle = program.do("create", UNIT)
        first, second = map_memory(program, handle), map_memory(program, handle)
        program.do("fill", first, 7, 100)
        assert program.do("read", second, 100) == "07" * 100
        assert used(softgpu) == UNIT
        # The memory lives until its last handle and its last mapping are gone, whichever comes last.
        program.do("release", handle)
        assert program.code("release", handle) == INVALID
        program.do("unmap", first, UNIT)
        assert used(softgpu) == UNIT
        again = program.do("retain", second)
        program.do("unmap", second, UNIT)
        assert used(softgpu) == UNIT
        assert program.do("read", map_memory(program, again), 100) == "07" * 100
        program.do("release", again)
        assert used(softgpu) == UNIT


def test_invalid_mappings_get_the_drivers_codes(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        assert program.code("create", UNIT + 4096) == INVALID
        assert program.code("reserve", 100) == INVALID
        handle, address = program.do("create", UNIT), program.do("reserve", 4 * UNIT)
        assert program.code("map", address + 4096, UNIT, handle) == INVALID
        assert program.code("map", address, 2 * UNIT, handle) == INVALID
        assert program.code("map", address, UNIT, handle, 4096) == INVALID
        assert program.code("map", address + 4 * UNIT, UNIT, handle) == INVALID
        assert program.code("unmap", address, UNIT) == INVALID
        program.do("map", address, UNIT, handle)
        assert program.code("map", address, UNIT, handle) == INVALID
        program.do("map", address + UNIT, UNIT, handle)
        assert program.code("unreserve", address, 4 * UNIT) == INVALID
        assert program.code("unmap", address + UNIT, 2 * UNIT) == INVALID
        assert program.code("free", address) == INVALID
        assert program.do("range", address + UNIT + 5) == [address + UNIT, UNIT]
        program.do("unmap", address, 2 * UNIT)
        assert program.code("unreserve", address, UNIT) == INVALID
        program.do("unreserve", address, 4 * UNIT)
        program.do("release", handle)
        assert used(softgpu) == 0


def test_without_access_nothing_is_read_or_written(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        handle, address = program.do("create", 2 * UNIT), program.do("reserve", 2 * UNIT)
        program.do("map", address, 2 * UNIT, handle)
        assert program.do("get_access", address) == 0
        assert program.code("read", address, 1) == INVALID
        assert program.code("fill", address, 1, 1) == INVALID
        program.do("access", address, 2 * UNIT, "READ")
        assert program.do("read", address, 1) == "00"
        assert program.code("fill", address, 1, 1) == INVALID
        program.do("access", address, 2 * UNIT)
        assert program.do("get_access", address) == 3
        program.do("fill", address, 1, 1)
        assert program.do("read", address, 1) == "01"
        program.do("unmap", address, 2 * UNIT)
        program.do("map", address, 2 * UNIT, handle)
        assert program.code("read", address, 1) == INVALID


def test_adjacent_mappings_are_contiguous(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        first, second = program.do("create", UNIT), program.do("create", UNIT)
        address = program.do("reserve", 2 * UNIT)
        program.do("map", address, UNIT, first)
        program.do("map", address + UNIT, UNIT, second)
        program.do("access", address, UNIT)
        assert program.code("fill", address + UNIT - 1, 5, 2) == INVALID
        program.do("access", address, 2 * UNIT)
        program.do("fill", address + UNIT - 1, 5, 2)
        assert program.do("read", address + UNIT - 1, 3) == "050500"


def test_memory_beyond_the_device_is_refused_and_counted_nowhere(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        total = manage.inspect(softgpu, 0)["memory_bytes"]
        handle = program.do("create", total - UNIT)
        assert program.code("create", 2 * UNIT) == "CUDA_ERROR_OUT_OF_MEMORY"
        assert used(softgpu) == total - UNIT
        program.do("release", handle)
        assert used(softgpu) == 0


def test_a_pool_keeps_its_reservation_until_it_is_trimmed(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        pool = program.do("pool_make", exportable=False)
        pointer = program.do("pool_alloc", pool, UNIT + 1)
        assert program.do("pool_get", pool, "USED_MEM_CURRENT") == UNIT + 512
        assert program.do("pool_get", pool, "RESERVED_MEM_CURRENT") == used(softgpu) == 2 * UNIT
        program.do("free_async", pointer)
        assert program.do("pool_get", pool, "USED_MEM_CURRENT") == 0
        assert program.do("pool_get", pool, "RESERVED_MEM_CURRENT") == used(softgpu) == 2 * UNIT
        program.do("sync")
        assert program.do("pool_get", pool, "RESERVED_MEM_CURRENT") == used(softgpu) == 0
        program.do("pool_threshold", pool, 4 * UNIT)
        pointer = program.do("pool_alloc", pool, 8 * UNIT)
        program.do("free_async", pointer)
        program.do("sync")
        assert used(softgpu) == 4 * UNIT
        program.do("pool_trim", pool, UNIT)
        assert used(softgpu) == UNIT
        assert program.do("pool_get", pool, "RESERVED_MEM_HIGH") == 8 * UNIT
        # Destroyed with an allocation still out: that one lives on, and takes the pool along.
        pointer = program.do("pool_alloc", pool, 3 * UNIT)
        program.do("pool_destroy", pool)
        assert program.code("pool_trim", pool, 0) == INVALID
        program.do("fill", pointer, 9, 3)
        assert program.do("read", pointer, 3) == "090909"
        assert used(softgpu) == 3 * UNIT
        program.do("free", pointer)
        assert used(softgpu) == 0


def test_memory_that_a_pool_keeps_is_available_to_other_allocations(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        total = manage.inspect(softgpu, 0)["memory_bytes"]
        pool = program.do("pool_make", exportable=False)
        program.do("pool_threshold", pool, total)
        program.do("free_async", program.do("pool_alloc", pool, total - UNIT))
        program.do("sync")
        assert used(softgpu) == total - UNIT
        pointer = program.do("alloc", total - UNIT)
        assert used(softgpu) == total - UNIT
        program.do("free", pointer)
        assert used(softgpu) == 0


def test_kernels_see_mapped_memory_and_fault_without_access(softgpu: Path) -> None:
    assert "faulted" in run(softgpu, "virtual.py")
    assert used(softgpu) == 0


def test_pools_exist_for_every_location(softgpu: Path) -> None:
    assert "pools" in run(softgpu, "pools.py")
    assert used(softgpu) == 0


def test_managed_memory_remembers_advice(softgpu: Path) -> None:
    assert "advised" in run(softgpu, "advised.py")


def test_cuda_core_on_virtual_memory_and_pools(softgpu: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert "core maps" in run(softgpu, "coremaps.py")
    assert used(softgpu) == 0


def test_peer_access_is_checked(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 2)
    try:
        assert "peers" in run(directory, "peers.py")
    finally:
        manage.destroy(directory)
