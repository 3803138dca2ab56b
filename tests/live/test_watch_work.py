"""Work that ends, and work that does not: by the page's words and the device's, never by the clock alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant import _native
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.domain.protect import ProtectLimits
from cotenant.live.watch.work import Page, Stall, is_drained
from cotenant.policy.schedule import roster

LIMITS = ProtectLimits()
BUSY = Page(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=2 * SECOND_NS)
instants = st.integers(0, 1 << 62)


def hangs_after(stall: Stall, page: Page, seconds: int, *, part: int = 100, start: int = 2 * SECOND_NS) -> int | None:
    """The second in which it is told, of so many in which the device worked for it that part of the time."""
    stall.look(page, 0, start, LIMITS)
    for second in range(1, seconds + 1):
        if stall.look(page, SECOND_NS * part // 100, start + second * SECOND_NS, LIMITS) is not None:
            return second
    return None


def test_a_kernel_hangs_that_keeps_the_device_busy_far_past_its_time() -> None:
    stall = Stall()
    page = Page(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS + MILLISECOND_NS)
    assert hangs_after(stall, page, 60) == LIMITS.hang_least_ns // SECOND_NS + 1
    assert hangs_after(stall, page, 60) is None  # told once
    progress = Page(generation=1, sequence=6, at_ns=SECOND_NS, busy_ns=SECOND_NS + MILLISECOND_NS)
    assert hangs_after(stall, progress, 60) is not None  # another one


def test_long_work_that_is_known_does_not_hang() -> None:
    expected_s = (BUSY.busy_ns - BUSY.at_ns) // SECOND_NS
    assert hangs_after(Stall(), BUSY, LIMITS.hang_factor * expected_s) is None
    assert hangs_after(Stall(), BUSY, LIMITS.hang_factor * expected_s + 1) is not None


def test_who_waits_for_the_gate_the_host_or_its_turn_does_not_hang() -> None:
    page = Page(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS + MILLISECOND_NS)
    assert hangs_after(Stall(), page, 10_000, part=0) is None
    assert hangs_after(Stall(), page, 2 * LIMITS.hang_least_ns // SECOND_NS, part=40) is None  # switched out mostly


def test_a_kernel_of_unknown_length_may_take_its_time() -> None:
    page = Page(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS, unsure_ns=SECOND_NS)
    assert hangs_after(Stall(), page, LIMITS.hang_unknown_ns // SECOND_NS) is None
    assert hangs_after(Stall(), page, 2 * LIMITS.hang_unknown_ns // SECOND_NS) is not None
    # So may one that was launched before kernels that are known: which of them runs, nobody can see.
    mixed = Page(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=SECOND_NS + 1, unsure_ns=SECOND_NS - 1)
    assert hangs_after(Stall(), mixed, LIMITS.hang_unknown_ns // SECOND_NS - 2) is None


@given(instants, instants, instants, instants)
def test_nothing_that_a_tenant_writes_makes_another_one_hang(at: int, busy: int, unsure: int, now: int) -> None:
    stall = Stall()
    page = Page(generation=1, sequence=1, at_ns=at, busy_ns=busy, unsure_ns=unsure)
    assert stall.look(page, 1 << 62, now, LIMITS) is None  # the first look never tells: nothing was compared
    told = stall.look(page, 1 << 62, now, LIMITS)
    assert told is None or (busy <= now and told == max(0, busy - at))


@given(instants, instants, instants)
def test_instants_that_cannot_be_meant_mean_nothing(word: int, now: int, ahead: int) -> None:
    page = Page(generation=1, at_ns=word, busy_ns=word, unsure_ns=word).believed(now)
    assert max(page.at_ns, page.unsure_ns) <= now + SECOND_NS
    assert page.busy_ns <= now + 60 * SECOND_NS
    meant = Page(generation=1, at_ns=now - 1, busy_ns=now + ahead % SECOND_NS, unsure_ns=now)
    assert meant.believed(now) == meant


def test_the_gate_says_since_when_work_of_unknown_length_may_run() -> None:
    file = bytearray(roster.file_bytes(1))
    roster.format_roster(file, 1)
    roster.write_roster(file, GateRules(seats=(GateSeat(0, 1, 7, online=False),)))
    gate = _native.Gate(file, 0, 1)

    def unsure_ns() -> object:
        return roster.read_page(file[roster.page_offset(0) :])["unsure_ns"]

    gate.announce((500, 500, 0, 0, 0), 10)
    assert unsure_ns() == 0
    gate.announce((0, 0, 0, 0, 0), 20)
    gate.announce((500, 500, 0, 0, 0), 30)
    gate.rest(0, 0, False, 40)
    assert unsure_ns() == 20  # it may still run
    gate.rest(0, 0, True, 50)
    assert unsure_ns() == 0


def test_work_is_over_when_the_device_no_longer_works_for_it() -> None:
    late = 10 * SECOND_NS
    assert not is_drained(BUSY, 1, BUSY.busy_ns, is_at_work=False)
    assert not is_drained(BUSY, 1, late, is_at_work=True)
    assert is_drained(BUSY, 1, late, is_at_work=False)
    just_launched = Page(generation=1, sequence=9, at_ns=late, busy_ns=late)
    assert not is_drained(just_launched, 1, late + 100 * MILLISECOND_NS, is_at_work=False)  # not in any sample yet
    assert is_drained(just_launched, 1, late + SECOND_NS, is_at_work=False)


def test_where_the_device_does_not_tell_silence_does() -> None:
    waits = Page(generation=1, sequence=5, at_ns=SECOND_NS, busy_ns=2 * SECOND_NS, waits_ns=SECOND_NS)
    soon, late = 2 * SECOND_NS + 100 * MILLISECOND_NS, 3 * SECOND_NS
    assert is_drained(BUSY, 1, soon, is_at_work=None)
    assert not is_drained(waits, 1, soon, is_at_work=None)
    assert is_drained(waits, 1, late, is_at_work=None)


def test_who_never_launched_has_nothing_to_end() -> None:
    assert is_drained(Page(), 1, 0, is_at_work=None)
    assert is_drained(BUSY, 2, SECOND_NS, is_at_work=False)  # the words of an earlier tenant
    assert not is_drained(Page(), 1, 0, is_at_work=True)  # it works without our hook
