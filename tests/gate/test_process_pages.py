"""Copies of process pages are parsed whatever they contain, and accounts are written and read."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.gate.grant_page import PAGE_BYTES as GRANT_BYTES
from cotenant.gate.process_pages import (
    PROCESS_BYTES,
    Account,
    Measurement,
    ProcessLedger,
    ShareRole,
    read_account,
    read_gate_page,
    read_ledger_page,
    write_account,
)
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry
from cotenant.gate.tenant_table import (
    PAGE_BYTES,
    device_memory,
    read_processes,
    read_tenant_table,
    write_tenant_table,
)

WORD = 1 << 64


def ledger_page(generation: int, line: tuple[int, ...], shares: list[tuple[int, int, int]]) -> bytes:
    """Return process pages with this ledger page; see native/ledger/ledger.h."""
    header = struct.pack("<8Q", generation, len(shares), *[0] * 6)
    body = struct.pack("<16Q", *line, *[0] * (16 - len(line)))
    entries = b"".join(struct.pack("<4Q", *share, 0) for share in shares)
    return (bytes(PAGE_BYTES) + header + body + entries).ljust(PROCESS_BYTES, b"\0")


def test_ledger_page_is_read_by_name() -> None:
    pages = ledger_page(9, tuple(range(1, 13)), [(1, 7, 100), (0, 8, 5), (2, 9, 6), (4, 10, 7), (3, 11, 8), (99, 1, 1)])
    shares = ((ShareRole.EXPORT, 7, 100), (ShareRole.IMPORT, 9, 6), (ShareRole.ORPHANED, 11, 8))
    assert read_ledger_page(pages) == ProcessLedger(9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, shares)


def test_number_of_shares_is_limited_to_the_page() -> None:
    pages = bytearray(ledger_page(1, (), []))
    struct.pack_into("<Q", pages, PAGE_BYTES + 8, WORD - 1)
    assert read_ledger_page(bytes(pages)).shares == ()


@settings(max_examples=50)
@given(st.integers(0, WORD - 1))
def test_pages_of_any_contents_are_parsed(seed: int) -> None:
    pages = random.Random(seed).randbytes(PROCESS_BYTES)
    assert len(read_ledger_page(pages).shares) <= 256
    assert read_gate_page(pages)["generation"] == struct.unpack_from("<Q", pages, 40)[0]


@pytest.mark.parametrize("read", [read_gate_page, read_ledger_page])
def test_short_pages_are_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match="must have"):
        read(bytes(100))


def test_account_is_read_as_written_and_old_measurements_are_removed() -> None:
    memory = bytearray(GRANT_BYTES)
    measurements = {3: Measurement(5, -100, 8), 255: Measurement((1 << 32) - 1, 1 << 40, WORD - 1)}
    write_account(memory, 300, 200, 100, measurements)
    assert read_account(memory) == Account(300, 200, 100, measurements)
    write_account(memory, 1, 2, 3, {3: measurements[3]})
    assert read_account(memory) == Account(1, 2, 3, {3: measurements[3]})


def test_table_lists_the_processes_of_each_tenant() -> None:
    online = GateEntry(4, 90, 0, online=True, limit_ppm=300_000)
    offline = GateEntry(7, 91, 5, online=False, paused=True, guaranteed_ppm=1000)
    processes = (
        ProcessEntry(0, 1001, 4, online),
        ProcessEntry(200, 1002, 7, offline),
        ProcessEntry(9, 1003, 4, online),
    )
    memory = device_memory()
    write_tenant_table(memory, GateRules(GatePolicy.STRICT), processes)
    assert read_processes(memory) == processes
    assert read_tenant_table(memory) == GateRules(GatePolicy.STRICT, entries=(online, offline))
    write_tenant_table(memory, GateRules(entries=(online,)), ())
    assert read_processes(memory) == (), "a tenant without processes has no entry"


def test_table_refuses_too_many_processes_and_unknown_indexes() -> None:
    memory, entry = device_memory(), GateEntry(0, 1, 0, online=True)
    with pytest.raises(ValueError, match="256 entries, but 257"):
        write_tenant_table(memory, GateRules(), [ProcessEntry(0, 1, 0, entry)] * 257)
    with pytest.raises(ValueError, match="below 256, not 256"):
        write_tenant_table(memory, GateRules(), [ProcessEntry(256, 1, 0, entry)])
