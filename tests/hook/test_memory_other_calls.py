"""The quota holds and the ledger is correct for pools, graphs, physical and shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate.ledger_file import ledger_path
from tests.support.ledger_files import LedgerFixture

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

MIB = 1 << 20
GIB = 1 << 30
CODE_BYTES = 4096
PAST = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def quotas(softgpu: Path, tmp_path: Path) -> Iterator[LedgerFixture]:
    made = LedgerFixture(softgpu, tmp_path, GIB + CODE_BYTES, GIB + CODE_BYTES)
    yield made
    made.close()


def held(quotas: LedgerFixture, slot: int) -> int:
    """By the ledger, without what programs are believed to take for their code: this device counts none."""
    lines = [line for line in quotas.ledgers.lines(0) if line.slot == slot]
    return quotas.held(slot) - sum(line.held_bytes - line.booked_bytes - line.managed_bytes for line in lines)


def agrees(quotas: LedgerFixture, *slots: int) -> None:
    """Ledger and device say the same, and nobody was ever past the quota."""
    for slot in slots or (0, 1):
        assert held(quotas, slot) == quotas.truth(slot)
        assert quotas.truth(slot, "memory_peak_bytes") <= GIB


def test_pool_is_charged_what_it_reserves(quotas: LedgerFixture) -> None:
    one = quotas.start(0)
    assert one.code("alloc_async", 20 * GIB) == PAST
    assert held(quotas, 0) == 0
    assert quotas.denied(0) == 1
    first = one.do("alloc_async", 100 * MIB)
    assert held(quotas, 0) == quotas.truth(0) == 100 * MIB
    one.do("hold")
    one.do("free_async", first)
    one.do("let_go")
    assert held(quotas, 0) == 100 * MIB  # reserved until somebody waits
    one.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 0
    pool = one.do("pool_make", exportable=False)
    one.do("pool_threshold", pool, 2 * GIB)
    kept = one.do("pool_alloc", pool, 700 * MIB)
    assert one.code("alloc_async", 400 * MIB) == PAST
    one.do("free_async", kept)
    one.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 700 * MIB  # above the threshold nothing goes back
    plain = one.do("alloc", 900 * MIB)  # unless somebody of this process needs it
    agrees(quotas, 0)
    one.do("free", plain)
    one.do("pool_alloc", pool, 700 * MIB)
    one.do("pool_trim", pool, 0)
    agrees(quotas, 0)
    assert held(quotas, 0) == 700 * MIB


def test_allocation_of_a_destroyed_pool_is_charged_until_freed(quotas: LedgerFixture) -> None:
    one = quotas.start(0)
    pool = one.do("pool_make", exportable=False)
    kept, other = one.do("pool_alloc", pool, 10 * MIB), one.do("pool_alloc", pool, 30 * MIB)
    one.do("pool_destroy", pool)
    assert held(quotas, 0) == quotas.truth(0) == 40 * MIB
    one.do("free", other)
    one.do("spin", 1_000_000)
    one.do("free_async", kept)
    one.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 0
    busy = one.do("pool_make", exportable=False)
    late = one.do("pool_alloc", busy, 10 * MIB)
    one.do("hold")
    one.do("free_async", late)
    one.do("pool_destroy", busy)
    assert held(quotas, 0) == quotas.truth(0) == 10 * MIB
    one.do("let_go")
    one.do("sync")
    assert held(quotas, 0) == quotas.truth(0) == 0
    host = one.do("host_pool")
    one.do("pool_alloc", host, 2 * GIB)  # the host's memory is no business of the device's
    agrees(quotas, 0)


def test_allocation_freed_in_stream_order_is_charged_until_then(quotas: LedgerFixture) -> None:
    one = quotas.start(0)
    plain = one.do("alloc", 800 * MIB)
    one.do("hold")
    one.do("free_async", plain)
    assert held(quotas, 0) == quotas.truth(0) == 800 * MIB
    assert one.code("alloc", 800 * MIB) == PAST
    one.do("let_go")
    one.do("sync")
    one.do("alloc", 800 * MIB)
    agrees(quotas, 0)


def test_graph_memory_is_charged(quotas: LedgerFixture) -> None:
    one = quotas.start(0)
    assert one.code("launch", one.do("graph", 600 * MIB, 600 * MIB)) == PAST
    assert one.code("launch", one.do("captured", 2 * GIB)) == PAST
    assert one.code("graph", 600 * MIB, 600 * MIB, uploads=True) == PAST  # the driver may take it at once
    assert quotas.truth(0, "memory_peak_bytes") == 0
    fits = one.do("graph", 600 * MIB)
    for _ in range(3):  # again while the last one may still have its memory
        one.do("launch", fits)
    one.do("sync")
    agrees(quotas, 0)
    assert held(quotas, 0) == 0
    keeps = one.do("graph", 600 * MIB, frees=False)
    one.do("launch", keeps)
    agrees(quotas, 0)
    assert one.code("launch", fits) == PAST
    one.do("end_graph", keeps)
    agrees(quotas, 0)
    assert one.code("alloc", 600 * MIB) == PAST
    one.do("launch", one.do("captured", 100 * MIB))
    one.do("sync")
    agrees(quotas, 0)


def test_process_without_a_ledger_line_may_share_memory_without_a_quota(softgpu: Path, tmp_path: Path) -> None:
    """Nobody counts it: then nobody may refuse it for want of room in the ledger either."""
    quotas = LedgerFixture(softgpu, tmp_path, 0)
    try:
        taken = ledger_path(tmp_path / "pages", 0)
        with taken.open("r+b") as file:
            for line in range(63):  # all are somebody's, in a namespace of which nobody here knows
                file.seek(4096 + 128 * (line + 1))
                file.write((line + 1 << 42 | 1 << 20).to_bytes(8, "little"))
        one, two = quotas.start(0), quotas.start(0)
        assert len(quotas.ledgers.lines(0)) == 63
        handle = one.do("ipc_get", one.do("alloc", MIB))
        two.do("ipc_open", handle)
    finally:
        quotas.close()


def test_physical_memory_is_charged_from_creation_to_its_last_mapping(quotas: LedgerFixture) -> None:
    one = quotas.start(0)
    assert one.code("create", 2 * GIB) == PAST
    size = 400 * MIB
    handle = one.do("create", size)
    at = one.do("reserve", 2 * size)
    one.do("map", at, size, handle)
    one.do("map", at + size, size, handle)
    one.do("release", handle)
    assert one.code("create", 2 * size) == PAST
    agrees(quotas, 0)
    again = one.do("retain", at + 5)
    one.do("unmap", at, 2 * size)
    agrees(quotas, 0)
    assert held(quotas, 0) == size
    one.do("release", again)
    agrees(quotas, 0)
    assert held(quotas, 0) == 0


@pytest.mark.parametrize("mode", ["plain", "physical", "pool"])
@pytest.mark.parametrize("end", ["frees", "dies"])
def test_shared_memory_is_charged_to_its_creator(quotas: LedgerFixture, mode: str, end: str) -> None:
    """Also across tenants, in any order of frees and deaths; the charge ends when the last process closes it."""
    size = 600 * MIB
    maker, other = quotas.start(0), quotas.start(1)
    if mode == "plain":
        made = maker.do("alloc", size)
        opened = other.do("ipc_open", maker.do("ipc_get", made + 512))
        assert other.do("ipc_open", maker.do("ipc_get", made)) == opened
        other.do("ipc_close", opened)
        free, close = [("free", made)], [("ipc_close", opened)]
    elif mode == "physical":
        made = maker.do("create", size)
        descriptor = maker.do("export", made)
        taken = other.do("import", descriptor=descriptor)
        os.close(descriptor)
        free, close = [("release", made)], [("release", taken)]
    else:
        pool = maker.do("pool_make")
        descriptor = maker.do("pool_export", pool)
        made = maker.do("pool_alloc", pool, size)
        taken = other.do("pool_import", descriptor=descriptor)
        os.close(descriptor)
        opened = other.do("import_pointer", taken, maker.do("export_pointer", made))
        free, close = [("free", made), ("pool_destroy", pool)], [("pool_destroy", taken), ("free", opened)]
    agrees(quotas)
    assert (held(quotas, 0), held(quotas, 1)) == (size, 0)
    if end == "frees":
        for name, what in free:
            maker.do(name, what)
    else:
        maker.kill()
        quotas.bury()
    agrees(quotas)
    left = 0 if (mode, end) == ("pool", "frees") else size  # a pool that is empty has nothing reserved
    assert (held(quotas, 0), held(quotas, 1)) == (left, 0)
    assert quotas.start(0).code("alloc", GIB + CODE_BYTES - left + 512) == PAST
    other.do("alloc", GIB)  # the importer's own quota is whole
    for name, what in close:
        other.do(name, what)
    agrees(quotas)
    assert (held(quotas, 0), held(quotas, 1)) == (0, GIB)
