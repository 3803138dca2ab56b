"""The feedback policy backs off at once, lowers the share slowly, settles, and never takes from harmed tenants."""

import itertools

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cotenant.gate.request_buckets import bucket_of
from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, DeviceWindow, TenantWindow
from cotenant.node.policy.adjust import POLICIES
from cotenant.node.state.control import Control
from tests.support.plant_model import PERIOD_NS, Run, Service, steady

MS = 1_000_000
LIMITS = ControlLimits()
FOUND_AS_IT_IS = (Phase.explicit, Phase.reuse, Phase.generate)
"""A run of minutes is not made smaller: that would take an afternoon."""
services = st.builds(
    Service,
    rate=st.floats(5, 150).map(steady),
    service_ns=st.floats(0.5 * MS, 6 * MS),
    slo_ns=st.integers(8 * MS, 60 * MS),
    spread=st.floats(0.05, 0.4),
    yields=st.floats(0.1, 1.0),
)


def window(number: int, *tenants: TenantWindow) -> DeviceWindow:
    return DeviceWindow(0, number * PERIOD_NS, (number + 1) * PERIOD_NS, tenants)


def web(
    latency_ns: int, requests: int = 10, *, slot: int = 0, generation: int = 1, oldest_ns: int = 0, priority: int = 2
) -> TenantWindow:
    """An online tenant with an objective of 20 ms whose requests all take as long."""
    return TenantWindow(
        slot,
        generation,
        online=True,
        slo_ns=20 * MS,
        requests=requests,
        over=requests * (latency_ns > 20 * MS),
        sum_ns=requests * latency_ns,
        latencies=((bucket_of(latency_ns), requests),) if requests else (),
        active_ns=PERIOD_NS // 50,
        device_ns=PERIOD_NS // 100,
        oldest_ns=oldest_ns,
        priority=priority,
    )


