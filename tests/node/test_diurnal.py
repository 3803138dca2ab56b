"""A program that returns has its diurnal profile, and nothing else of its earlier run."""

from collections.abc import Callable

import pytest

from cotenant.node.model.control import ControlLimits, DeviceWindow, TenantWindow
from cotenant.node.state.control import Control
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.predict.diurnal_profile import DAY_NS, PROGRAMS_LIMIT, DiurnalProfile, Program
from cotenant.predict.load import Load
from cotenant.units.instant import SECOND_NS

MINUTE_NS = 60 * SECOND_NS
LIMITS = ControlLimits(period_ns=MINUTE_NS)
WEB = Program(1000, "serve.py")
SIX_NS = DAY_NS // 4


def daily(at_ns: int) -> int:
    """Return the load at a time: a burst every day from six to seven."""
    return 1000 if SIX_NS <= at_ns % DAY_NS < SIX_NS + DAY_NS // 24 else 100


def feed_days(
    control: Control, begin_ns: int, end_ns: int, *, ahead_ns: int = 0, program: Program = WEB, generation: int = 1
) -> None:
    """Feed the windows of one tenant between two times of day; the node's clock is behind them by `ahead_ns`."""
    for at_ns in range(begin_ns, end_ns, MINUTE_NS):
        tenant = TenantWindow(0, generation, True, SECOND_NS, daily(at_ns))
        node_ns = at_ns - ahead_ns
        control.on_window(DeviceWindow(0, node_ns, node_ns + MINUTE_NS, (tenant,)), node_ns, None, {0: program})


def leave(control: Control, at_ns: int) -> None:
    control.on_window(DeviceWindow(0, at_ns, at_ns), at_ns)


def load_in(control: Control) -> Load:
    return control._devices[0].loads[0]


def forecast_error(control: Control, begin_ns: int, end_ns: int, **kwargs: int) -> float:
    """Return the mean error of the forecasts relative to the mean load."""
    error, load = 0.0, 0
    for at_ns in range(begin_ns, end_ns, MINUTE_NS):
        forecast = load_in(control).next_window(at_ns)
        assert forecast is not None
        error, load = error + abs(forecast.point - daily(at_ns)), load + daily(at_ns)
        feed_days(control, at_ns, at_ns + MINUTE_NS, generation=kwargs.get("generation", 1))
    return error / load


def stay(control: Control, at_ns: int) -> Control:
    del at_ns
    return control


def leave_and_return(control: Control, at_ns: int) -> Control:
    leave(control, at_ns)
    return control


def restart(control: Control, at_ns: int) -> Control:
    control.remember(at_ns)
    return Control(LIMITS, DiurnalProfiles(control._profiles.profiles()))


@pytest.mark.parametrize("absence", [leave_and_return, restart])
def test_returning_program_forecasts_the_burst_as_well_as_one_that_stayed(
    absence: Callable[[Control, int], Control],
) -> None:
    """The program returns at half past five; only its profile can predict the burst at six."""
    back_ns = 3 * DAY_NS + SIX_NS - 30 * MINUTE_NS
    errors = []
    for change in (stay, absence, lambda *_: Control(LIMITS)):
        control = Control(LIMITS)
        feed_days(control, 0, back_ns)
        control = change(control, back_ns)
        feed_days(control, back_ns, back_ns + 25 * MINUTE_NS, generation=2 if change is not stay else 1)
        begin_ns = back_ns + 25 * MINUTE_NS
        generation = 2 if change is not stay else 1
        errors.append(forecast_error(control, begin_ns, begin_ns + 20 * MINUTE_NS, generation=generation))
    stayed, returned, unknown = errors
    assert returned <= stayed + 0.01
    assert returned < unknown / 2


def test_returning_program_restores_only_the_diurnal_profile() -> None:
    control = Control(LIMITS)
    feed_days(control, 0, DAY_NS + MINUTE_NS)
    before = load_in(control)
    leave(control, DAY_NS + MINUTE_NS)
    feed_days(control, DAY_NS + MINUTE_NS, DAY_NS + 2 * MINUTE_NS, generation=2)
    after = load_in(control)
    assert after.windows == 1
    totals = [[interval.total for interval in load.day[1:]] for load in (before, after)]
    assert totals[1] == pytest.approx(totals[0])
    assert after.day[0].windows == before.day[0].windows + 1, "the current quarter of an hour continues"


def test_profile_is_not_shared_by_other_tasks_or_users() -> None:
    control = Control(LIMITS)
    feed_days(control, 0, DAY_NS)
    leave(control, DAY_NS)
    for program in (Program(1000, "other.py"), Program(1001, "serve.py")):
        feed_days(control, DAY_NS, DAY_NS + MINUTE_NS, program=program, generation=2)
        assert sum(interval.windows for interval in load_in(control).day) == 1
        leave(control, DAY_NS + MINUTE_NS)


def test_profile_follows_the_wall_clock_across_boots() -> None:
    """After a second boot the same times of day have other instants."""
    saved: dict[Program, DiurnalProfile] = {}
    for ahead_ns in (0, 7 * 3600 * SECOND_NS):
        profiles = DiurnalProfiles(saved, ahead_ns)
        control = Control(LIMITS, profiles)
        begin_ns = DAY_NS if ahead_ns else 0
        feed_days(control, begin_ns, begin_ns + DAY_NS, ahead_ns=ahead_ns)
        control.remember(begin_ns + DAY_NS - ahead_ns)
        saved = profiles.profiles()
    assert all(interval.latest * 60 == pytest.approx(daily(interval.part * DAY_NS // 96)) for interval in saved[WEB])
    assert {(interval.day, interval.days) for interval in saved[WEB]} == {(1, 1)}


def test_profile_is_independent_of_the_window_length() -> None:
    control = Control(LIMITS)
    feed_days(control, 0, DAY_NS)
    control.remember(DAY_NS)
    load = control._profiles.load(WEB, MINUTE_NS // 2).after(0, 2 * DAY_NS)
    mean, days = load.day[24].usual(3, 0.3)
    assert mean == pytest.approx(500)
    assert days == 1


def test_tenant_without_a_task_has_no_profile() -> None:
    control = Control(LIMITS)
    window = DeviceWindow(0, 0, MINUTE_NS, (TenantWindow(0, 1, True, SECOND_NS, 5),))
    control.on_window(window, MINUTE_NS)
    leave(control, MINUTE_NS)
    assert not control._profiles.profiles()


def test_most_recent_programs_are_kept() -> None:
    profiles, load = DiurnalProfiles(), Load().after(5, 0)
    for number in range(PROGRAMS_LIMIT + 10):
        profiles.add_load(Program(0, str(number)), load, MINUTE_NS, 0)
        profiles.add_load(WEB, load, MINUTE_NS, 0)
    kept = profiles.profiles()
    assert len(kept) == PROGRAMS_LIMIT
    assert list(kept)[-1] == WEB
    assert Program(0, "0") not in kept
