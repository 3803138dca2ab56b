"""The adjust policies react to a changed objective: to a stricter one at once, to a looser one soon."""

import msgspec
import pytest

from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, TenantWindow
from cotenant.node.state.control import Control
from tests.node.test_adjust import JOB, LIMITS, MS, feed, lower_to_minimum, restored_control, web, window
from tests.support.plant_model import Run, Service, steady


def with_objective(slo_ns: int, latency_ns: int, requests: int = 10) -> TenantWindow:
    """Return a window as `web` does, with another objective."""
    late = requests * (latency_ns > slo_ns)
    return msgspec.structs.replace(web(latency_ns, requests), slo_ns=slo_ns, over=late)


def feed_windows(control: Control, number: int, tenant: TenantWindow, windows: int) -> list[Adjustment]:
    return feed(control, *(window(number + offset, tenant, JOB) for offset in range(windows)))


def test_stricter_objective_raises_the_share_in_its_first_window() -> None:
    """Latencies of 2 ms met an objective of 20 ms and exceed one of 1.5 ms, which is known without further misses."""
    control = restored_control()
    number = lower_to_minimum(control)
    (change,) = feed_windows(control, number, with_objective(3 * MS // 2, 2 * MS), 1)
    assert (change.cause, change.slot, change.generation) == (AdjustCause.OBJECTIVE, 0, 1)
    assert 1.4 * LIMITS.min_online_ppm < change.online_ppm < 3 * LIMITS.min_online_ppm, (
        "in proportion to the measured latency"
    )
    assert change.detail.endswith("of its 1.5ms objective")


def test_stricter_objective_that_is_already_met_changes_nothing() -> None:
    control = restored_control()
    number = lower_to_minimum(control)
    assert feed_windows(control, number, with_objective(10 * MS, 2 * MS), 50) == []
    assert control.online_ppm(0) == LIMITS.min_online_ppm


def test_stricter_objective_with_few_measurements_sets_the_maximum() -> None:
    control = restored_control(400_000)
    assert feed_windows(control, 0, web(15 * MS, 1), 5) == []
    (change,) = feed_windows(control, 5, with_objective(5 * MS, 4 * MS, 1), 1)
    assert (change.cause, change.online_ppm) == (AdjustCause.OBJECTIVE, LIMITS.max_online_ppm)
    assert change.detail == "its need is not known yet"


def test_looser_objective_lowers_the_share_despite_an_earlier_failure() -> None:
    """A failed share is remembered for at least ten seconds, but only for the objective that it failed."""
    strict, loose = restored_control(400_000), restored_control(400_000)
    for control in (strict, loose):
        assert feed_windows(control, 0, web(15 * MS), 5) == []
        assert feed_windows(control, 5, web(25 * MS, 20), 20)[-1].cause is AdjustCause.VIOLATED
        assert control.online_ppm(0) == LIMITS.max_online_ppm
    (down,) = feed_windows(loose, 25, with_objective(200 * MS, 25 * MS), 6)
    assert (down.cause, down.detail.split()[-2]) == (AdjustCause.HEADROOM, "200ms")
    assert feed_windows(loose, 31, with_objective(200 * MS, 25 * MS), 60)[-1].online_ppm < 400_000
    feed_windows(strict, 25, web(5 * MS), 66)
    assert (strict.online_ppm(0) or 0) > 400_000


def mixed_latencies(slo_ns: int, late_ns: int, late: int) -> TenantWindow:
    """Return a window of 100 requests of which `late` took `late_ns`, the others a little less than 20 ms."""
    timely, missed = web(17_400_000, 100 - late), web(late_ns, late)
    return msgspec.structs.replace(
        with_objective(slo_ns, 17_400_000, 100), over=late, latencies=tuple(sorted(timely.latencies + missed.latencies))
    )


@pytest.mark.parametrize("slo_ms", [20, 30])
def test_misses_of_the_old_objective_do_not_count_for_the_new_one(slo_ms: int) -> None:
    """Twelve misses are a violation; four of the current objective and eight of the previous one are not."""
    control = restored_control(400_000)
    assert feed_windows(control, 0, web(17_400_000, 100), 5) == []
    assert feed_windows(control, 5, mixed_latencies(20 * MS, 25 * MS, 8), 1) == []
    changes = feed_windows(control, 6, mixed_latencies(slo_ms * MS, 35 * MS, 4), 1)
    assert [change.cause for change in changes] == ([AdjustCause.VIOLATED] if slo_ms == 20 else [])


def test_a_stricter_objective_without_violations_raises_the_share_at_most_to_the_tolerable_one() -> None:
    control = restored_control(760_000)
    assert feed_windows(control, 0, web(17_400_000), 5) == []
    (change,) = feed_windows(control, 5, with_objective(19_500_000, 17_400_000), 1)
    assert (change.cause, change.online_ppm) == (AdjustCause.OBJECTIVE, 800_000)


def test_unreachable_objective_is_reported_again_after_it_changed() -> None:
    control = restored_control()
    assert [change.cause for change in feed_windows(control, 0, web(90 * MS), 60)] == [AdjustCause.UNREACHABLE]
    assert [change.cause for change in feed_windows(control, 60, with_objective(50 * MS, 90 * MS), 60)] == [
        AdjustCause.UNREACHABLE
    ]


def test_removed_objective_ends_adjustment_and_a_new_one_starts_at_the_maximum() -> None:
    control = restored_control()
    number = lower_to_minimum(control)
    assert feed_windows(control, number, with_objective(0, 2 * MS), 1) == []
    assert control.online_ppm(0) is None
    (change,) = feed_windows(control, number + 1, web(2 * MS), 1)
    assert (change.cause, change.online_ppm) == (AdjustCause.JOINED, LIMITS.max_online_ppm)


@pytest.mark.parametrize("policy", ["feedback", "fixed", "aimd"])
def test_every_policy_follows_a_changed_objective(policy: str) -> None:
    """The objective is 80, 20 and again 80 ms for a minute each, under the same load."""
    service = Service(steady(50), 4 * MS, 80 * MS)

    def change(number: int) -> None:
        service.slo_ns = 20 * MS if 600 <= number < 1200 else 80 * MS

    run = Run([service], ControlLimits(adjust=policy), seed=1, before=change).go(180)
    means = [sum(run.shares[end - 200 : end]) / 200 for end in (600, 1200, 1800)]
    assert means[1] > 1.3 * max(means[0], means[2])
    misses = [tenant.over for window in run.windows[600:1200] for tenant in window.tenants if tenant.slot == 0]
    ended = [tenant.requests for window in run.windows[600:1200] for tenant in window.tenants if tenant.slot == 0]
    if policy == "feedback":
        assert sum(misses[10:]) <= 0.01 * sum(ended[10:]), "from the first second on"
        assert run.shares[600] > run.shares[599], "at once"
        assert run.turns(180 - 30) <= 2
