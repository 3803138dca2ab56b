"""The bound of goodput: no schedule and no policy exceeds it, and it is tight where the best schedule is known."""

import itertools
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.policy import policy_names
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant_lab.serving.clairvoyant import clairvoyant_goodput
from cotenant_lab.serving.fairness import jain
from cotenant_lab.serving.modes import ADMITTED, mode_of
from cotenant_lab.serving.schedule_bound import CERTAIN, most_in_schedule, normal_outcomes
from cotenant_lab.serving.simulated import ServedModel, Setting, arrivals_of, in_bursts, play, poisson

MS = 1_000_000
SECOND = 1000 * MS


def times(base_ms: float, row_ms: float, power: float = 0.8) -> RunTimes:
    cells = []
    for units in (1, 2):
        for rows in (1, 2, 4):
            took_ns = round((base_ms + row_ms * rows) * MS / units**power)
            cells.append(RunTime(units, rows, took_ns, took_ns * 11 // 10))
    return RunTimes(2, tuple(cells), 2)


MODELS = [ServedModel("short", times(1, 2), 12 * MS), ServedModel("long", times(2, 4), 24 * MS)]


def most_by_search(models: list[ServedModel], arrivals: dict[str, list[int]]) -> int:
    """Return the most requests in time of any schedule on two units, by trying all of them.

    It suffices to start each run at the arrival of its last request or when a unit is free: earlier starts never hurt.
    Requests of a model are interchangeable except for their deadlines, so runs may hold any subset.
    """
    speeds = {model.name: RunSpeeds(model.times) for model in models}
    slos = {model.name: model.slo_ns for model in models}

    @cache
    def best(free: tuple[int, int], left: tuple[tuple[str, int], ...]) -> int:
        most = 0
        for name in {model for model, _ in left}:
            own = [request for request in left if request[0] == name]
            for count in range(1, min(len(own), 4) + 1):
                for chosen in itertools.combinations(own, count):
                    for units in (1, 2):
                        start = max(*(when for _, when in chosen), free[units - 1])
                        end = start + round(speeds[name].run_ns(count, units))
                        if end > min(when for _, when in chosen) + slos[name]:
                            continue
                        then = (end, end) if units == 2 else tuple(sorted((end, free[1])))
                        rest = tuple(request for request in left if request not in chosen)
                        most = max(most, count + best(then, rest))
        return most

    return best((0, 0), tuple(sorted((name, when) for name, instants in arrivals.items() for when in instants)))


INSTANTS = st.lists(st.integers(0, 40), max_size=3, unique=True).map(lambda found: sorted(when * MS for when in found))


@settings(max_examples=25, deadline=None)
@given(INSTANTS, INSTANTS, st.integers(4, 20), st.sampled_from([0.3, 0.8, 1.0]))
def test_no_schedule_exceeds_the_bound(short: list[int], long: list[int], slo_ms: int, power: float) -> None:
    models = [ServedModel("short", times(1, 2, power), slo_ms * MS), ServedModel("long", times(2, 4, power), 18 * MS)]
    arrivals = {"short": short, "long": long}
    setting = Setting(2, 41 * MS, 0, contention=1.0)
    most = most_in_schedule(models, arrivals, setting) * setting.for_ns / SECOND if short or long else 0.0
    assert most_by_search(models, arrivals) <= most + 1e-6
    assert most <= len(short) + len(long) + 1e-6


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([name + suffix for name in policy_names() for suffix in ("", ADMITTED)]),
    st.floats(20, 500),
    st.integers(0, 99),
    st.booleans(),
    st.sampled_from([1.0, 1.09, 1.5]),
)
def test_no_policy_exceeds_the_bound(mode: str, rate: float, seed: int, bursts: bool, contention: float) -> None:
    setting = Setting(2, 150 * MS, 50 * MS, seed=seed, noise=0.0, contention=contention)
    rhythm = in_bursts if bursts else poisson
    arrivals = arrivals_of({model.name: rhythm(rate) for model in MODELS}, MODELS, setting)
    outcome = play(MODELS, arrivals, mode_of(mode), setting)
    fairness = jain([model.in_time / max(model.offered, 1) for model in outcome.models])
    for least in (0.0, fairness):
        bound = most_in_schedule(MODELS, arrivals, setting, min_fairness=least)
        assert outcome.goodput_per_s <= bound * (1 + 1e-6)


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_policies_with_varying_run_times_are_within_the_bound_in_the_mean(noise: float) -> None:
    outcomes = {model.name: normal_outcomes(noise) for model in MODELS}
    for mode in ("dstack", "nexus"):
        answered = bound = 0.0
        for seed in range(6):
            setting = Setting(2, 200 * MS, 50 * MS, seed=seed, noise=noise, contention=1.0)
            arrivals = arrivals_of({model.name: poisson(300) for model in MODELS}, MODELS, setting)
            answered += play(MODELS, arrivals, mode_of(mode), setting).goodput_per_s
            bound += most_in_schedule(MODELS, arrivals, setting, outcomes=outcomes)
        assert answered <= bound


def test_chances_add_up_and_least_durations_are_not_above_the_mean() -> None:
    for deviation in (0.0, 0.05, 0.4):
        outcomes = normal_outcomes(deviation)
        assert sum(outcome.chance for outcome in outcomes) == pytest.approx(1)
        assert all(0 <= outcome.factor <= 1 + deviation for outcome in outcomes)
    assert normal_outcomes(0.0) == CERTAIN


def test_bound_is_tight_where_the_best_schedule_is_obvious() -> None:
    """One unit, a request every 10 ms, runs of 6 ms within 8 ms: all alternate requests at double the rate fit."""
    model = ServedModel("m", RunTimes(1, (RunTime(1, 1, 6 * MS, 6 * MS),), 1), 8 * MS)
    setting = Setting(1, 600 * MS, 0, contention=1.0)
    sparse = {"m": list(range(0, 600 * MS, 10 * MS))}
    assert most_in_schedule([model], sparse, setting) == pytest.approx(100, rel=1e-6)
    dense = {"m": list(range(0, 600 * MS, MS))}
    assert most_in_schedule([model], dense, setting) == pytest.approx(SECOND / (6 * MS), rel=0.03)


def test_constraints_only_lower_the_bound() -> None:
    setting = Setting(2, 200 * MS, 50 * MS, contention=1.0)
    arrivals = arrivals_of({model.name: poisson(400) for model in MODELS}, MODELS, setting)
    most = most_in_schedule(MODELS, arrivals, setting)
    assert clairvoyant_goodput(MODELS, arrivals, setting, min_fairness=0.0) <= most
    assert most_in_schedule(MODELS, arrivals, setting, min_fairness=0.99) <= most + 1e-6
    assert most_in_schedule(MODELS, arrivals, setting, units=1.5) <= most + 1e-6
    contended = msgspec.structs.replace(setting, contention=1.2)
    assert most_in_schedule(MODELS, arrivals, contended) <= most + 1e-6
