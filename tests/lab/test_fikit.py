"""Tests of study `fikit`: evaluation of cases, comparison with live runs, and arguments."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.rules import GateRules
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import preset
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Launch, Workload
from cotenant_lab.bench.fill.pairs import PLANS, Pair
from cotenant_lab.cli import main
from cotenant_lab.study.claim import KERNEL_CELLS, Perturbation, perturbed_setting
from cotenant_lab.study.fikit import parts
from cotenant_lab.study.fikit.cases import catalogue, sweep, synthetic
from cotenant_lab.study.fikit.report import agreement_of, pair_range, spearman
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


def long_training(name: str, function: str) -> Workload:
    """Return a training whose kernels take 2 ms in 40 waves."""
    launch = Launch(KernelIdentity(function, (3200, 1, 1), (1024, 1, 1)), 2 * MILLISECOND_NS, 4000, registers=64)
    return Workload(name, (launch,) * 4, TRAINING)


@pytest.fixture(scope="module")
def ends() -> tuple[parts.PartsSummary, parts.PartsSummary]:
    setting = parts.parts_setting(SETTING)
    service = synthetic("service", 20, 120_000, BACK_TO_BACK, 1)
    busy = synthetic("busy", 120, 120_000, BACK_TO_BACK, 1)
    online = [parts.at_half_load(load, setting, 3) for load in (service, busy)]
    offline = [long_training("products", "sgemm"), long_training("sums", "elementwise")]
    return parts.evaluate_ends(online, offline, setting, 1, lambda *_: None, quick=True)


def test_both_ends_differ_in_the_kernels_of_libraries_alone(
    ends: tuple[parts.PartsSummary, parts.PartsSummary],
) -> None:
    sliceable, unsliceable = ends
    assert [case.training for case in sliceable.cases] == ["products", "sums"]
    assert sliceable.cases[0].offline > 0
    assert unsliceable.service == "service"
    for end in ends:
        assert end.p99_ratio_max == round(max(case.p99_ratio for case in end.cases), 4)
        assert set(end.perturbed) == {"nominal", *(str(cell) for cell in parts.CELLS if cell)}
        assert set(end.best_spatial_bound.sm_percent) == {"products", "sums"}
    # Within the larger bound, at least as large a part of the SMs is best.
    assert unsliceable.best_spatial_bound.offline_median >= sliceable.best_spatial_bound.offline_median


def test_kernels_with_ptx_are_cut_where_those_of_libraries_run_whole() -> None:
    setting = parts.parts_setting(SETTING)
    service = parts.at_half_load(synthetic("service", 20, 120_000, BACK_TO_BACK, 1), setting, 3)
    training = long_training("products", "sgemm")
    case = parts.PartsCase(service=service, training=training, requests=150, p99_most=1.5, policy="fill-slice")
    whole = parts.evaluate_parts(case, setting)
    cut = parts.evaluate_parts(msgspec.structs.replace(case, training=parts.with_ptx(training)), setting)
    assert cut.offline > whole.offline
    assert cut == parts.evaluate_parts(msgspec.structs.replace(case, training=parts.with_ptx(training)), setting)


def test_best_part_of_the_sms_is_the_fastest_within_the_bound() -> None:
    def result(training: str, percent: int, p99_ratio: float, offline: float) -> parts.PartsResult:
        return parts.PartsResult(
            service="s",
            training=training,
            p99_ratio=p99_ratio,
            mean_ratio=1.0,
            offline=offline,
            sm_percent=percent,
        )

    results = [result("a", 10, 1.1, 0.1), result("a", 20, 1.2, 0.3), result("a", 50, 1.3, 0.6)]
    results += [result("b", 10, 1.5, 0.2), result("b", 20, 1.4, 0.4)]
    bound = parts.bound_of(results, 1.25)
    assert bound.sm_percent == {"a": 20, "b": 20}
    assert bound.p99_ratio_max == 1.4
    assert bound.offline_median == pytest.approx(0.35)


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=300))
def test_p99_is_exceeded_by_at_most_one_percent(values: list[int]) -> None:
    found = parts.p99_of(values)
    assert found in values
    assert sum(value > found for value in values) <= 0.01 * len(values)
    assert sum(value >= found for value in values) > 0.01 * len(values)


def test_range_over_pairs_counts_those_above(results: list[FikitResult]) -> None:
    group = group_of("pairs", results)
    found = pair_range(group, "online_speedup_vs_sharing", "slices")
    assert found is not None
    speedups = [result.metrics.online_speedup_vs_sharing["slices"] for result in results]
    assert (found.min, found.max) == (min(speedups), max(speedups))
    assert found.above_3_5 == sum(value > 3.5 for value in speedups) / len(speedups)
    assert pair_range(None, "online_speedup_vs_sharing", "slices") is None


@pytest.mark.parametrize("cell", KERNEL_CELLS, ids=str)
def test_every_perturbation_is_possible(cell: Perturbation) -> None:
    changed = perturbed_setting(msgspec.structs.replace(SETTING, device=hardware("v100")), cell)
    assert changed != SETTING
    assert changed.device.sm_count == SETTING.device.sm_count
