"""Does the lab of gap filling count as it says, and does a case come out the same wherever it is played?"""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cli import main
from cotenant.domain.gate import GateRules
from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import BACK_TO_BACK, TRAINING
from cotenant.experiment.fill.pairs import PLANS, Pair
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.fikit import Case, Judged, group_of, judge, judge_all
from cotenant.experiment.lab.fikit_cases import catalogue, made_up, sweep
from cotenant.experiment.lab.fikit_report import agreement_of, spearman
from cotenant.sim.device import preset

SETTING = Setting(device=preset("v100"), seed=7)
DATA = Path(os.environ.get("COTENANT_DATA", "") or "../shared/data")


def case(interval_us: int, offline_us: int, rules: GateRules | None = None) -> Case:
    online = made_up("online", 40, interval_us * 1000, BACK_TO_BACK, 6 * MILLISECOND_NS)
    pair = Pair(f"{interval_us} + {offline_us}", "made up", online, made_up("offline", offline_us, 4000, TRAINING, 1))
    return Case(pair=pair, rules=rules or GateRules())


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return [judge(case(interval, offline), SETTING) for interval, offline in ((120, 30), (60, 10), (400, 300))]


def test_where_there_are_gaps_the_gate_fills_them_at_little_delay(judged: list[Judged]) -> None:
    for one in judged:
        figures = one.figures
        assert figures.offline_vs_alone["cotenant mps"] > 0
        assert figures.online_delay_ratio["cotenant mps"] <= figures.online_delay_ratio["mps"]
        assert 0 < one.gap_ratio < 1
        assert one.filled_gaps["mps"] > 0
        assert one.oracle_vs_wall["mps"] <= one.gap_ratio + one.delay_of_wall["mps"] + 0.05


def test_no_delay_allowed_means_no_more_than_the_gaps() -> None:
    without = judge(case(120, 70, GateRules(delay_ppm=0)), SETTING)
    with_some = judge(case(120, 70), SETTING)
    assert without.figures.offline_vs_alone["cotenant mps"] <= with_some.figures.offline_vs_alone["cotenant mps"]


def test_the_number_of_workers_changes_nothing(judged: list[Judged]) -> None:
    cases = [case(120, 30), case(60, 10), case(400, 300)]
    said: list[tuple[str, int, int]] = []
    again = judge_all({"made up": cases}, SETTING, 2, lambda *words: said.append(words))
    assert again["made up"].cases == judged
    assert again["made up"] == group_of("made up", judged)
    assert said[-1] == ("made up", 3, 3)


def test_live_and_simulated_are_compared_pair_by_pair(judged: list[Judged]) -> None:
    group = group_of("pairs", judged)
    same = {"bench": "fill", "pairs": [msgspec.to_builtins(one.figures) for one in judged]}
    found = agreement_of(same, group)
    assert found
    assert all(one.median_error == 0 and one.pairs == len(judged) for one in found)
    assert max(one.spearman for one in found) == pytest.approx(1)
    assert agreement_of({"bench": "fill", "pairs": []}, group) == []


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True), st.integers(1, 5))
def test_spearman_sees_the_order_alone(values: list[int], scale: int) -> None:
    assert spearman(values, [scale * value**3 for value in values]) == pytest.approx(1)
    assert spearman(values, [-value for value in values]) == pytest.approx(-1)
    assert spearman(values, [3.0] * len(values)) == 0


def test_the_sweep_covers_what_it_says() -> None:
    cases = sweep(quick=False)
    assert len({one.pair.name for one in cases}) == len(cases)
    assert {one.jitter_ppm for one in cases} == {0, 100_000, 500_000}


@pytest.mark.parametrize("words", [["fikit", "--replay", "x"], ["device", "--quick"], ["fikit", "--live", "nowhere"]])
def test_flags_that_mean_nothing_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *words]) == 2
    assert words[1] in capsys.readouterr().err


@pytest.mark.skipif(not (DATA / "kernel_timelines").is_dir(), reason="needs the measurements: set COTENANT_DATA")
def test_measured_loads_become_cases() -> None:
    pairs, missing = catalogue(DATA, quick=True)
    assert len(pairs) + len(missing) == len(PLANS)
    assert {one.pair.family for one in pairs} >= {"eager", "graph", "poisson"}
