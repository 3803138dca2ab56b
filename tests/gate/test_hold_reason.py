"""`hold_reason` reports what holds a tenant back from a copy of the gate's pages and changes nothing."""

import pytest

from cotenant import _native
from cotenant.gate.hold_reason import HeldLaunch, HoldReason, find_hold
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from cotenant.gate.tenant_table import device_memory, write_tenant_table

NOW = 10**12
WEB, JOB = GateEntry(0, 1, 1, online=True), GateEntry(1, 1, 7, online=False)
MS = 10**6


def device(*entries: GateEntry, policy: GatePolicy = GatePolicy.FILL) -> memoryview:
    file = device_memory()
    write_tenant_table(file, GateRules(policy, entries=entries))
    return file


def web_launches(file: memoryview, work_ns: int, low_ns: int, high_ns: int, at_ns: int = NOW) -> None:
    _native.Gate(file, 0, 1).announce((work_ns, work_ns, low_ns, high_ns, 1), at_ns)


def job_asks(file: memoryview, work_ns: int, at_ns: int = NOW, may_fill: int = 1) -> bool:
    return bool(_native.Gate(file, 1, 1).admit((work_ns, work_ns, 0, 0, may_fill), at_ns, at_ns)[0])


@pytest.mark.parametrize(
    "work_ns, low_ns, high_ns, hold",
    [
        (50 * MS, 60 * MS, 90 * MS, HoldReason.BUSY),
        (MS, 8 * MS, 9 * MS, HoldReason.TIGHT),
        (MS, 3 * MS, 5 * MS, HoldReason.DUE),
    ],
)
def test_hold_reason_equals_the_answer_of_the_gate(work_ns: int, low_ns: int, high_ns: int, hold: HoldReason) -> None:
    file = device(WEB, JOB)
    web_launches(file, work_ns, low_ns, high_ns)
    later = NOW + (4 * MS if hold is not HoldReason.BUSY else MS)
    assert not job_asks(file, 20 * MS, later)
    before = bytes(file)
    held_launch = find_hold(file, 1, 1, later)
    assert held_launch is not None
    assert (held_launch.hold, held_launch.active_slots) == (hold, (0,))
    assert held_launch.again_ns > later
    assert file == before


def test_hold_reason_names_a_pause_or_the_strict_policy() -> None:
    file = device(WEB, GateEntry(1, 1, 7, online=False, paused=True))
    assert not job_asks(file, MS)
    paused = find_hold(file, 1, 1, NOW)
    assert paused is not None
    assert (paused.hold, paused.active_slots) == (HoldReason.PAUSED, ())
    file = device(WEB, JOB, policy=GatePolicy.STRICT)
    web_launches(file, MS, 50 * MS, 60 * MS)
    assert not job_asks(file, 1000, NOW + 2 * MS)
    strict = find_hold(file, 1, 1, NOW + 2 * MS)
    assert strict is not None
    assert strict.hold in (HoldReason.DUE, HoldReason.TIGHT, HoldReason.BUSY)


def test_tenant_that_may_pass_waits_for_its_own_submitted_work() -> None:
    file = device(WEB, JOB)
    web_launches(file, MS, 20 * MS, 30 * MS)
    assert not job_asks(file, 90 * MS, NOW + 2 * MS)
    quiet = NOW + 500 * MS
    assert find_hold(file, 1, 1, quiet) == HeldLaunch(HoldReason.BOUND, quiet, ())


def test_tenant_that_does_not_wait_is_not_held() -> None:
    file = device(WEB, JOB)
    assert find_hold(file, 1, 1, NOW) is None, "it never launched"
    web_launches(file, 50 * MS, 60 * MS, 90 * MS)
    assert find_hold(file, 0, 1, NOW) is None, "there is no higher priority"
    assert not job_asks(file, 20 * MS)
    assert find_hold(file, 1, 1, NOW) is not None
    assert find_hold(file, 1, 2, NOW) is None, "the page is an earlier tenant's"
    assert find_hold(file, 1, 1, NOW + 2 * 10**9) is None, "it was stopped, or died"


def test_hold_reason_names_the_own_share_or_an_equal() -> None:
    file = device(GateEntry(0, 1, 7, online=False, limit_ppm=500_000, static=True), JOB)
    owner = _native.Gate(file, 0, 1)
    assert owner.admit((MS, MS, 0, 0, 1), NOW, NOW)[0]
    assert not job_asks(file, MS)
    waits = find_hold(file, 1, 1, NOW)
    assert waits is not None
    assert waits.hold is HoldReason.SHARE
    assert owner.admit((8 * MS, 8 * MS, 0, 0, 1), NOW, NOW)[0]
    for work_ns in (MS, 8 * MS):
        owner.confirmed(work_ns, NOW)
    for now in (NOW, NOW + 15 * MS):
        assert not owner.admit((MS, MS, 0, 0, 1), NOW, now)[0]
        assert find_hold(file, 0, 1, now) == HeldLaunch(HoldReason.LIMIT, NOW + 18 * MS, ())
