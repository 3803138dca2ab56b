"""The activity that `cotenant top` shows is the difference of the tenants' counters between two snapshots."""

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.activity import (
    DeviceSnapshot,
    GateCounts,
    GateState,
    TenantActivity,
    activity_between,
    quantile_bound,
)
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM

WEB, JOB, OLD = GateEntry(0, 3, 1, online=True), GateEntry(1, 1, 7, online=False), GateEntry(2, 2, 9, online=False)
RULES = GateRules(entries=(OLD, JOB, WEB))


def snapshot(at_ns: int, web: GateCounts | None = None, job: GateCounts | None = None) -> DeviceSnapshot:
    pages = {0: web or GateCounts(3), 1: job or GateCounts(1), 2: GateCounts(1, launches=5, device_ns=5)}
    return DeviceSnapshot(0, at_ns, RULES, pages)


def activity_of(before: DeviceSnapshot, after: DeviceSnapshot, slot: int) -> TenantActivity:
    [result] = [activity for activity in activity_between(before, after) if activity.slot == slot]
    return result


def test_rates_are_per_second_between_two_snapshots() -> None:
    before = snapshot(7, job=GateCounts(1, launches=10, device_ns=100, waits=1, late=4))
    after = snapshot(
        7 + SECOND_NS // 2, job=GateCounts(1, launches=60, device_ns=100 + SECOND_NS // 4, waits=6, late=4)
    )
    job = activity_of(before, after, 1)
    assert (job.launches_per_s, job.device_ppm, job.waits_per_s, job.late_per_s) == (100, WHOLE_PPM // 2, 10, 0)


def test_filled_time_is_relative_to_idle_time_of_higher_priorities() -> None:
    web = GateCounts(3, device_ns=SECOND_NS // 4)
    job = GateCounts(1, device_ns=SECOND_NS // 2, filled_ns=SECOND_NS // 4)
    before, after = snapshot(0), snapshot(SECOND_NS, web, job)
    assert activity_of(before, after, 0).filled_of_idle_ppm is None, "there is no higher priority"
    activity = activity_of(before, after, 1)
    assert (activity.filled_ppm, activity.filled_of_idle_ppm) == (WHOLE_PPM // 4, WHOLE_PPM // 3)
    busy = snapshot(SECOND_NS, GateCounts(3, device_ns=2 * SECOND_NS), job)
    assert activity_of(before, busy, 1).filled_of_idle_ppm is None, "there was no idle time"


def test_page_of_an_earlier_generation_is_ignored() -> None:
    replaced = activity_of(snapshot(0), snapshot(SECOND_NS), 2)
    assert (replaced.generation, replaced.launches_per_s, replaced.device_ppm, replaced.state) == (
        2,
        0,
        0,
        GateState.QUIET,
    )
    reborn = snapshot(SECOND_NS, job=GateCounts(1, launches=3))
    earlier = DeviceSnapshot(0, 0, RULES, {1: GateCounts(99, launches=1000)})
    assert activity_of(earlier, reborn, 1).launches_per_s == 3, "counters of an earlier generation are not subtracted"


def test_present_tenants_are_sorted_by_priority() -> None:
    two_tenants = DeviceSnapshot(0, 5, GateRules(entries=(JOB, WEB)), {})
    assert [activity.slot for activity in activity_between(snapshot(0), two_tenants)] == [0, 1]
    assert [activity.slot for activity in activity_between(two_tenants, snapshot(9))] == [0, 1, 2]
    assert activity_between(two_tenants, DeviceSnapshot(0, 9, GateRules(), {})) == []


def test_state_shows_the_most_important_condition() -> None:
    at_ns = SECOND_NS
    states = {
        GateState.RUNNING: GateCounts(1, launches=1),
        GateState.QUIET: GateCounts(1, quiet_ns=at_ns),
        GateState.WAITING: GateCounts(1, wanted_ns=1, launches=1),
    }
    for state, counts in states.items():
        assert activity_of(snapshot(0), snapshot(at_ns, job=counts), 1).state is state
    assert (
        activity_of(snapshot(0), snapshot(at_ns, job=GateCounts(1, quiet_ns=at_ns + 1)), 1).state is GateState.RUNNING
    )
    held = msgspec.structs.replace(JOB, paused=True)
    paused = DeviceSnapshot(0, at_ns, GateRules(entries=(held,)), {1: states[GateState.WAITING]})
    assert activity_of(snapshot(0), paused, 1).state is GateState.PAUSED


def test_forecast_errors_are_empty_without_forecasts() -> None:
    none = activity_of(snapshot(0), snapshot(SECOND_NS, job=GateCounts(1, launches=5)), 1)
    assert (none.early_ppm, none.miss_ns) == (None, None)
    some = activity_of(snapshot(0), snapshot(SECOND_NS, job=GateCounts(1, forecasts=4, early=1, miss_ns=1000)), 1)
    assert (some.early_ppm, some.miss_ns) == (WHOLE_PPM // 4, 250)


durations_ns = st.integers(0, (1 << 41) - 1)


def buckets_of(values: list[int]) -> tuple[int, ...]:
    """As native/gate counts them."""
    buckets = [0] * 40
    for value in values:
        buckets[min(39, max(0, value.bit_length() - 1))] += 1
    return tuple(buckets)


@given(st.lists(durations_ns, min_size=1, max_size=50), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_bucket_quantile_is_at_most_twice_the_true_quantile(values: list[int], part: float) -> None:
    bound = quantile_bound(buckets_of(values), part)
    ordered = sorted(values)
    true = ordered[max(0, -(-int(part * 100) * len(ordered) // 100) - 1)]
    if true < 1 << 40:
        assert true < bound <= max(2, 2 * true)
    else:
        assert bound == 1 << 40, "the last bucket holds the rest"


def test_empty_buckets_have_no_quantile() -> None:
    assert quantile_bound((), 0.5) == quantile_bound((0,) * 40, 0.99) == 0


counts = st.integers(0, 1000)
steps = st.builds(
    GateCounts,
    st.just(1),
    launches=counts,
    device_ns=counts,
    overruns=counts,
    spun_ns=counts,
    waited=st.lists(counts, min_size=3, max_size=3).map(tuple),
)


@given(st.lists(steps, min_size=1, max_size=5))
def test_differences_of_snapshots_add_up_to_the_total(increases: list[GateCounts]) -> None:
    """The activity between successive snapshots adds up to the activity between the first and the last."""
    total = GateCounts(1, waited=(0, 0, 0))
    snapshots = [snapshot(0, job=total)]
    for step in increases:
        total = GateCounts(
            1,
            launches=total.launches + step.launches,
            device_ns=total.device_ns + step.device_ns,
            overruns=total.overruns + step.overruns,
            spun_ns=total.spun_ns + step.spun_ns,
            waited=tuple(old + new for old, new in zip(total.waited, step.waited, strict=True)),
        )
        snapshots.append(snapshot(len(snapshots) * SECOND_NS, job=total))
    parts = [activity_of(before, after, 1) for before, after in itertools.pairwise(snapshots)]
    assert sum(part.launches_per_s for part in parts) == total.launches
    assert sum(part.overruns_per_s for part in parts) == total.overruns
    overall = activity_of(snapshots[0], snapshot(SECOND_NS, job=total), 1)
    assert overall.waited_p50_ns == quantile_bound(total.waited, 0.5)
    assert max(part.waited_p99_ns for part in parts) >= overall.waited_p50_ns
