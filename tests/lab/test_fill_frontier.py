"""The comparison of bench fill at each limit of the p99 latency."""

from __future__ import annotations

import pytest

from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Launch, Workload
from cotenant_lab.bench.fill.frontier import (
    LIMITS,
    OBJECTIVE_RUN_NS,
    PARTS_PPM,
    RUN_NS,
    FrontierCase,
    ObjectiveResult,
    PairFrontier,
    SettingResult,
    cells_of,
    lasting_load,
    objectives_of,
    promise_kept,
    run_case,
    summary_of,
    with_parts,
)
from cotenant_lab.bench.fill.pairs import Pair


def result(mode: str, p99: float, offline: float, *, mean: float = 1.0, waits: float = 0.0) -> SettingResult:
    return SettingResult(
        mode=mode,
        is_cotenant=mode.startswith("cotenant"),
        p99_ratio=p99,
        mean_ratio=mean,
        delay_ratio=waits,
        offline_vs_alone=offline,
        promised_delay=0.02 if "delay" in mode else None,
    )


RESULTS = [
    result("time slices", 1.9, 0.8),
    result("MPS, 20% of the SMs", 1.04, 0.2),
    result("cotenant mps, delay 2%", 1.01, 0.1, mean=1.02, waits=0.03),
    result("cotenant slices, delay 2%", 1.2, 0.5, mean=1.03, waits=0.01),
]


def test_fastest_setting_within_each_limit_is_compared() -> None:
    cells = {cell.limit: cell for cell in cells_of("a + b", RESULTS)}
    assert list(cells) == list(LIMITS)
    assert (cells[1.02].simple, cells[1.02].cotenant, cells[1.02].vs_best_simple) == ("", RESULTS[2].mode, None)
    assert cells[1.05].vs_best_simple == pytest.approx(0.1 / 0.2)
    assert cells[1.25].vs_best_simple == pytest.approx(0.5 / 0.2)
    assert cells[2.0].vs_best_simple == pytest.approx(0.5 / 0.8)


def test_cells_without_an_alternative_only_count() -> None:
    summary = summary_of(cells_of("a + b", RESULTS))
    assert (summary.cells, summary.cells_without_alternative) == (len(LIMITS), 1)
    assert summary.min == pytest.approx(0.5)
    assert summary.worst_pair in {"a + b at 1.05", "a + b at 1.1"}
    assert summary_of([]).median == 0


def test_promise_is_judged_by_waits_of_kernels_and_by_latency() -> None:
    assert promise_kept(RESULTS) == 0.5
    assert promise_kept(RESULTS, by_latency=True) == 0.5
    assert promise_kept(RESULTS[:3]) == 0
    assert promise_kept(RESULTS[:3], by_latency=True) == 1
    assert promise_kept(RESULTS[:2]) == 1, "no setting promises anything"


def test_objective_counts_as_kept_within_its_limit() -> None:
    chosen = [
        ObjectiveResult(limit=limit, mode="cotenant mps", p99_ratio=1.15, offline_vs_alone=0.4) for limit in LIMITS
    ]
    frontier = PairFrontier(pair="a", results=RESULTS, objectives=chosen, cells=cells_of("a", RESULTS))
    summary = objectives_of([frontier])
    assert summary.kept == pytest.approx(3 / 6)
    assert summary.vs_best_simple_min == pytest.approx(0.4 / 0.8)
    assert summary.vs_best_simple_median == pytest.approx(0.4 / 0.2)


def test_run_has_every_setting_and_an_open_gate_equals_the_simple_mode() -> None:
    def load(name: str, kernel_ns: int, count: int, blocks: int) -> tuple[Launch, ...]:
        kernel = KernelIdentity(name, (blocks, 1, 1), (256, 1, 1))
        return (Launch(kernel, kernel_ns, 5_000, registers=32),) * count

    pair = Pair(
        "small + large",
        "eager",
        Workload("small", load("a", 20_000, 10, 80), BACK_TO_BACK, 100),
        Workload("large", load("b", 200_000, 8, 2560), TRAINING),
    )
    frontier = run_case(FrontierCase(pair=pair), RunSettings(device=hardware("v100")))
    results = {result.mode: result for result in frontier.results}
    assert len(results) == len(frontier.results)
    assert {cell.limit for cell in frontier.cells} == set(LIMITS)
    for part in ("20%", "60%"):
        simple, ours = (
            results[f"{mode} {part}{end}"]
            for mode, end in (("MPS with priorities,", " of the SMs"), ("cotenant mps, gate open, sms", ""))
        )
        assert ours.p99_ratio == pytest.approx(simple.p99_ratio, rel=0.02)
        assert ours.offline_vs_alone == pytest.approx(simple.offline_vs_alone, rel=0.02)
    parts = [results[f"MPS, {part}% of the SMs"].offline_vs_alone for part in (20, 40, 60, 80)]
    assert parts == sorted(parts)
    assert all(result.p99_ratio >= 0.99 for result in frontier.results)


def test_parts_of_the_sms_beyond_every_limit_are_not_all_run() -> None:
    tried = []

    def run_part(part_ppm: int) -> SettingResult:
        tried.append(part_ppm)
        return result(f"MPS, {part_ppm}", 1.0 + part_ppm / 100_000, part_ppm / 1e6)

    results = with_parts(PARTS_PPM, run_part)
    beyond = [each for each in results if each.p99_ratio > LIMITS[-1]]
    assert len(beyond) == 3
    assert results[-3:] == beyond
    assert tried == list(PARTS_PPM[: len(results)])


def test_requests_with_an_objective_last_as_long_as_the_run() -> None:
    """Without pauses and next to nothing the requests of a pair are as many as fit into its two seconds."""
    kernel = Launch(KernelIdentity("k", (40, 1, 1), (1024, 1, 1)), 500_000, 4_000, registers=64)
    online = Workload("service", (kernel,) * 4, BACK_TO_BACK, RUN_NS // 2_000_000)
    pair = Pair("a + b", "eager", online, Workload("training", (kernel,), TRAINING))
    lasting = lasting_load(pair.online)
    assert lasting.requests * online.device_ns >= OBJECTIVE_RUN_NS