JOB = TenantWindow(9, 1, online=False, device_ns=PERIOD_NS // 2, waited_ns=PERIOD_NS // 4, priority=7)


def fed(control: Control, *windows: DeviceWindow) -> list[Adjustment]:
    found = [control.on_window(one, one.end_ns) for one in windows]
    return [change for change in found if change is not None]


def a_control(online_ppm: int = LIMITS.max_online_ppm) -> Control:
    """One that knows what is kept already."""
    control = Control(LIMITS)
    control.restore(0, online_ppm)
    return control


def lowered(control: Control, requests: int = 10) -> int:
    """How many windows of a light load it took until the share is as low as it may be."""
    for number in range(400):
        fed(control, window(number, web(2 * MS, requests), JOB))
        if control.online_ppm(0) == LIMITS.min_online_ppm:
            assert fed(control, *(window(number + one, web(2 * MS, requests), JOB) for one in range(1, 10))) == []
            return number + 10
    raise AssertionError(control.why(0))


@settings(max_examples=5, deadline=None, phases=FOUND_AS_IT_IS)
@given(services, st.integers(0, 99), st.integers(0, 3))
def test_whatever_the_device_does(service: Service, seed: int, late: int) -> None:
    """Within its limits, never down while harmed, at rest after a while, with the causes that its steps have."""
    run = Run([service], seed=seed, late=late).go(100)
    assert all(LIMITS.min_online_ppm <= online_ppm <= LIMITS.max_online_ppm for online_ppm in run.shares)
    recent: list[TenantWindow] = []
    before = LIMITS.max_online_ppm
    for seen, after in zip(run.windows, run.shares, strict=True):
        recent = [*recent[-9:], seen.tenants[0]]
        if after < before:
            assert seen.tenants[0].over <= 0.5 + 0.01 * sum(one.requests for one in recent)
        before = after
    up = {
        AdjustCause.VIOLATED,
        AdjustCause.STUCK,
        AdjustCause.NEAR_OBJECTIVE,
        AdjustCause.LOAD_INCREASED,
        AdjustCause.JOINED,
        AdjustCause.SATURATED,
    }
    ppms = [LIMITS.max_online_ppm, *(change.online_ppm for _, change in run.steps)]
    for (one, other), (_, change) in zip(itertools.pairwise(ppms), run.steps, strict=True):
        assert (other > one) == (change.cause in up) or change.cause is AdjustCause.UNREACHABLE
        assert change.detail.startswith("p99 ") or change.cause in {
            AdjustCause.LOAD_INCREASED,
            AdjustCause.JOINED,
            AdjustCause.SATURATED,
        }
    assert run.turns(60) <= 4


@pytest.mark.parametrize(
    "rate, service_ns, slo_ns, yields",
    [(50, 4 * MS, 20 * MS, 1.0), (100, 4 * MS, 30 * MS, 0.7), (3, 20 * MS, 80 * MS, 0.8)],
    ids=["room", "edge", "few"],
)
def test_ten_steady_minutes_have_no_cycle(rate: float, service_ns: int, slo_ns: int, yields: float) -> None:
    """Of the last eight of them; and the objective is kept as far as it can be."""
    run = Run([Service(steady(rate), service_ns, slo_ns, yields=yields)], seed=1).go(600)
    assert run.turns(120) <= 6
    assert run.turns(360) <= 2
    assert run.attained(60) >= 0.99


def test_a_plain_rival_cycles_in_the_same_load() -> None:
    """So the measure can tell."""
    service = Service(steady(50), 4 * MS, 20 * MS)
    assert Run([service], ControlLimits(adjust="aimd")).go(120).turns(60) > 20


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_load_is_met_within_a_second_and_taken_back_slowly(seed: int) -> None:
    service = Service(lambda at: 150.0 if 60 <= at < 90 else 30.0, 4 * MS, 30 * MS)
    run = Run([service], seed=seed).go(150)
    assert run.shares[599] < 700_000
    assert max(run.shares[600:610]) == LIMITS.max_online_ppm
    assert run.attained(61) >= 0.99
    assert run.shares[-1] < 700_000
    down = [one - other for one, other in itertools.pairwise(run.shares) if other < one]
    assert max(down) <= 0.45 * LIMITS.max_online_ppm  # at the beginning, when nothing has failed yet


def test_one_window_of_clear_harm_is_enough() -> None:
    control = a_control()
    number = lowered(control)
    (change,) = fed(control, window(number, web(25 * MS, 20), JOB))
    assert change.cause is AdjustCause.VIOLATED
    assert change.online_ppm > LIMITS.min_online_ppm
    assert (change.slot, change.generation) == (0, 1)
    more = fed(control, *(window(number + one, web(50 * MS, 20), JOB) for one in range(1, 30)))
    assert [one.online_ppm for one in more] == sorted(one.online_ppm for one in more)
    assert control.online_ppm(0) == LIMITS.max_online_ppm


def test_few_that_are_late_are_no_harm_among_many() -> None:
    control = a_control()
    number = lowered(control, 1000)
    five = TenantWindow(
        *(0, 1, True, 20 * MS, 1000, 5, 2115 * MS),
        latencies=((bucket_of(2 * MS), 995), (bucket_of(25 * MS), 5)),
        active_ns=PERIOD_NS // 3,
    )
    assert fed(control, window(number, five, JOB)) == []


def test_an_unfinished_request_is_a_violation_until_it_counts_as_lost() -> None:
    control = a_control()
    number = lowered(control)
    assert fed(control, window(number, web(2 * MS, 5, oldest_ns=15 * MS), JOB)) == []
    (change,) = fed(control, window(number + 1, web(2 * MS, 0, oldest_ns=50 * MS), JOB))
    assert change.cause is AdjustCause.STUCK
    later = [window(number + 2 + one, web(2 * MS, oldest_ns=(50 + 100 * one) * MS), JOB) for one in range(100)]
    changes = fed(control, *later)
    assert changes[-1].cause is AdjustCause.HEADROOM, "the others are served well: it was never told to have ended"


def test_beyond_reach_is_said_once_and_online_keeps_what_it_may() -> None:
    control = a_control()
    changes = fed(control, *(window(one, web(30 * MS), JOB) for one in range(600)))
    assert [(change.cause, change.online_ppm) for change in changes] == [
        (AdjustCause.UNREACHABLE, LIMITS.max_online_ppm)
    ]
    assert "the online share is at its maximum" in changes[0].detail


def test_two_beyond_reach_divide_the_device() -> None:
    control = a_control()
    changes = fed(control, *(window(one, web(30 * MS), web(30 * MS, slot=1), JOB) for one in range(100)))
    assert [slot for slot, _ in changes[-1].shares] == [0, 1]
    well = fed(control, *(window(one, web(2 * MS), web(2 * MS, slot=1), JOB) for one in range(100, 700)))
    assert well, "what was said once does not hold for ever"
    assert {change.shares for change in well} == {()}


def test_a_third_that_joins_two_who_divide_the_device_gets_a_part_of_it_at_once() -> None:
    """Though online work keeps all that it may already, so that nothing else changes."""
    control = a_control()
    two = [web(30 * MS), web(30 * MS, slot=1)]
    before = fed(control, *(window(one, *two, JOB) for one in range(100)))
    assert sum(ppm for _, ppm in before[-1].shares) > 999_000
    (joined,) = fed(control, window(100, *two, web(0, 0, slot=2), JOB))
    assert (joined.cause, joined.online_ppm) == (AdjustCause.DIVIDED, LIMITS.max_online_ppm)
    assert [slot for slot, _ in joined.shares] == [0, 1, 2]
    assert min(ppm for _, ppm in joined.shares) > 300_000, "of whom nobody knows what it needs gets an equal part"
    light = msgspec.structs.replace(web(30 * MS, slot=2), device_ns=PERIOD_NS // 1000)
    (known,) = fed(control, *(window(one, *two, light, JOB) for one in range(101, 200)))
    assert known.cause is AdjustCause.DIVIDED, "once, when it is known"
    assert dict(known.shares)[2] < 200_000
    (left,) = fed(control, *(window(one, *two, JOB) for one in range(200, 240)))
    assert [slot for slot, _ in left.shares] == [0, 1]
    (alone,) = fed(control, *(window(one, two[0], JOB) for one in range(240, 260)))
    assert (alone.cause, alone.shares) == (AdjustCause.DIVIDED, ())


def test_an_equal_without_an_objective_is_left_a_part_and_who_is_no_equal_changes_nothing() -> None:
    control = a_control()
    two = [web(30 * MS), web(30 * MS, slot=1)]
    fed(control, *(window(one, *two, JOB) for one in range(100)))
    plain = TenantWindow(2, 1, online=True, priority=2)
    (joined,) = fed(control, *(window(one, *two, plain, JOB) for one in range(100, 140)))
    assert [slot for slot, _ in joined.shares] == [0, 1]
    assert sum(ppm for _, ppm in joined.shares) < 700_000
    below = [web(2 * MS, slot=3, priority=3), TenantWindow(4, 1, online=True, priority=1)]
    assert fed(control, *(window(one, *two, plain, *below, JOB) for one in range(140, 180))) == []


def test_a_violation_without_offline_work_changes_nothing() -> None:
    control = a_control()
    assert fed(control, *(window(one, web(2 * MS)) for one in range(100))) == []
    number = 100 + lowered(control)
    quiet = [window(number + one, web(2 * MS)) for one in range(40)]
    late = [window(number + 40 + one, web(30 * MS)) for one in range(10)]
    assert fed(control, *quiet, *late) == []


def test_equals_that_harm_each_other_divide_the_device_though_no_offline_work_runs() -> None:
    """What online work keeps is left alone: nobody takes any of it."""
    control = a_control(400_000)
    late = [window(one, web(30 * MS), web(30 * MS, slot=1)) for one in range(100)]
    assert fed(control, *late[:29]) == []
    (change,) = fed(control, *late[29:])
    assert (change.cause, change.online_ppm) == (AdjustCause.UNREACHABLE, 400_000)
    assert [slot for slot, _ in change.shares] == [0, 1]
    assert "no offline work ran: peers delay each other" in change.detail
    (alone,) = fed(control, *(window(one, web(30 * MS)) for one in range(100, 200)))
    assert alone.shares == ()
    other = web(2 * MS, slot=1, generation=2)
    (joined,) = fed(control, *(window(one, web(30 * MS), other) for one in range(200, 229)))
    assert (joined.cause, joined.shares) == (AdjustCause.JOINED, ()), "who comes next is not judged by who left"


def test_one_late_moment_or_those_of_other_priorities_are_no_reason_to_divide() -> None:
    control = a_control()
    others = [window(one, web(30 * MS), web(30 * MS, slot=1, priority=3)) for one in range(100)]
    assert fed(control, *others) == []
    control = a_control()
    for begin in range(0, 200, 50):
        late = [window(begin + one, web(30 * MS), web(2 * MS, slot=1)) for one in range(10)]
        well = [window(begin + one, web(2 * MS), web(2 * MS, slot=1)) for one in range(10, 50)]
        assert fed(control, *late, *well) == []


def test_a_newcomer_is_given_all_until_it_is_known_and_who_left_is_forgotten() -> None:
    control = a_control()
    number = lowered(control)
    (change,) = fed(control, window(number, web(2 * MS), web(19 * MS, slot=1), JOB))
    assert (change.cause, change.online_ppm, change.slot) == (AdjustCause.JOINED, LIMITS.max_online_ppm, 1)
    both = fed(control, *(window(number + one, web(2 * MS), web(19 * MS, slot=1), JOB) for one in range(1, 100)))
    assert both == [], "the newcomer is at its objective: nothing can be taken"
    alone = fed(control, *(window(number + 100 + one, web(2 * MS), JOB) for one in range(100)))
    assert alone
    assert alone[0].cause is AdjustCause.DEPARTED
    assert control.online_ppm(0) == LIMITS.min_online_ppm
    (other,) = fed(control, window(number + 200, web(2 * MS, generation=2), JOB))
    assert other.cause is AdjustCause.JOINED, "another one in the same slot"
    assert fed(control, window(number + 201, JOB)) == []
    assert control.online_ppm(0) is None


def test_a_tail_near_its_objective_raises_the_share_to_the_tolerable_one_and_a_violation_to_the_maximum() -> None:
    """17.4 of 20 ms leave no room by the tail; but the few percent more that all would keep are nothing of 20 ms."""
    control = a_control()
    (change,) = fed(control, *(window(number, web(17_400_000), JOB) for number in range(100)))
    assert (change.cause, change.online_ppm) == (AdjustCause.HEADROOM, 900_000)
    harmed = fed(control, *(window(100 + number, web(25 * MS), JOB) for number in range(20)))
    assert {one.cause for one in harmed} == {AdjustCause.VIOLATED}
    assert control.online_ppm(0) == LIMITS.max_online_ppm


def test_offline_work_that_begins_is_met_with_all_that_online_may_keep() -> None:
    control = a_control()
    number = lowered(control)
    (change,) = fed(control, window(number, web(2 * MS), JOB, TenantWindow(8, 1, online=False, device_ns=5)))
    assert (change.cause, change.online_ppm) == (AdjustCause.JOINED, LIMITS.max_online_ppm)


def test_what_was_kept_before_a_restart_is_where_it_goes_on() -> None:
    control = a_control(400_000)
    at_first_sight = TenantWindow(9, 1, online=False)  # the first look at somebody only begins its window
    assert fed(control, window(0, web(0, requests=0), at_first_sight), window(1, web(15 * MS), JOB)) == []
    assert control.online_ppm(0) == 400_000
    (change,) = fed(control, window(2, web(15 * MS), JOB, TenantWindow(8, 1, online=False, device_ns=5)))
    assert change.cause is AdjustCause.JOINED, "who comes after that is new"


def test_on_the_way_down_it_says_what_was_seen_at_this_share_not_what_was_late_before() -> None:
    control = a_control(400_000)
    first = [window(0, web(2 * MS), JOB), window(1, web(0, requests=0, oldest_ns=90 * MS), JOB)]
    (up,) = fed(control, *first, window(2, web(150 * MS, requests=1), JOB))
    assert up.cause is AdjustCause.STUCK
    downs = [
        change
        for change in fed(control, *(window(number, web(2 * MS), JOB) for number in range(3, 30)))
        if change.cause is AdjustCause.HEADROOM
    ]
    assert downs
    assert all(change.detail.startswith("p99 2.") for change in downs), [change.detail for change in downs]


def test_the_first_window_sets_the_online_share() -> None:
    """Whatever the rules of the node let online work lose."""
    (first,) = fed(Control(LIMITS), *(window(one, web(15 * MS), JOB) for one in range(5)))
    assert (first.cause, first.online_ppm, first.slot) == (AdjustCause.JOINED, LIMITS.max_online_ppm, 0)


def test_each_policy_stays_within_its_limits_and_off_does_nothing() -> None:
    service = (steady(50), 4 * MS, 20 * MS)
    for name in POLICIES:
        limits = ControlLimits(adjust=name, min_online_ppm=300_000, max_online_ppm=900_000)
        run = Run([Service(*service)], limits).go(20)
        assert {300_000 <= online_ppm <= 900_000 for online_ppm in run.shares} == {True}
    assert Run([Service(*service)], ControlLimits(adjust="off")).go(5).steps == []


def test_a_burst_is_met_before_the_next_window() -> None:
    """Though such bursts are known, and no chance: online work is active all the time for far more than usual."""
    control = a_control()
    number = lowered(control)
    burst = TenantWindow(
        *(0, 1, True, 20 * MS, 45, 0, 45 * 5 * MS),
        latencies=((bucket_of(5 * MS), 45),),
        active_ns=PERIOD_NS * 95 // 100,
        device_ns=PERIOD_NS * 8 // 10,
        oldest_ns=6 * MS,
    )
    (change,) = fed(control, window(number, burst, JOB))
    assert (change.cause, change.online_ppm) == (AdjustCause.LOAD_INCREASED, LIMITS.max_online_ppm)
    after = fed(control, *(window(number + one, web(2 * MS), JOB) for one in range(1, 60)))
    assert after[0].online_ppm > 2 * LIMITS.min_online_ppm, "more is kept for the next burst of the kind"


@given(st.integers(0, 99))
@settings(max_examples=2, deadline=None, phases=FOUND_AS_IT_IS)
def test_the_same_windows_lead_to_the_same_steps(seed: int) -> None:
    service = (steady(80), 4 * MS, 25 * MS)
    assert Run([Service(*service)], seed=seed).go(20).steps == Run([Service(*service)], seed=seed).go(20).steps
