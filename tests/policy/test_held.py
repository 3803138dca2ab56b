"""Does the gate say over a copy of its pages what holds a tenant back, and is nothing real touched by asking?"""

import pytest

from cotenant import _native
from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.policy.schedule.held import Held, Hold, held_at
from cotenant.policy.schedule.roster import file_bytes, format_roster, write_roster

NOW = 10**12
WEB, JOB = GateSeat(0, 1, 1, online=True), GateSeat(1, 1, 7, online=False)
MS = 10**6


def device(*seats: GateSeat, policy: GatePolicy = GatePolicy.FILL) -> bytearray:
    file = bytearray(file_bytes(4))
    format_roster(file, 4)
    write_roster(file, GateRules(policy, seats=seats))
    return file


def web_launches(file: bytearray, work_ns: int, low_ns: int, high_ns: int, at_ns: int = NOW) -> None:
    _native.Gate(file, 0, 1).announce((work_ns, work_ns, low_ns, high_ns, 1), at_ns)


def job_asks(file: bytearray, work_ns: int, at_ns: int = NOW, may_fill: int = 1) -> bool:
    return bool(_native.Gate(file, 1, 1).ask((work_ns, work_ns, 0, 0, may_fill), at_ns, at_ns)[0])


@pytest.mark.parametrize(
    "work_ns, low_ns, high_ns, hold",
    [
        (50 * MS, 60 * MS, 90 * MS, Hold.BUSY),
        (MS, 8 * MS, 9 * MS, Hold.TIGHT),
        (MS, 3 * MS, 500 * MS, Hold.DUE),
    ],
)
def test_what_holds_is_what_the_gate_answers(work_ns: int, low_ns: int, high_ns: int, hold: Hold) -> None:
    file = device(WEB, JOB)
    web_launches(file, work_ns, low_ns, high_ns)
    later = NOW + (4 * MS if hold is not Hold.BUSY else MS)
    assert not job_asks(file, 20 * MS, later)
    before = bytes(file)
    found = held_at(before, 1, 1, later)
    assert found is not None
    assert (found.hold, found.above) == (hold, (0,))
    assert found.again_ns > later
    assert bytes(file) == before


def test_a_paused_one_is_held_by_the_node_and_a_strict_gate_until_those_above_are_quiet() -> None:
    file = device(WEB, GateSeat(1, 1, 7, online=False, paused=True))
    assert not job_asks(file, MS)
    paused = held_at(bytes(file), 1, 1, NOW)
    assert paused is not None
    assert (paused.hold, paused.above) == (Hold.PAUSED, ())
    file = device(WEB, JOB, policy=GatePolicy.STRICT)
    web_launches(file, MS, 50 * MS, 60 * MS)
    assert not job_asks(file, 1000, NOW + 2 * MS)
    strict = held_at(bytes(file), 1, 1, NOW + 2 * MS)
    assert strict is not None
    assert strict.hold in (Hold.DUE, Hold.TIGHT, Hold.BUSY)


def test_what_the_pages_would_let_pass_waits_for_its_own_submitted_work() -> None:
    file = device(WEB, JOB)
    web_launches(file, MS, 20 * MS, 30 * MS)
    assert not job_asks(file, 90 * MS, NOW + 2 * MS)
    quiet = NOW + 500 * MS
    assert held_at(bytes(file), 1, 1, quiet) == Held(Hold.BOUND, quiet, ())


def test_who_does_not_wait_or_no_longer_asks_is_not_held() -> None:
    file = device(WEB, JOB)
    assert held_at(bytes(file), 1, 1, NOW) is None, "it never launched"
    web_launches(file, 50 * MS, 60 * MS, 90 * MS)
    assert held_at(bytes(file), 0, 1, NOW) is None, "nobody is above"
    assert not job_asks(file, 20 * MS)
    assert held_at(bytes(file), 1, 1, NOW) is not None
    assert held_at(bytes(file), 1, 2, NOW) is None, "the page is an earlier tenant's"
    assert held_at(bytes(file), 1, 1, NOW + 2 * 10**9) is None, "it was stopped, or died"


def test_one_that_has_had_its_share_is_held_by_it_and_one_without_by_an_equal_that_has_not() -> None:
    file = device(GateSeat(0, 1, 7, online=False, limit_ppm=500_000, static=True), JOB)
    owner = _native.Gate(file, 0, 1)
    assert owner.ask((MS, MS, 0, 0, 1), NOW, NOW)[0]
    assert not job_asks(file, MS)
    waits = held_at(bytes(file), 1, 1, NOW)
    assert waits is not None
    assert waits.hold is Hold.SHARE
    assert owner.ask((8 * MS, 8 * MS, 0, 0, 1), NOW, NOW)[0]
    for work_ns in (MS, 8 * MS):
        owner.confirmed(work_ns, NOW)
    for now in (NOW, NOW + 15 * MS):
        assert not owner.ask((MS, MS, 0, 0, 1), NOW, now)[0]
        assert held_at(bytes(file), 0, 1, now) == Held(Hold.LIMIT, NOW + 18 * MS, ())
