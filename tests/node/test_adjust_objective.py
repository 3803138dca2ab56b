"""The adjust policies react to a changed objective: to a stricter one at once, to a looser one soon."""

import msgspec
import pytest

from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, TenantWindow
from cotenant.node.state.control import Control
from tests.node.test_adjust import JOB, LIMITS, MS, a_control, fed, lowered, web, window
from tests.support.plant_model import Run, Service, steady


def aimed(slo_ns: int, latency_ns: int, requests: int = 10) -> TenantWindow:
    """As `web`, with another objective."""
    late = requests * (latency_ns > slo_ns)
    return msgspec.structs.replace(web(latency_ns, requests), slo_ns=slo_ns, over=late)


def after(control: Control, number: int, tenant: TenantWindow, windows: int) -> list[Adjustment]:
    return fed(control, *(window(number + one, tenant, JOB) for one in range(windows)))


def test_a_stricter_objective_is_met_in_the_first_window_that_knows_it() -> None:
    """2 ms were far from 20; of 1.5 they are too many, and nobody need be late any longer to know it."""
    control = a_control()
    number = lowered(control)
    (change,) = after(control, number, aimed(3 * MS // 2, 2 * MS), 1)
    assert (change.cause, change.slot, change.generation) == (AdjustCause.OBJECTIVE, 0, 1)
    assert 1.4 * LIMITS.min_online_ppm < change.online_ppm < 3 * LIMITS.min_online_ppm, "in proportion to what was seen"
    assert change.detail.endswith("of its 1.5ms objective")


def test_a_stricter_objective_that_is_kept_already_changes_nothing() -> None:
    control = a_control()
    number = lowered(control)
    assert after(control, number, aimed(10 * MS, 2 * MS), 50) == []
    assert control.online_ppm(0) == LIMITS.min_online_ppm


def test_of_whom_too_little_was_seen_to_judge_it_is_as_new() -> None:
    control = a_control(400_000)
    assert after(control, 0, web(15 * MS, 1), 5) == []
    (change,) = after(control, 5, aimed(5 * MS, 4 * MS, 1), 1)
    assert (change.cause, change.online_ppm) == (AdjustCause.OBJECTIVE, LIMITS.max_online_ppm)
    assert change.detail == "its need is not known yet"


def test_a_looser_objective_makes_room_soon_though_this_share_failed_before() -> None:
    """What failed is remembered for ten seconds and more, but by an objective that is no longer so."""
    strict, loose = a_control(400_000), a_control(400_000)
    for control in (strict, loose):
        assert after(control, 0, web(15 * MS), 5) == []
        assert after(control, 5, web(25 * MS, 20), 20)[-1].cause is AdjustCause.VIOLATED
        assert control.online_ppm(0) == LIMITS.max_online_ppm
    (down,) = after(loose, 25, aimed(200 * MS, 25 * MS), 6)
    assert (down.cause, down.detail.split()[-2]) == (AdjustCause.HEADROOM, "200ms")
    assert after(loose, 31, aimed(200 * MS, 25 * MS), 60)[-1].online_ppm < 400_000
    after(strict, 25, web(5 * MS), 66)
    assert (strict.online_ppm(0) or 0) > 400_000


def some_late(slo_ns: int, late_ns: int, late: int) -> TenantWindow:
    """Of a hundred requests these, the others near an objective of 20 ms."""
    well, ill = web(17_400_000, 100 - late), web(late_ns, late)
    return msgspec.structs.replace(
        aimed(slo_ns, 17_400_000, 100), over=late, latencies=tuple(sorted(well.latencies + ill.latencies))
    )


@pytest.mark.parametrize("slo_ms", [20, 30])
def test_who_was_late_by_the_old_objective_is_not_held_against_the_new_one(slo_ms: int) -> None:
    """Twelve late ones together are harm; four of them by this objective, and eight by the one before, are not."""
    control = a_control(400_000)
    assert after(control, 0, web(17_400_000, 100), 5) == []
    assert after(control, 5, some_late(20 * MS, 25 * MS, 8), 1) == []
    changes = after(control, 6, some_late(slo_ms * MS, 35 * MS, 4), 1)
    assert [change.cause for change in changes] == ([AdjustCause.VIOLATED] if slo_ms == 20 else [])


def test_a_stricter_objective_without_violations_raises_the_share_at_most_to_the_tolerable_one() -> None:
    control = a_control(860_000)
    assert after(control, 0, web(17_400_000), 20) == []
    (change,) = after(control, 20, aimed(19_500_000, 17_400_000), 1)
    assert (change.cause, change.online_ppm) == (AdjustCause.OBJECTIVE, 900_000)


def test_beyond_reach_is_said_anew_of_another_objective() -> None:
    control = a_control()
    assert [one.cause for one in after(control, 0, web(90 * MS), 60)] == [AdjustCause.UNREACHABLE]
    assert [one.cause for one in after(control, 60, aimed(50 * MS, 90 * MS), 60)] == [AdjustCause.UNREACHABLE]


def test_an_objective_taken_away_is_no_longer_kept_and_one_given_back_is_new() -> None:
    control = a_control()
    number = lowered(control)
    assert after(control, number, aimed(0, 2 * MS), 1) == []
    assert control.online_ppm(0) is None
    (change,) = after(control, number + 1, web(2 * MS), 1)
    assert (change.cause, change.online_ppm) == (AdjustCause.JOINED, LIMITS.max_online_ppm)


@pytest.mark.parametrize("policy", ["feedback", "fixed", "aimd"])
def test_every_policy_aims_at_what_holds_now(policy: str) -> None:
    """A minute each of 80, 20 and 80 ms, of the same load."""
    service = Service(steady(50), 4 * MS, 80 * MS)

    def change(number: int) -> None:
        service.slo_ns = 20 * MS if 600 <= number < 1200 else 80 * MS

    run = Run([service], ControlLimits(adjust=policy), seed=1, before=change).go(180)
    kept = [sum(run.shares[end - 200 : end]) / 200 for end in (600, 1200, 1800)]
    assert kept[1] > 1.3 * max(kept[0], kept[2])
    late = [tenant.over for one in run.windows[600:1200] for tenant in one.tenants if tenant.slot == 0]
    ended = [tenant.requests for one in run.windows[600:1200] for tenant in one.tenants if tenant.slot == 0]
    if policy == "feedback":
        assert sum(late[10:]) <= 0.01 * sum(ended[10:]), "from the first second on"
        assert run.shares[600] > run.shares[599], "at once"
        assert run.turns(180 - 30) <= 2
