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
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""Failing examples are not shrunk: each run takes long."""
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
    """Return a window of an online tenant with an objective of 20 ms whose requests all have this latency."""
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


def feed(control: Control, *windows: DeviceWindow) -> list[Adjustment]:
    changes = [control.on_window(window, window.end_ns) for window in windows]
    return [change for change in changes if change is not None]


def restored_control(online_ppm: int = LIMITS.max_online_ppm) -> Control:
    """Return a control loop whose device has this online share already."""
    control = Control(LIMITS)
    control.restore(0, online_ppm)
    return control


def lower_to_minimum(control: Control, requests: int = 10) -> int:
    """Feed a light load until the share is at its minimum; return the number of windows."""
    for number in range(400):
        feed(control, window(number, web(2 * MS, requests), JOB))
        if control.online_ppm(0) == LIMITS.min_online_ppm:
            assert (
                feed(control, *(window(number + offset, web(2 * MS, requests), JOB) for offset in range(1, 10))) == []
            )
            return number + 10
    raise AssertionError(control.why(0))


@pytest.mark.parametrize("used, is_lowered", [(0.97, False), (0.9, False), (0.8, True), (0.3, True)])
def test_share_is_lowered_no_further_once_offline_work_uses_the_pauses(used: float, is_lowered: bool) -> None:
    control = restored_control()
    job = msgspec.structs.replace(JOB, device_ns=round(used * PERIOD_NS), waited_ns=PERIOD_NS)
    for number in range(300):
        feed(control, window(number, web(2 * MS), job))
    online_ppm = control.online_ppm(0)
    assert online_ppm is not None
    assert (online_ppm < 800_000) == is_lowered
    assert online_ppm < LIMITS.max_online_ppm, "what every objective tolerates is permitted at once"


@settings(max_examples=5, deadline=None, phases=WITHOUT_SHRINKING)
@given(services, st.integers(0, 99), st.integers(0, 3))
def test_feedback_is_bounded_stable_and_explained_for_any_service(service: Service, seed: int, late: int) -> None:
    """The share stays within its limits, is never lowered during violations and settles; causes match the steps."""
    run = Run([service], seed=seed, late=late).go(100)
    assert all(LIMITS.min_online_ppm <= online_ppm <= LIMITS.max_online_ppm for online_ppm in run.shares)
    recent: list[TenantWindow] = []
    before = LIMITS.max_online_ppm
    for device_window, after in zip(run.windows, run.shares, strict=True):
        recent = [*recent[-9:], device_window.tenants[0]]
        if after < before:
            assert device_window.tenants[0].over <= 0.5 + 0.01 * sum(earlier.requests for earlier in recent)
        before = after
    raising = {
        AdjustCause.VIOLATED,
        AdjustCause.STUCK,
        AdjustCause.NEAR_OBJECTIVE,
        AdjustCause.LOAD_INCREASED,
        AdjustCause.JOINED,
        AdjustCause.SATURATED,
    }
    either = {AdjustCause.UNREACHABLE, AdjustCause.TRIMMED}
    ppms = [LIMITS.max_online_ppm, *(change.online_ppm for _, change in run.steps)]
    for (earlier, later), (_, change) in zip(itertools.pairwise(ppms), run.steps, strict=True):
        assert (later > earlier) == (change.cause in raising) or change.cause in either
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
def test_share_settles_under_a_steady_load(rate: float, service_ns: int, slo_ns: int, yields: float) -> None:
    """The last eight of ten minutes have no cycle, and 99% of the requests meet the objective."""
    run = Run([Service(steady(rate), service_ns, slo_ns, yields=yields)], seed=1).go(600)
    assert run.turns(120) <= 6
    assert run.turns(360) <= 2
    assert run.attained(60) >= 0.99


def test_aimd_oscillates_under_a_steady_load() -> None:
    """This shows that `Run.turns` detects oscillation."""
    service = Service(steady(50), 4 * MS, 20 * MS)
    assert Run([service], ControlLimits(adjust="aimd")).go(120).turns(60) > 20


@pytest.mark.parametrize("seed", range(3))
def test_load_step_raises_the_share_within_a_second_and_lowers_it_slowly(seed: int) -> None:
    service = Service(lambda at: 150.0 if 60 <= at < 90 else 30.0, 4 * MS, 30 * MS)
    run = Run([service], seed=seed).go(150)
    assert run.shares[599] < 700_000
    assert max(run.shares[600:610]) == LIMITS.max_online_ppm
    assert run.attained(61) >= 0.99
    assert run.shares[-1] < 700_000
    decreases = [earlier - later for earlier, later in itertools.pairwise(run.shares) if later < earlier]
    assert max(decreases) <= 0.45 * LIMITS.max_online_ppm  # at the beginning, when nothing has failed yet


def test_one_window_of_clear_violations_raises_the_share() -> None:
    control = restored_control()
    number = lower_to_minimum(control)
    (change,) = feed(control, window(number, web(25 * MS, 20), JOB))
    assert change.cause is AdjustCause.VIOLATED
    assert change.online_ppm > LIMITS.min_online_ppm
    assert (change.slot, change.generation) == (0, 1)
    raises = feed(control, *(window(number + offset, web(50 * MS, 20), JOB) for offset in range(1, 30)))
    assert [offset.online_ppm for offset in raises] == sorted(offset.online_ppm for offset in raises)
    assert control.online_ppm(0) == LIMITS.max_online_ppm


def test_few_late_requests_among_many_are_no_violation() -> None:
    control = restored_control()
    number = lower_to_minimum(control, 1000)
    five = TenantWindow(
        *(0, 1, True, 20 * MS, 1000, 5, 2115 * MS),
        latencies=((bucket_of(2 * MS), 995), (bucket_of(25 * MS), 5)),
        active_ns=PERIOD_NS // 3,
    )
    assert feed(control, window(number, five, JOB)) == []


def test_unfinished_request_is_a_violation_until_it_counts_as_lost() -> None:
    control = restored_control()
    number = lower_to_minimum(control)
    assert feed(control, window(number, web(2 * MS, 5, oldest_ns=15 * MS), JOB)) == []
    (change,) = feed(control, window(number + 1, web(2 * MS, 0, oldest_ns=50 * MS), JOB))
    assert change.cause is AdjustCause.STUCK
    later = [window(number + 2 + offset, web(2 * MS, oldest_ns=(50 + 100 * offset) * MS), JOB) for offset in range(100)]
    changes = feed(control, *later)
    assert changes[-1].cause is AdjustCause.HEADROOM, (
        "the other requests are served well, so the end of this one was not reported"
    )


def test_unreachable_objective_is_reported_once_at_the_maximum_share() -> None:
    control = restored_control()
    changes = feed(control, *(window(number, web(30 * MS), JOB) for number in range(600)))
    assert [(change.cause, change.online_ppm) for change in changes] == [
        (AdjustCause.UNREACHABLE, LIMITS.max_online_ppm)
    ]
    assert "the online share is at its maximum" in changes[0].detail


def test_two_peers_with_unreachable_objectives_divide_the_device() -> None:
    control = restored_control()
    changes = feed(control, *(window(number, web(30 * MS), web(30 * MS, slot=1), JOB) for number in range(100)))
    assert [slot for slot, _ in changes[-1].shares] == [0, 1]
    recovered = feed(control, *(window(number, web(2 * MS), web(2 * MS, slot=1), JOB) for number in range(100, 700)))
    assert recovered, "the division ends when the objectives are met"
    assert {change.shares for change in recovered} == {()}


def test_third_peer_gets_a_part_of_a_divided_device_at_once() -> None:
    """The online share is at its maximum already, so that only the division changes."""
    control = restored_control()
    peers = [web(30 * MS), web(30 * MS, slot=1)]
    before = feed(control, *(window(number, *peers, JOB) for number in range(100)))
    assert sum(ppm for _, ppm in before[-1].shares) > 999_000
    (joined,) = feed(control, window(100, *peers, web(0, 0, slot=2), JOB))
    assert (joined.cause, joined.online_ppm) == (AdjustCause.DIVIDED, LIMITS.max_online_ppm)
    assert [slot for slot, _ in joined.shares] == [0, 1, 2]
    assert min(ppm for _, ppm in joined.shares) > 300_000, "a tenant whose need is unknown gets an equal part"
    light = msgspec.structs.replace(web(30 * MS, slot=2), device_ns=PERIOD_NS // 1000)
    (measured,) = feed(control, *(window(number, *peers, light, JOB) for number in range(101, 200)))
    assert measured.cause is AdjustCause.DIVIDED, "once, when its need was measured"
    assert dict(measured.shares)[2] < 200_000
    (remaining,) = feed(control, *(window(number, *peers, JOB) for number in range(200, 240)))
    assert [slot for slot, _ in remaining.shares] == [0, 1]
    (alone,) = feed(control, *(window(number, peers[0], JOB) for number in range(240, 260)))
    assert (alone.cause, alone.shares) == (AdjustCause.DIVIDED, ())


def test_peer_without_an_objective_keeps_a_part_and_other_priorities_change_nothing() -> None:
    control = restored_control()
    peers = [web(30 * MS), web(30 * MS, slot=1)]
    feed(control, *(window(number, *peers, JOB) for number in range(100)))
    plain = TenantWindow(2, 1, online=True, priority=2)
    (joined,) = feed(control, *(window(number, *peers, plain, JOB) for number in range(100, 140)))
    assert [slot for slot, _ in joined.shares] == [0, 1]
    assert sum(ppm for _, ppm in joined.shares) < 700_000
    others = [web(2 * MS, slot=3, priority=3), TenantWindow(4, 1, online=True, priority=1)]
    assert feed(control, *(window(number, *peers, plain, *others, JOB) for number in range(140, 180))) == []


def test_violation_without_offline_work_changes_nothing() -> None:
    control = restored_control()
    assert feed(control, *(window(offset, web(2 * MS)) for offset in range(100))) == []
    number = 100 + lower_to_minimum(control)
    quiet = [window(number + offset, web(2 * MS)) for offset in range(40)]
    late = [window(number + 40 + offset, web(30 * MS)) for offset in range(10)]
    assert feed(control, *quiet, *late) == []


def test_peers_that_delay_each_other_divide_the_device_without_offline_work() -> None:
    """The online share stays: no offline work uses the rest of the device."""
    control = restored_control(400_000)
    late = [window(number, web(30 * MS), web(30 * MS, slot=1)) for number in range(100)]
    assert feed(control, *late[:29]) == []
    (change,) = feed(control, *late[29:])
    assert (change.cause, change.online_ppm) == (AdjustCause.UNREACHABLE, 400_000)
    assert [slot for slot, _ in change.shares] == [0, 1]
    assert "no offline work ran: peers delay each other" in change.detail
    (alone,) = feed(control, *(window(number, web(30 * MS)) for number in range(100, 200)))
    assert alone.shares == ()
    other = web(2 * MS, slot=1, generation=2)
    (joined,) = feed(control, *(window(number, web(30 * MS), other) for number in range(200, 229)))
    assert (joined.cause, joined.shares) == (AdjustCause.JOINED, ()), (
        "violations of a departed tenant do not count for the next one"
    )


def test_short_violations_or_other_priorities_do_not_divide_the_device() -> None:
    control = restored_control()
    others = [window(offset, web(30 * MS), web(30 * MS, slot=1, priority=3)) for offset in range(100)]
    assert feed(control, *others) == []
    control = restored_control()
    for begin in range(0, 200, 50):
        late = [window(begin + offset, web(30 * MS), web(2 * MS, slot=1)) for offset in range(10)]
        timely = [window(begin + offset, web(2 * MS), web(2 * MS, slot=1)) for offset in range(10, 50)]
        assert feed(control, *late, *timely) == []


def test_new_tenant_gets_the_maximum_and_a_departed_one_is_forgotten() -> None:
    control = restored_control()
    number = lower_to_minimum(control)
    (change,) = feed(control, window(number, web(2 * MS), web(19 * MS, slot=1), JOB))
    assert (change.cause, change.online_ppm, change.slot) == (AdjustCause.JOINED, LIMITS.max_online_ppm, 1)
    both = feed(control, *(window(number + offset, web(2 * MS), web(19 * MS, slot=1), JOB) for offset in range(1, 100)))
    assert both == [], "the new tenant is at its objective, so the share cannot be lowered"
    alone = feed(control, *(window(number + 100 + offset, web(2 * MS), JOB) for offset in range(100)))
    assert alone
    assert alone[0].cause is AdjustCause.DEPARTED
    assert control.online_ppm(0) == LIMITS.min_online_ppm
    (other,) = feed(control, window(number + 200, web(2 * MS, generation=2), JOB))
    assert other.cause is AdjustCause.JOINED, "another tenant in the same slot"
    assert feed(control, window(number + 201, JOB)) == []
    assert control.online_ppm(0) is None


def test_tail_near_its_objective_keeps_the_tolerable_share_and_a_violation_the_maximum() -> None:
    """The maximum share would shorten a tail of 17.4 of 20 ms by a few percent only; small steps follow."""
    control = restored_control()
    changes = feed(control, *(window(number, web(17_400_000), JOB) for number in range(100)))
    assert {change.cause for change in changes} <= {AdjustCause.HEADROOM, AdjustCause.TRIMMED}
    assert (control.online_ppm(0) or 0) <= 900_000
    violations = feed(control, *(window(100 + number, web(25 * MS), JOB) for number in range(20)))
    assert {change.cause for change in violations} == {AdjustCause.VIOLATED}
    assert control.online_ppm(0) == LIMITS.max_online_ppm


def test_new_offline_work_sets_the_maximum_share() -> None:
    control = restored_control()
    number = lower_to_minimum(control)
    (change,) = feed(control, window(number, web(2 * MS), JOB, TenantWindow(8, 1, online=False, device_ns=5)))
    assert (change.cause, change.online_ppm) == (AdjustCause.JOINED, LIMITS.max_online_ppm)


def test_restored_share_stays_until_new_offline_work_begins() -> None:
    control = restored_control(400_000)
    without_activity = TenantWindow(9, 1, online=False)  # the first read of a tenant only begins its window
    assert feed(control, window(0, web(0, requests=0), without_activity), window(1, web(15 * MS), JOB)) == []
    assert control.online_ppm(0) == 400_000
    (change,) = feed(control, window(2, web(15 * MS), JOB, TenantWindow(8, 1, online=False, device_ns=5)))
    assert change.cause is AdjustCause.JOINED, "a tenant that joins later is new"


def test_reason_of_a_decrease_names_only_latencies_at_the_current_share() -> None:
    control = restored_control(400_000)
    first = [window(0, web(2 * MS), JOB), window(1, web(0, requests=0, oldest_ns=90 * MS), JOB)]
    (up,) = feed(control, *first, window(2, web(150 * MS, requests=1), JOB))
    assert up.cause is AdjustCause.STUCK
    downs = [
        change
        for change in feed(control, *(window(number, web(2 * MS), JOB) for number in range(3, 30)))
        if change.cause is AdjustCause.HEADROOM
    ]
    assert downs
    assert all(change.detail.startswith("p99 2.") for change in downs), [change.detail for change in downs]


def test_first_window_sets_the_online_share() -> None:
    """It replaces the delay budget of the gate rules."""
    (first,) = feed(Control(LIMITS), *(window(number, web(15 * MS), JOB) for number in range(5)))
    assert (first.cause, first.online_ppm, first.slot) == (AdjustCause.JOINED, LIMITS.max_online_ppm, 0)


def test_each_policy_stays_within_its_limits_and_off_does_nothing() -> None:
    service = (steady(50), 4 * MS, 20 * MS)
    for name in POLICIES:
        limits = ControlLimits(adjust=name, min_online_ppm=300_000, max_online_ppm=900_000)
        run = Run([Service(*service)], limits).go(20)
        assert {300_000 <= online_ppm <= 900_000 for online_ppm in run.shares} == {True}
    assert Run([Service(*service)], ControlLimits(adjust="off")).go(5).steps == []


def test_burst_raises_the_share_in_its_first_window() -> None:
    """The tenant is active all the time with far more requests than usual, which is no random variation."""
    control = restored_control()
    number = lower_to_minimum(control)
    burst = TenantWindow(
        *(0, 1, True, 20 * MS, 45, 0, 45 * 5 * MS),
        latencies=((bucket_of(5 * MS), 45),),
        active_ns=PERIOD_NS * 95 // 100,
        device_ns=PERIOD_NS * 8 // 10,
        oldest_ns=6 * MS,
    )
    (change,) = feed(control, window(number, burst, JOB))
    assert (change.cause, change.online_ppm) == (AdjustCause.LOAD_INCREASED, LIMITS.max_online_ppm)
    after = feed(control, *(window(number + offset, web(2 * MS), JOB) for offset in range(1, 60)))
    assert after[0].online_ppm > 2 * LIMITS.min_online_ppm, "a larger share stays for the next burst"


@given(st.integers(0, 99))
@settings(max_examples=2, deadline=None, phases=WITHOUT_SHRINKING)
def test_same_windows_give_the_same_steps(seed: int) -> None:
    service = (steady(80), 4 * MS, 25 * MS)
    assert Run([Service(*service)], seed=seed).go(20).steps == Run([Service(*service)], seed=seed).go(20).steps
