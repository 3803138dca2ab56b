"""The quota holds and the ledger is correct for pools, graphs, physical and shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ledger_files import LedgerFixture

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

MIB = 1 << 20
GIB = 1 << 30
CODE_BYTES = 4096
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def quotas(softgpu: Path, tmp_path: Path) -> Iterator[LedgerFixture]:
    fixture = LedgerFixture(softgpu, tmp_path, GIB + CODE_BYTES, GIB + CODE_BYTES)
    yield fixture
    fixture.close()


def held(quotas: LedgerFixture, slot: int) -> int:
    """Return the charge of the ledger without estimates for code, which this device does not count."""
    lines = quotas.lines(slot)
    return quotas.held(slot) - sum(line.held_bytes - line.allocated_bytes - line.managed_bytes for line in lines)


def assert_ledger_equals_device(quotas: LedgerFixture, *slots: int) -> None:
    """Check that ledger and device agree, and that no tenant ever exceeded its quota."""
    for slot in slots or (0, 1):
        assert held(quotas, slot) == quotas.truth(slot)
        assert quotas.truth(slot, "memory_peak_bytes") <= GIB


def test_pool_is_charged_what_it_reserves(quotas: LedgerFixture) -> None:
    program = quotas.start(0)
    assert program.code("alloc_async", 20 * GIB) == OUT_OF_MEMORY
    assert held(quotas, 0) == 0
    assert quotas.denied(0) == 1
    first = program.do("alloc_async", 100 * MIB)
    assert held(quotas, 0) == quotas.truth(0) == 100 * MIB
    program.do("hold")
    program.do("free_async", first)
    program.do("let_go")
    assert held(quotas, 0) == 100 * MIB  # reserved until a synchronization
    program.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 0
    pool = program.do("pool_make", exportable=False)
    program.do("pool_threshold", pool, 2 * GIB)
    kept = program.do("pool_alloc", pool, 700 * MIB)
    assert program.code("alloc_async", 400 * MIB) == OUT_OF_MEMORY
    program.do("free_async", kept)
    program.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 700 * MIB  # above the threshold nothing goes back
    plain = program.do("alloc", 900 * MIB)  # unless this process needs it
    assert_ledger_equals_device(quotas, 0)
    program.do("free", plain)
    program.do("pool_alloc", pool, 700 * MIB)
    program.do("pool_trim", pool, 0)
    assert_ledger_equals_device(quotas, 0)
    assert held(quotas, 0) == 700 * MIB


def test_allocation_of_a_destroyed_pool_is_charged_until_freed(quotas: LedgerFixture) -> None:
    program = quotas.start(0)
    pool = program.do("pool_make", exportable=False)
    kept, other = program.do("pool_alloc", pool, 10 * MIB), program.do("pool_alloc", pool, 30 * MIB)
    program.do("pool_destroy", pool)
    assert held(quotas, 0) == quotas.truth(0) == 40 * MIB
    program.do("free", other)
    program.do("spin", 1_000_000)
    program.do("free_async", kept)
    program.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 0
    busy = program.do("pool_make", exportable=False)
    late = program.do("pool_alloc", busy, 10 * MIB)
    program.do("hold")
    program.do("free_async", late)
    program.do("pool_destroy", busy)
    assert held(quotas, 0) == quotas.truth(0) == 10 * MIB
    program.do("let_go")
    program.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 0
    host = program.do("host_pool")
    program.do("pool_alloc", host, 2 * GIB)  # host memory is not charged
    assert_ledger_equals_device(quotas, 0)


def test_allocation_freed_in_stream_order_is_charged_until_then(quotas: LedgerFixture) -> None:
    program = quotas.start(0)
    plain = program.do("alloc", 800 * MIB)
    program.do("hold")
    program.do("free_async", plain)
    assert held(quotas, 0) == quotas.truth(0) == 800 * MIB
    assert program.code("alloc", 800 * MIB) == OUT_OF_MEMORY
    program.do("let_go")
    program.do("sync")
    program.do("alloc", 800 * MIB)
    assert_ledger_equals_device(quotas, 0)


def test_graph_memory_is_charged(quotas: LedgerFixture) -> None:
    program = quotas.start(0)
    assert program.code("launch", program.do("graph", 600 * MIB, 600 * MIB)) == OUT_OF_MEMORY
    assert program.code("launch", program.do("captured", 2 * GIB)) == OUT_OF_MEMORY
    assert program.code("graph", 600 * MIB, 600 * MIB, uploads=True) == OUT_OF_MEMORY  # the driver may take it at once
    assert quotas.truth(0, "memory_peak_bytes") == 0
    fits = program.do("graph", 600 * MIB)
    for _ in range(3):  # again while the last one may still have its memory
        program.do("launch", fits)
    program.do("sync")
    assert_ledger_equals_device(quotas, 0)
    assert held(quotas, 0) == 0
    keeps = program.do("graph", 600 * MIB, frees=False)
    program.do("launch", keeps)
    assert_ledger_equals_device(quotas, 0)
    assert program.code("launch", fits) == OUT_OF_MEMORY
    program.do("end_graph", keeps)
    assert_ledger_equals_device(quotas, 0)
    assert program.code("alloc", 600 * MIB) == OUT_OF_MEMORY
    program.do("launch", program.do("captured", 100 * MIB))
    program.do("sync")
    assert_ledger_equals_device(quotas, 0)


def test_physical_memory_is_charged_from_creation_to_its_last_mapping(quotas: LedgerFixture) -> None:
    program = quotas.start(0)
    assert program.code("create", 2 * GIB) == OUT_OF_MEMORY
    size = 400 * MIB
    handle = program.do("create", size)
    at = program.do("reserve", 2 * size)
    program.do("map", at, size, handle)
    program.do("map", at + size, size, handle)
    program.do("release", handle)
    assert program.code("create", 2 * size) == OUT_OF_MEMORY
    assert_ledger_equals_device(quotas, 0)
    again = program.do("retain", at + 5)
    program.do("unmap", at, 2 * size)
    assert_ledger_equals_device(quotas, 0)
    assert held(quotas, 0) == size
    program.do("release", again)
    assert_ledger_equals_device(quotas, 0)
    assert held(quotas, 0) == 0


@pytest.mark.parametrize("mode", ["plain", "physical", "pool"])
@pytest.mark.parametrize("end", ["frees", "dies"])
def test_shared_memory_is_charged_once(quotas: LedgerFixture, mode: str, end: str) -> None:
    """To its creator and, after that has freed it or died, to the tenant that keeps it open, until that closes it."""
    size = 600 * MIB
    creator, other = quotas.start(0), quotas.start(1)
    if mode == "plain":
        created = creator.do("alloc", size)
        opened = other.do("ipc_open", creator.do("ipc_get", created + 512))
        assert other.do("ipc_open", creator.do("ipc_get", created)) == opened
        other.do("ipc_close", opened)
        free, close = [("free", created)], [("ipc_close", opened)]
    elif mode == "physical":
        created = creator.do("create", size)
        descriptor = creator.do("export", created)
        imported = other.do("import", descriptor=descriptor)
        os.close(descriptor)
        free, close = [("release", created)], [("release", imported)]
    else:
        pool = creator.do("pool_make")
        descriptor = creator.do("pool_export", pool)
        created = creator.do("pool_alloc", pool, size)
        imported = other.do("pool_import", descriptor=descriptor)
        os.close(descriptor)
        opened = other.do("import_pointer", imported, creator.do("export_pointer", created))
        free, close = [("free", created), ("pool_destroy", pool)], [("pool_destroy", imported), ("free", opened)]
    assert_ledger_equals_device(quotas)
    assert (held(quotas, 0), held(quotas, 1)) == (size, 0)
    if end == "frees":
        for name, argument in free:
            creator.do(name, argument)
    else:
        creator.kill()
        quotas.bury()
    charged = 0 if (mode, end) == ("pool", "frees") else size  # a pool that is empty has nothing reserved
    assert (held(quotas, 0), held(quotas, 1)) == (0, charged)
    assert quotas.truth(0) + quotas.truth(1) == charged
    quotas.start(0).do("alloc", GIB)  # the quota of the creator's tenant is whole again
    assert other.code("alloc", GIB + CODE_BYTES - charged + 512) == OUT_OF_MEMORY
    other.do("alloc", GIB - charged)
    for name, argument in close:
        other.do(name, argument)
    assert (held(quotas, 0), held(quotas, 1)) == (quotas.truth(0), quotas.truth(1)) == (GIB, GIB - charged)
