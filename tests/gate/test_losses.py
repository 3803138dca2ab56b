"""Debts of tenants that left are forgiven, and charges follow the losses that higher priorities report."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.rules import GateEntry, GateRules
from tests.gate.test_bounds import START, debt_word_offset, device, entries, gates, read
from tests.support import gate_sums as sums
from tests.support.gate_sums import MS, US, LaunchRequest

ADMITTED_AT = tenant_table.page_offset(1) + debt_word_offset() + 16
"""Where the lower-priority process states until when its work is expected to run."""
HIT: LaunchRequest = (50 * MS, 50 * MS, 0, 0, 1, 0, 1, 0)
SHORT: LaunchRequest = (20 * US, 20 * US, 0, 0, 1, 0, 1, 0)
HOLDER: LaunchRequest = (20 * US, 20 * US, 300 * US, 400 * US, 1, 0, 1, 0)


def hit(holder: _native.Gate, gate: _native.Gate, now: int) -> int:
    """One below launches 50 ms of work into a pause, and the holder comes back at once."""
    assert gate.admit(HIT, now, now)[:2] == (1, sums.FREE)
    gate.submitted(HIT, True, now)
    holder.announce(HOLDER, now + 10 * US)
    now += 60 * MS
    gate.confirmed(HIT[0], now)
    gate.admit(SHORT, now, now)
    return now


def test_debt_of_a_departed_tenant_is_forgiven() -> None:
    all_entries = entries(0, 5, 5)
    file = device(GateRules(entries=all_entries))
    holder, departed, other = gates(file, 3)
    now = hit(holder, departed, START)
    assert other.admit(SHORT, now, now)[1] == sums.DEBT
    tenant_table.write_tenant_table(file, GateRules(entries=(all_entries[0], all_entries[2])))
    assert other.admit(SHORT, now, now)[:2] == (1, sums.FREE)
    other.submitted(SHORT, True, now)
    other.confirmed(SHORT[0], now + MS)
    now = hit(holder, other, now + MS)
    assert other.admit(SHORT, now, now)[1] == sums.DEBT, "its own"
    new = GateEntry(1, 2, 5, online=False)
    tenant_table.write_tenant_table(file, GateRules(entries=(all_entries[0], new, all_entries[2])))
    assert _native.Gate(file, 1, 2).admit(SHORT, now, now)[1] == sums.DEBT, (
        "a new tenant inherits the debt of the present tenants"
    )


def test_process_that_outlives_its_entry_blocks_no_tenant() -> None:
    all_entries = entries(0, 5, 5)
    file = device(GateRules(entries=all_entries))
    holder, departed, other = gates(file, 3)
    assert departed.admit(HIT, START, START)[0]
    departed.submitted(HIT, True, START)
    tenant_table.write_tenant_table(file, GateRules(entries=(all_entries[0], all_entries[2])))
    holder.announce(HOLDER, START + 10 * US)
    now = START + 60 * MS
    departed.admit(SHORT, now, now)  # it records its loss, on the arbitration page too
    assert other.admit(SHORT, now, now)[:2] == (1, sums.FREE)


def bursts(late_ns: int, count: int, *, alone: bool = True, below_ns: int = 0, gone_ns: int = 0) -> tuple[int, int]:
    """Return the charge for requests of 1 ms that each end `late_ns` later than alone, and the full charge.

    With `alone`, every second request has the device to itself. Half-way another holder leaves that lost `gone_ns`.
    """
    all_entries = entries(0, 5, 0)
    file = device(GateRules(delay_ppm=4_000_000, switch_ns=0, entries=all_entries))
    struct.pack_into("<Q", file, ADMITTED_AT, below_ns)
    holder, low, _ = gates(file, 3)
    struct.pack_into("<q", file, tenant_table.page_offset(2) + debt_word_offset() - 16, gone_ns)
    assert read(file, 2, "lost_ns") == gone_ns
    work: LaunchRequest = (MS, MS, 20 * MS, 21 * MS, 1, 0, 1, 0)
    below: LaunchRequest = (400 * US, 400 * US, 0, 0, 1, 0, 1, 0)
    now, thought = START, 0
    for number in range(count):
        now += 10 * MS
        if number == count // 2:
            tenant_table.write_tenant_table(file, GateRules(delay_ppm=4_000_000, switch_ns=0, entries=all_entries[:2]))
        is_met = not alone or number % 2
        if is_met and low.admit(below, now - sums.STUCK_AFTER, now)[0]:
            low.submitted(below, True, now)
            thought += 300 * US
        holder.announce(work, now + 100 * US)
        holder.sync(0, 0, False, now + 110 * US)
        low.confirmed(below[0], now + 400 * US)
        now += MS + 105 * US + (late_ns if is_met else 0)
        holder.sync(20 * MS, 21 * MS, True, now)
    return read(file, 1, "overrun_ns"), thought


@settings(max_examples=15)
@given(late_ns=st.sampled_from([0, 50 * US, 150 * US, 400 * US, 900 * US]))
def test_charges_follow_losses_in_both_directions(late_ns: int) -> None:
    charged, thought = bursts(late_ns, 400)
    assert thought
    assert charged <= 4 * thought, "the largest factor"
    assert charged <= thought or late_ns > 300 * US, "a smaller loss than the estimate raises no charge"
    assert charged > thought or late_ns < 900 * US, "a loss far above the estimate does"
    assert charged <= bursts(late_ns + 50 * US, 400)[0]
    assert charged * 64 >= thought - 2 * MS, "a sixty-fourth is charged at least"


def test_work_without_reported_loss_is_hardly_charged() -> None:
    (before, _), (after, _) = bursts(0, 400), bursts(0, 800)
    _, thought = bursts(0, 400)
    assert (after - before) * 5 <= thought


def test_tenant_that_never_ran_alone_gets_a_wait_alone_and_then_reports_its_loss() -> None:
    file = device(GateRules(delay_ppm=4_000_000, switch_ns=0, entries=entries(0, 5)))
    holder, low = gates(file, 2)
    work: LaunchRequest = (MS, MS, 20 * MS, 21 * MS, 1, 0, 1, 0)
    below: LaunchRequest = (400 * US, 400 * US, 0, 0, 1, 0, 1, 0)
    now, reasons = START, []
    for _ in range(600):
        now += 10 * MS
        passes, reason, *_ = low.admit(below, now - sums.STUCK_AFTER, now)
        reasons.append(reason)
        if passes:
            low.submitted(below, True, now)
        holder.announce(work, now + 100 * US)
        holder.sync(0, 0, False, now + 110 * US)
        if passes:
            low.confirmed(below[0], now + 400 * US)
        now += MS + 105 * US + (300 * US if passes else 0)
        holder.sync(20 * MS, 21 * MS, True, now)
    alone = [number for number, reason in enumerate(reasons) if reason == sums.CLEAN]
    assert alone == [1, 514], "after the first wait next to other work, and again after 512 of them"
    delayed_ns, undelayed_ns = read(file, 0, "delayed_ns"), read(file, 0, "undelayed_ns")
    assert read(file, 0, "measured_waits") == 599
    assert delayed_ns == 597 * 300 * US
    assert undelayed_ns == 599 * (MS + 5 * US)


def test_arbitration_page_of_another_boot_is_replaced() -> None:
    assert bursts(0, 400, below_ns=2**64 - 1) == bursts(0, 400)


@pytest.mark.parametrize("gone_ns", [-100 * MS, 100 * MS])
def test_loss_reported_by_a_departed_tenant_stays(gone_ns: int) -> None:
    assert bursts(900 * US, 400, gone_ns=gone_ns) == bursts(900 * US, 400)


def test_work_that_outlives_its_expected_end_is_a_loss_and_no_wait_alone() -> None:
    """Next to a holder lower work takes longer than expected: a wait after its expected end may still be delayed."""
    file = device(GateRules(delay_ppm=4_000_000, switch_ns=0, entries=entries(0, 5)))
    holder, low = gates(file, 2)
    work: LaunchRequest = (MS, MS, 20 * MS, 21 * MS, 1, 0, 1, 0)
    below: LaunchRequest = (400 * US, 400 * US, 0, 0, 1, 0, 1, 0)
    now, delayed = START, 0
    for number in range(60):
        now += 30 * MS
        is_met = number >= 20 and number % 2 == 1 and bool(low.admit(below, now - sums.STUCK_AFTER, now)[0])
        if is_met:
            low.submitted(below, True, now)
        begin = now + 2 * MS  # the lower work should have been over for long
        holder.announce(work, begin)
        holder.sync(0, 0, False, begin + 10 * US)
        now = begin + MS + 5 * US + (MS if is_met else 0)
        holder.sync(20 * MS, 21 * MS, True, now)
        if is_met:
            low.confirmed(below[0], now)
        delayed += is_met
    assert delayed >= 10
    assert abs(read(file, 0, "lost_ns") - delayed * MS) <= delayed * MS // 20
    assert read(file, 0, "delayed_ns") == read(file, 0, "lost_ns")
