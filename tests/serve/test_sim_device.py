"""The simulated shared device: measured run times, and conservation of units."""

from hypothesis import given
from hypothesis import strategies as st

from cotenant.runner.sim_loop import SimLoop
from cotenant.serve.model.event import Run
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.sim.device import SharedDevice, even_shares
from cotenant.serve.sim.run_speed import RunSpeeds

MS = 1_000_000


def table(*cells: tuple[int, int, int]) -> RunTimes:
    return RunTimes(100, tuple(RunTime(units, rows, took_ns, took_ns) for units, rows, took_ns in cells), 100)


WIDE = RunSpeeds(table((50, 1, 20 * MS), (100, 1, 10 * MS), (50, 2, 40 * MS), (100, 2, 20 * MS)))
NARROW = RunSpeeds(table((20, 1, 8 * MS), (100, 1, 8 * MS)))


def simulate(
    runs: list[tuple[int, str, int, int]], noise: float = 0.0, seed: int = 0
) -> tuple[dict[int, int], SharedDevice]:
    """Return when runs end that start at these instants: (when, model, rows, units)."""
    loop = SimLoop()
    device = SharedDevice(loop, {"wide": WIDE, "narrow": NARROW}, 100, noise, seed)
    end_times: dict[int, int] = {}

    def run_ended(run: Run, now: int) -> None:
        assert end_times.setdefault(run.run, now) == now

    for number, (when, model, rows, units) in enumerate(runs):
        run = Run(0, number, model, 1, (), rows, units, ())
        loop.at(when, lambda started, _: device.begin(started, run_ended), run)
    loop.run(10**12)
    return end_times, device


def test_single_run_takes_the_measured_time() -> None:
    for units, took_ns in ((100, 10 * MS), (50, 20 * MS), (75, 13_333_333), (25, 40 * MS), (0, 10 * MS)):
        assert simulate([(5, "wide", 1, units)])[0] == {0: 5 + took_ns}
    assert simulate([(0, "wide", 2, 100)])[0] == {0: 20 * MS}
    assert WIDE.run_ns(3, 100) == 30 * MS


def test_runs_that_hold_units_are_independent() -> None:
    assert simulate([(0, "wide", 1, 50), (0, "wide", 2, 50)])[0] == {0: 20 * MS, 1: 40 * MS}


def test_unshared_runs_divide_the_remaining_units_evenly() -> None:
    assert simulate([(0, "wide", 1, 0), (0, "wide", 1, 0)])[0] == {0: 20 * MS, 1: 20 * MS}
    assert simulate([(0, "wide", 1, 0), (0, "wide", 1, 50)])[0] == {0: 20 * MS, 1: 20 * MS}
    assert simulate([(0, "wide", 1, 0), (5 * MS, "wide", 1, 0)])[0] == {0: 15 * MS, 1: 20 * MS}


def test_unused_parts_go_to_other_runs() -> None:
    end_times, device = simulate([(0, "wide", 1, 0), (0, "narrow", 1, 0)])
    assert end_times == {0: 11_600_000, 1: 8 * MS}  # 8 ms at 80 units complete 64 %, the remainder runs at 100
    assert device.used_unit_ns == {"wide": 80 * 8 * MS + 100 * 3_600_000, "narrow": 20 * 8 * MS}


def test_unshared_run_waits_while_all_units_are_held() -> None:
    assert simulate([(0, "wide", 1, 100), (0, "wide", 1, 0)])[0] == {0: 10 * MS, 1: 20 * MS}


def test_more_units_are_never_slower_and_more_rows_never_faster() -> None:
    noisy = RunSpeeds(table((10, 1, 9), (20, 1, 7), (100, 1, 8), (10, 2, 8), (20, 2, 9), (100, 2, 9)))
    assert [noisy.run_ns(1, units) for units in (10, 20, 100)] == [9, 7, 7]
    assert [noisy.run_ns(2, units) for units in (10, 20, 100)] == [9, 8, 8]
    assert (noisy.max_units(1), noisy.knee_units(1)) == (20, 20)


@given(st.lists(st.floats(0, 100), max_size=8), st.floats(0, 200))
def test_even_shares_leave_no_usable_units(limits: list[float], total: float) -> None:
    shares = even_shares(limits, total)
    assert all(0 <= share <= limit + 1e-9 for share, limit in zip(shares, limits, strict=True))
    assert abs(sum(shares) - min(total, sum(limits))) < 1e-6
    limited = [share for share, limit in zip(shares, limits, strict=True) if share < limit - 1e-6]
    assert all(share >= max(shares) - 1e-6 for share in limited)  # no limited run has less than another


RUNS = st.tuples(
    st.integers(0, 30 * MS), st.sampled_from(["wide", "narrow"]), st.integers(1, 4), st.sampled_from([0, 0, 10, 20])
)


@given(st.lists(RUNS, min_size=1, max_size=5), st.floats(0, 0.1), st.integers(0, 9))
def test_every_run_ends_once_and_used_units_stay_within_the_device(
    runs: list[tuple[int, str, int, int]], noise: float, seed: int
) -> None:
    end_times, device = simulate(runs, noise, seed)
    assert sorted(end_times) == list(range(len(runs)))
    assert simulate(runs, noise, seed)[0] == end_times
    assert 0 < device.useful_unit_ns <= sum(device.used_unit_ns.values()) * (1 + 1e-9)
    assert sum(device.used_unit_ns.values()) <= 100 * (max(end_times.values()) - min(when for when, *_ in runs)) * (
        1 + 1e-9
    )
    for number, (when, model, rows, units) in enumerate(runs):
        speeds = WIDE if model == "wide" else NARROW
        assert end_times[number] - when >= (1 - 3 * noise) * speeds.run_ns(rows, units or 100) - 1
