"""A hang is detected from the gate page and the device's activity, never from the clock alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.daemon.monitor.hangs import HangDetector, WorkPage, is_drained
from cotenant.node.model.protection import ProtectLimits
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS

pytestmark = pytest.mark.live

LIMITS = ProtectLimits()
BUSY = WorkPage(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=2 * SECOND_NS)
instants = st.integers(0, 1 << 62)


def hangs_after(
    stall: HangDetector, page: WorkPage, seconds: int, *, part: int = 100, start: int = 2 * SECOND_NS
) -> int | None:
    """Return the second in which the hang is reported; the device was busy for the given part of each second."""
    stall.check(page, 0, start, LIMITS)
    for second in range(1, seconds + 1):
        if stall.check(page, SECOND_NS * part // 100, start + second * SECOND_NS, LIMITS) is not None:
            return second
    return None


def test_kernel_that_is_busy_far_past_its_time_hangs() -> None:
    stall = HangDetector()
    page = WorkPage(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS + MILLISECOND_NS)
    assert hangs_after(stall, page, 60) == LIMITS.hang_least_ns // SECOND_NS + 1
    assert hangs_after(stall, page, 60) is None  # reported once
    progress = WorkPage(generation=1, sequence=6, at_ns=SECOND_NS, busy_ns=SECOND_NS + MILLISECOND_NS)
    assert hangs_after(stall, progress, 60) is not None  # another one


def test_long_work_with_known_times_does_not_hang() -> None:
    expected_s = (BUSY.busy_ns - BUSY.at_ns) // SECOND_NS
    assert hangs_after(HangDetector(), BUSY, LIMITS.hang_factor * expected_s) is None
    assert hangs_after(HangDetector(), BUSY, LIMITS.hang_factor * expected_s + 1) is not None


def test_tenant_that_waits_does_not_hang() -> None:
    page = WorkPage(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS + MILLISECOND_NS)
    assert hangs_after(HangDetector(), page, 10_000, part=0) is None
    assert (
        hangs_after(HangDetector(), page, 2 * LIMITS.hang_least_ns // SECOND_NS, part=40) is None
    )  # switched out mostly


def test_kernel_of_unknown_length_has_a_longer_limit() -> None:
    page = WorkPage(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS, unsure_ns=SECOND_NS)
    assert hangs_after(HangDetector(), page, LIMITS.hang_unknown_ns // SECOND_NS) is None
    assert hangs_after(HangDetector(), page, 2 * LIMITS.hang_unknown_ns // SECOND_NS) is not None
    # So may a kernel that was launched before kernels with profiles: it is not visible which of them runs.
    mixed = WorkPage(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS + 1, unsure_ns=SECOND_NS - 1)
    assert hangs_after(HangDetector(), mixed, LIMITS.hang_unknown_ns // SECOND_NS - 2) is None


@given(instants, instants, instants, instants)
def test_page_of_one_tenant_cannot_make_another_hang(at: int, busy: int, unsure: int, now: int) -> None:
    stall = HangDetector()
    page = WorkPage(generation=1, sequence=1, at_ns=at, busy_ns=busy, unsure_ns=unsure)
    assert stall.check(page, 1 << 62, now, LIMITS) is None  # the first look never tells: nothing was compared
    report = stall.check(page, 1 << 62, now, LIMITS)
    assert report is None or (busy <= now and report == max(0, busy - at))


@given(instants, instants, instants)
def test_implausible_instants_are_ignored(word: int, now: int, ahead: int) -> None:
    page = WorkPage(generation=1, at_ns=word, busy_ns=word, unsure_ns=word).without_invalid(now)
    assert max(page.at_ns, page.unsure_ns) <= now + SECOND_NS
    assert page.busy_ns <= now + 60 * SECOND_NS
    meant = WorkPage(generation=1, at_ns=now - 1, busy_ns=now + ahead % SECOND_NS, unsure_ns=now)
    assert meant.without_invalid(now) == meant


def test_page_has_the_start_of_work_of_unknown_length() -> None:
    file = tenant_table.device_memory()
    tenant_table.write_tenant_table(file, GateRules(entries=(GateEntry(0, 1, 7, online=False),)))
    gate = _native.Gate(file, 0, 1)

    def unsure_ns() -> object:
        return tenant_table.read_page(tenant_table.gate_page(file, 0))["unknown_ns"]

    gate.announce((500, 500, 0, 0, 0), 10)
    assert unsure_ns() == 0
    gate.announce((0, 0, 0, 0, 0), 20)
    gate.announce((500, 500, 0, 0, 0), 30)
    gate.sync(0, 0, False, 40)
    assert unsure_ns() == 20  # it may still run
    gate.sync(0, 0, True, 50)
    assert unsure_ns() == 0


def test_work_is_over_when_the_device_is_idle_for_it() -> None:
    late = 10 * SECOND_NS
    assert not is_drained(BUSY, 1, BUSY.busy_ns, is_at_work=False)
    assert not is_drained(BUSY, 1, late, is_at_work=True)
    assert is_drained(BUSY, 1, late, is_at_work=False)
    just_launched = WorkPage(generation=1, sequence=9, at_ns=late, busy_ns=late)
    assert not is_drained(just_launched, 1, late + 100 * MILLISECOND_NS, is_at_work=False)  # not in any sample yet
    assert is_drained(just_launched, 1, late + SECOND_NS, is_at_work=False)


def test_silence_ends_work_without_device_activity() -> None:
    waits = WorkPage(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=2 * SECOND_NS, waits_ns=SECOND_NS)
    soon, late = 2 * SECOND_NS + 100 * MILLISECOND_NS, 3 * SECOND_NS
    assert is_drained(BUSY, 1, soon, is_at_work=None)
    assert not is_drained(waits, 1, soon, is_at_work=None)
    assert is_drained(waits, 1, late, is_at_work=None)


def test_tenant_without_launches_is_drained() -> None:
    assert is_drained(WorkPage(), 1, 0, is_at_work=None)
    assert is_drained(BUSY, 2, SECOND_NS, is_at_work=False)  # the words of an earlier tenant
    assert not is_drained(WorkPage(), 1, 0, is_at_work=True)  # it works without our hook
