"""The node's pages: tenants can only read them, and nothing that tenants write finds its way into them."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import PeerError
from cotenant.gate.combined_pages import combine, counters_of
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages, read_grant_descriptor, slot_text
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.process_pages import PROCESS_BYTES, read_account, read_gate_page
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from cotenant.gate.tenant_table import read_processes
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from tests.support.node_in_process import descriptors
from tests.support.process_pages import HookPages, Registry

pytestmark = pytest.mark.live

GRANT = Grant(3, 7, Kind.ONLINE, 1, 300_000, 1 << 30, 50_000_000, 0)


@pytest.fixture
def grants() -> Iterator[LiveGrantPages]:
    pages = LiveGrantPages()
    yield pages
    pages.close()


def contents(descriptor: int) -> bytes:
    with mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ) as memory:
        return memory[:]


# ---- protection ----------------------------------------------------------------------------------------------------


def test_tenants_cannot_write_resize_or_reopen_pages_of_the_node(grants: LiveGrantPages) -> None:
    tables = LiveTenantTables()
    tables.set_table(0, GateRules())
    table, arbitration = tables.handles(0)
    for descriptor in (grants.publish(GRANT, 0), table):
        size = os.fstat(descriptor).st_size
        reopened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        for opened in (descriptor, reopened):
            with pytest.raises(PermissionError):
                mmap.mmap(opened, size)
            with pytest.raises(PermissionError):
                os.pwrite(opened, b"x", 0)
            for other in (0, size // 2, 2 * size):
                with pytest.raises(PermissionError):
                    os.ftruncate(opened, other)
            with pytest.raises(PermissionError):
                fcntl.fcntl(opened, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        os.close(reopened)
    with pytest.raises(PermissionError):
        os.ftruncate(arbitration, 0)
    mmap.mmap(arbitration, 4096).close()  # waiting processes share it
    tables.close()


def test_reserved_page_serves_a_tenant_when_no_more_can_be_created(
    grants: LiveGrantPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grants.reserve(1) == ""

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert grants.reserve(1) == ""
    assert read_grant_descriptor(grants.publish(GRANT, 0)) == GRANT
    assert grants.reserve(1) == "the memory of a grant page cannot be created: Too many open files"
    assert read_grant_descriptor(grants.publish(GRANT, 1)) == GRANT


def test_other_files_are_no_grant_page() -> None:
    reading, writing = os.pipe()
    with pytest.raises(PeerError, match="no grant page"):
        read_grant_descriptor(reading)
    os.close(reading)
    os.close(writing)


# ---- grants --------------------------------------------------------------------------------------------------------


def test_published_grant_is_readable_at_once(grants: LiveGrantPages) -> None:
    handle = grants.publish(GRANT, 2)
    assert read_grant_descriptor(handle) == grants.read(3) == GRANT
    assert grants.neighbours(3) == 2
    grants.set_neighbour_count(0, 5)
    assert grants.neighbours(3) == 5
    assert slot_text(GRANT) == "3/7"


def test_later_tenant_of_a_slot_gets_another_page(grants: LiveGrantPages) -> None:
    first = os.dup(grants.publish(GRANT, 0))
    later = Grant(3, 8, Kind.OFFLINE, 7, 0, 0, 0, 0)
    second = grants.publish(later, 0)
    assert read_grant_descriptor(first) is None, "revoked"
    assert read_grant_descriptor(second) == later
    grants.revoke(3, 7)  # an earlier generation
    assert read_grant_descriptor(second) == later
    kept = os.dup(second)
    grants.revoke(3, 8)
    assert grants.read(3) is None
    assert grants.neighbours(3) == -1
    assert read_grant_descriptor(kept) is None
    os.close(first)
    os.close(kept)


def test_page_that_was_overwritten_is_written_again(grants: LiveGrantPages) -> None:
    handle = grants.publish(GRANT, 2)
    before = contents(handle)
    assert grants.repair() == []
    memory = grants._slots[3][0].page._page.memory
    memory[100:200] = bytes(range(100))
    assert contents(handle) != before
    assert grants.repair() == [3]
    assert contents(handle) == before
    assert grants.repair() == []
    tables = LiveTenantTables()
    tables.set_table(1, GateRules(entries=(GateEntry(0, 1, 2, online=True),)))
    tables.attach(1, 5, 77, 0)
    tables._devices[1].table._page.memory[64:72] = b"\xff" * 8
    assert tables.repair() == [1]
    [process] = read_processes(contents(tables.handles(1)[0]))
    assert (process.index, process.generation, process.tenant) == (5, 77, 0)
    tables.close()


def test_pages_close_their_descriptors() -> None:
    before = descriptors()
    grants, tables = LiveGrantPages(), LiveTenantTables()
    grants.publish(GRANT, 0)
    tables.set_table(0, GateRules())
    grants.close()
    tables.close()
    assert descriptors() == before


# ---- tenant tables -------------------------------------------------------------------------------------------------


def test_table_has_an_entry_for_each_process_of_each_tenant() -> None:
    tables = LiveTenantTables()
    assert tables.read(0) is None
    online, offline = GateEntry(0, 1, 2, online=True), GateEntry(4, 9, 7, online=False, limit_ppm=250_000)
    tables.set_table(0, GateRules(GatePolicy.STRICT, entries=(online,)))
    tables.attach(0, 3, 101, 0)
    tables.attach(0, 1, 102, 4)  # its tenant has no entry yet
    assert [entry.index for entry in read_processes(contents(tables.handles(0)[0]))] == [3]
    tables.upsert(0, offline)
    tables.attach(0, 2, 103, 4)
    processes = read_processes(contents(tables.handles(0)[0]))
    assert [(entry.index, entry.generation, entry.tenant) for entry in processes] == [
        (1, 102, 4),
        (2, 103, 4),
        (3, 101, 0),
    ]
    assert {entry.entry for entry in processes} == {online, offline}
    assert tables.read(0) == GateRules(GatePolicy.STRICT, entries=(online, offline))
    assert tables.is_online(0, 0)
    assert not tables.is_online(0, 4)
    tables.remove(0, 4)
    tables.detach(0, 3)
    assert read_processes(contents(tables.handles(0)[0])) == ()
    assert tables.handles(-1) == ()
    tables.close()


# ---- independence --------------------------------------------------------------------------------------------------


def pages_after(scribbles: list[bytes], seed: int) -> list[bytes]:
    """Return the pages of the node after some operations, with these bytes in the pages of an offline tenant."""
    rng = random.Random(seed)
    registry = Registry()
    try:
        registry.attach(0, os.getpid(), previous=(0, 900))
        hook = HookPages()
        registry.hooks.append(hook)
        hooked, _ = registry.attach(1, os.getppid(), previous=(1, 901))
        check = LedgerCheck(0, registry.ledgers, registry.processes, lambda _: None)
        for number, scribble in enumerate(scribbles):
            hooked.page.memory[: len(scribble)] = scribble
            check.read({0: 1, 1: 1, 2: 1}, number)
            check.prepare()
            check.settle({os.getpid(): 1 << 20, os.getppid(): 1 << 28})
            step = rng.randrange(4)
            if step == 0:
                registry.tables.upsert(0, GateEntry(2, 1, rng.randrange(10), online=False))
            elif step == 1:
                registry.grants.set_neighbour_count(0, rng.randrange(16))
            elif step == 2:
                registry.tables.remove(0, 2)
            else:
                registry.tables.set_table(0, GateRules(entries=(GateEntry(0, 1, 2, online=True),)))
        table, _ = registry.tables.handles(0)
        return [contents(table), contents(registry.grants.handle(0, 0)), contents(registry.grants.handle(2, 0))]
    finally:
        registry.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=PROCESS_BYTES), min_size=1, max_size=4), st.integers(0, 1000))
def test_what_a_tenant_writes_changes_no_page_of_the_node_but_its_own_account(
    scribbles: list[bytes], seed: int
) -> None:
    quiet = [b"" for _ in scribbles]
    assert pages_after(scribbles, seed) == pages_after(quiet, seed)


def test_account_holds_what_the_node_measured(grants: LiveGrantPages) -> None:
    registry = Registry()
    hook, attached = registry.attach(1)
    hook.write(allocated_bytes=1000, own_bytes=100, own_version=4)
    check = LedgerCheck(0, registry.ledgers, registry.processes, lambda _: None)
    check.read({1: 1}, 0)
    check.prepare()
    check.expect(80)
    check.settle({os.getpid(): 1400})
    account = read_account(contents(registry.grants.handle(1, 0)))
    assert (account.context_bytes, account.unattached_bytes) == (80, 0)
    measured = account.measurements[attached.index]
    assert (measured.generation, measured.excess_bytes, measured.measured_version) == (attached.generation, 300, 5)
    assert registry.ledgers.held(0, 1) == 1400
    registry.processes.remove((1, 1))
    registry.ledgers.write(0)
    account = read_account(contents(registry.grants.handle(1, 0)))
    assert account.measurements == {}
    assert account.unattached_bytes == 1400
    registry.close()


# ---- combined pages ------------------------------------------------------------------------------------------------


def test_pages_of_processes_are_combined() -> None:
    first, second = HookPages(), HookPages()
    first.write(launches=3, device_ns=100, at_ns=50, generation=7, waits=1)
    second.write(launches=4, device_ns=200, at_ns=90, generation=8)
    pages = [read_gate_page(hook.page.memory[:PROCESS_BYTES]) for hook in (first, second)]
    combined = combine(pages, 5)
    assert (combined["generation"], combined["launches"], combined["device_ns"]) == (5, 7, 300)
    assert combined["at_ns"] == 90
    ended = counters_of(pages[1])
    assert (ended["launches"], ended["at_ns"]) == (4, 0)
    assert combine([pages[0], ended], 5)["launches"] == 7
    assert combine([], 5) == {}
    first.close()
    second.close()
