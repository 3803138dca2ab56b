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
    """A burst every day from six to seven."""
    return 1000 if SIX_NS <= at_ns % DAY_NS < SIX_NS + DAY_NS // 24 else 100


def lived(
    control: Control, begin_ns: int, end_ns: int, *, ahead_ns: int = 0, program: Program = WEB, generation: int = 1
) -> None:
    """One tenant, from one time to another; its clock is behind by `ahead_ns`."""
    for at_ns in range(begin_ns, end_ns, MINUTE_NS):
        tenant = TenantWindow(0, generation, True, SECOND_NS, daily(at_ns))
        here_ns = at_ns - ahead_ns
        control.on_window(DeviceWindow(0, here_ns, here_ns + MINUTE_NS, (tenant,)), here_ns, None, {0: program})


def left(control: Control, at_ns: int) -> None:
    control.on_window(DeviceWindow(0, at_ns, at_ns), at_ns)


def load_in(control: Control) -> Load:
    return control._devices[0].loads[0]


def error_after(control: Control, begin_ns: int, end_ns: int, **kwargs: int) -> float:
    """Mean error of the forecasts over mean load."""
    off, load = 0.0, 0
    for at_ns in range(begin_ns, end_ns, MINUTE_NS):
        reported = load_in(control).next_window(at_ns)
        assert reported is not None
        off, load = off + abs(reported.point - daily(at_ns)), load + daily(at_ns)
        lived(control, at_ns, at_ns + MINUTE_NS, generation=kwargs.get("generation", 1))
    return off / load


def stays(control: Control, at_ns: int) -> Control:
    del at_ns
    return control


def leaves_and_comes(control: Control, at_ns: int) -> Control:
    left(control, at_ns)
    return control


def restarts(control: Control, at_ns: int) -> Control:
    control.remember(at_ns)
    return Control(LIMITS, DiurnalProfiles(control._profiles.profiles()))


@pytest.mark.parametrize("how", [leaves_and_comes, restarts])
def test_a_program_that_returns_forecasts_the_burst_as_well_as_one_that_stayed(
    how: Callable[[Control, int], Control],
) -> None:
    """It comes back at half past five; without a memory nothing could know of what comes at six."""
    back_ns = 3 * DAY_NS + SIX_NS - 30 * MINUTE_NS
    errors = []
    for change in (stays, how, lambda *_: Control(LIMITS)):
        control = Control(LIMITS)
        lived(control, 0, back_ns)
        control = change(control, back_ns)
        lived(control, back_ns, back_ns + 25 * MINUTE_NS, generation=2 if change is not stays else 1)
        begin_ns = back_ns + 25 * MINUTE_NS
        generation = 2 if change is not stays else 1
        errors.append(error_after(control, begin_ns, begin_ns + 20 * MINUTE_NS, generation=generation))
    stayed, came, stranger = errors
    assert came <= stayed + 0.01
    assert came < stranger / 2


def test_only_the_day_comes_back() -> None:
    control = Control(LIMITS)
    lived(control, 0, DAY_NS + MINUTE_NS)
    before = load_in(control)
    left(control, DAY_NS + MINUTE_NS)
    lived(control, DAY_NS + MINUTE_NS, DAY_NS + 2 * MINUTE_NS, generation=2)
    after = load_in(control)
    assert after.windows == 1
    totals = [[one.total for one in load.day[1:]] for load in (before, after)]
    assert totals[1] == pytest.approx(totals[0])
    assert after.day[0].windows == before.day[0].windows + 1, "the quarter of an hour that is under way goes on"


def test_another_task_and_another_user_begin_anew() -> None:
    control = Control(LIMITS)
    lived(control, 0, DAY_NS)
    left(control, DAY_NS)
    for program in (Program(1000, "other.py"), Program(1001, "serve.py")):
        lived(control, DAY_NS, DAY_NS + MINUTE_NS, program=program, generation=2)
        assert sum(one.windows for one in load_in(control).day) == 1
        left(control, DAY_NS + MINUTE_NS)


def test_a_clock_that_began_elsewhere_has_the_same_days() -> None:
    """Two boots: the same times of day by the wall clock, though the instants are others."""
    known: dict[Program, DiurnalProfile] = {}
    for ahead_ns in (0, 7 * 3600 * SECOND_NS):
        days = DiurnalProfiles(known, ahead_ns)
        control = Control(LIMITS, days)
        begin_ns = DAY_NS if ahead_ns else 0
        lived(control, begin_ns, begin_ns + DAY_NS, ahead_ns=ahead_ns)
        control.remember(begin_ns + DAY_NS - ahead_ns)
        known = days.profiles()
    assert all(one.latest * 60 == pytest.approx(daily(one.part * DAY_NS // 96)) for one in known[WEB])
    assert {(one.day, one.days) for one in known[WEB]} == {(1, 1)}


def test_windows_of_another_length_know_the_same_days() -> None:
    control = Control(LIMITS)
    lived(control, 0, DAY_NS)
    control.remember(DAY_NS)
    load = control._profiles.load(WEB, MINUTE_NS // 2).after(0, 2 * DAY_NS)
    mean, days = load.day[24].usual(3, 0.3)
    assert mean == pytest.approx(500)
    assert days == 1


def test_a_tenant_without_a_task_is_not_remembered() -> None:
    control = Control(LIMITS)
    window = DeviceWindow(0, 0, MINUTE_NS, (TenantWindow(0, 1, True, SECOND_NS, 5),))
    control.on_window(window, MINUTE_NS)
    left(control, MINUTE_NS)
    assert not control._profiles.profiles()


def test_the_programs_seen_last_are_remembered() -> None:
    days, load = DiurnalProfiles(), Load().after(5, 0)
    for number in range(PROGRAMS_LIMIT + 10):
        days.add_load(Program(0, str(number)), load, MINUTE_NS, 0)
        days.add_load(WEB, load, MINUTE_NS, 0)
    known = days.profiles()
    assert len(known) == PROGRAMS_LIMIT
    assert list(known)[-1] == WEB
    assert Program(0, "0") not in known
