"""Tests of study `fikit`: evaluation of cases, comparison with live runs, and arguments."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.rules import GateRules
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.sim.device import preset
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import BACK_TO_BACK, TRAINING
from cotenant_lab.bench.fill.pairs import PLANS, Pair
from cotenant_lab.cli import main
from cotenant_lab.study.fikit.cases import catalogue, sweep, synthetic
from cotenant_lab.study.fikit.report import agreement_of, spearman
from cotenant_lab.study.fikit.run import FikitCase, FikitResult, evaluate, evaluate_all, group_of
from tests.support.measurements import DATA, needs_data

SETTING = RunSettings(device=preset("v100"), seed=7)


def case(interval_us: int, offline_us: int, rules: GateRules | None = None) -> FikitCase:
    online = synthetic("online", 40, interval_us * 1000, BACK_TO_BACK, 6 * MILLISECOND_NS)
    pair = Pair(
        f"{interval_us} + {offline_us}", "synthetic", online, synthetic("offline", offline_us, 4000, TRAINING, 1)
    )
    return FikitCase(pair=pair, rules=rules or GateRules())


@pytest.fixture(scope="module")
def results() -> list[FikitResult]:
    return [evaluate(case(interval, offline), SETTING) for interval, offline in ((120, 30), (60, 10), (400, 300))]


def test_gate_fills_gaps_with_little_delay(results: list[FikitResult]) -> None:
    for result in results:
        metrics = result.metrics
        assert metrics.offline_vs_alone["cotenant mps"] > 0
        assert metrics.online_delay_ratio["cotenant mps"] <= metrics.online_delay_ratio["mps"]
        assert 0 < result.gap_ratio < 1
        assert result.filled_gaps["mps"] > 0
        assert result.oracle_vs_wall["mps"] <= result.gap_ratio + result.delay_of_wall["mps"] + 0.05


def test_without_allowed_delay_only_gaps_are_filled() -> None:
    without = evaluate(case(120, 70, GateRules(delay_ppm=0)), SETTING)
    with_some = evaluate(case(120, 70), SETTING)
    assert without.metrics.offline_vs_alone["cotenant mps"] <= with_some.metrics.offline_vs_alone["cotenant mps"]


def test_number_of_workers_does_not_change_results(results: list[FikitResult]) -> None:
    cases = [case(120, 30), case(60, 10), case(400, 300)]
    text: list[tuple[str, int, int]] = []
    again = evaluate_all({"synthetic": cases}, SETTING, 2, lambda *words: text.append(words))
    assert again["synthetic"].cases == results
    assert again["synthetic"] == group_of("synthetic", results)
    assert text[-1] == ("synthetic", 3, 3)


def test_live_and_simulated_are_compared_pair_by_pair(results: list[FikitResult]) -> None:
    group = group_of("pairs", results)
    same = {"bench": "fill", "pairs": [msgspec.to_builtins(result.metrics) for result in results]}
    found = agreement_of(same, group)
    assert found
    assert all(one.median_error == 0 and one.pairs == len(results) for one in found)
    assert max(one.spearman for one in found) == pytest.approx(1)
    assert agreement_of({"bench": "fill", "pairs": []}, group) == []


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True), st.integers(1, 5))
def test_spearman_depends_on_order_alone(values: list[int], scale: int) -> None:
    assert spearman(values, [scale * value**3 for value in values]) == pytest.approx(1)
    assert spearman(values, [-value for value in values]) == pytest.approx(-1)
    assert spearman(values, [3.0] * len(values)) == 0


def test_sweep_covers_its_parameters() -> None:
    cases = sweep(quick=False)
    assert len({one.pair.name for one in cases}) == len(cases)
    assert {one.jitter_ppm for one in cases} == {0, 100_000, 500_000}


@pytest.mark.parametrize(
    "words", [["fikit", "--replay", "x"], ["device", "--quick"], ["fikit", "--live", "nowhere", "--data", "."]]
)
def test_flags_of_other_studies_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *words]) == 2
    assert words[1] in capsys.readouterr().err


@needs_data
def test_measured_loads_become_cases() -> None:
    pairs, missing = catalogue(DATA, quick=True)
    assert len(pairs) + len(missing) == len(PLANS)
    assert {pair.pair.family for pair in pairs} >= {"eager", "graph", "poisson"}
