"""Tests of study `dstack` on curves with known truth."""

import gzip
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant_lab.data.parvagpu import read_profiles
from cotenant_lab.data.rapp import Surface, read_surface
from cotenant_lab.study.dstack.cases import NAMED, combinations, model_curves, served_models, slo_of, times_of
from cotenant_lab.study.dstack.law import evaluate_law
from cotenant_lab.study.dstack.plots import plotter
from cotenant_lab.study.dstack.report import DstackReport, run_dstack, spread_of
from cotenant_lab.study.dstack.run import MODES, OFFERED_LOADS, CombinationTask, play_task
from cotenant_lab.study.dstack.tables import show_dstack

MODELS = {"alexnet": (40.0, 2.0), "resnet50": (120.0, 5.0)}
"""By model: milliseconds that its host takes, and that a row takes on the whole device."""


def surface_bytes() -> bytes:
    rows = ["model,batch,sm_pct,time_quota_pct,latency_ms"]
    for model, (host_ms, row_ms) in MODELS.items():
        for batch in (1, 2, 4, 8):
            for share in (5, 10, 20, 50, 100):
                latency = max(host_ms, row_ms * batch * 100 / share)
                rows += [f"{model},{batch},{share},100,{latency}", f"{model},{batch},{share},50,{2 * latency}"]
    return gzip.compress("\n".join(rows).encode(), mtime=0)


def surface() -> Surface:
    return read_surface(surface_bytes(), "synthetic")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> DstackReport:
    root = tmp_path_factory.mktemp("data")
    (root / "rapp").mkdir()
    (root / "rapp" / "v100_latency_ms_by_sm_quota_batch.csv.gz").write_bytes(surface_bytes())
    text: list[str] = []
    found = run_dstack(root, 0, Console(quiet=True), text.append, quick=True)
    assert [line.split(":")[1].strip() for line in text if line.startswith("omitted")][:1] == ["mobilenet_v2"]
    assert sum("divide a GPU" in line for line in text) == 1
    return found


def test_every_mode_runs_at_every_load_and_none_exceeds_the_bound(report: DstackReport) -> None:
    assert {case.mode for case in report.cases} == set(MODES)
    assert len(report.cases) == sum(
        len(MODES) if offered_load.admitted_too else 1 + len(MODES) // 2 for offered_load in OFFERED_LOADS
    )
    for case in report.cases:
        assert case.models == list(MODELS)
        assert 0 <= case.of_bound <= 1.2  # what arrived at the very end is answered after the window
        assert case.of_bound <= case.of_fair_bound * (1 + 1e-9)
        assert case.attainment_admitted >= (1 - case.missed) * (1 - 1e-9)


def test_spatial_sharing_serves_more_than_temporal(report: DstackReport) -> None:
    temporal = next(result for result in report.results if result.mode == "temporal" and result.models == "all")
    assert temporal.throughput.median >= temporal.throughput_admitted.median > 1
    assert temporal.utilization.median > 1
    assert report.combinations == {"2": 1}
    assert set(report.hold) == set(MODES)


def test_report_is_encoded_printed_and_drawn(report: DstackReport, tmp_path: Path) -> None:
    again = msgspec.json.decode(msgspec.json.encode(report), type=DstackReport)
    assert again == report
    console = Console(record=True, width=200, file=io.StringIO())
    show_dstack(console, report)
    text = console.export_text()
    assert all(target in text for target in report.met)
    plotter(tmp_path)(report)
    assert {path.name for path in tmp_path.iterdir()} == {"curves.svg", "loads.svg", "over.svg", "index.html"}


def test_same_seed_gives_same_results() -> None:
    models = tuple(served_models(surface()))
    task = CombinationTask(models, OFFERED_LOADS[-2:-1], ("triton", "temporal + admission"), 5, 100_000_000)
    assert play_task(task) == play_task(task)
    assert play_task(task) != play_task(msgspec.structs.replace(task, seed=6))


def test_model_curves_are_the_measured_ones() -> None:
    models = served_models(surface())
    assert [model.name for model in models] == list(MODELS)
    results = model_curves(surface(), models[0])
    assert results.knees_pct == {1: 5, 2: 10, 4: 20, 8: 50}
    assert results.slo_ms == 120.0 == slo_of(times_of(surface(), "alexnet")) / 1e6
    assert (results.best_batch, results.best_share_pct) == (1, 5)  # no more of the device for a row than any
    assert results.alone_per_s == pytest.approx(500, rel=1e-6)  # 2 ms of the whole device for a row


def test_combinations_are_complete_for_each_size() -> None:
    model = served_models(surface())[0]
    seven = [msgspec.structs.replace(model, name=name) for name in NAMED.values()]
    found = combinations(seven)
    assert len(found) == 21 + 35 + 35 + 1 == len({tuple(one.name for one in chosen) for chosen in found})


def test_law_of_runs_without_shares_is_evaluated_by_held_out_processes() -> None:
    rows = ["model,mig_gpcs,batch,procs,throughput,latency_s"]
    rows += [f"net,{gpcs},1,1,{100 * gpcs},0.01" for gpcs in (1, 2, 3, 4, 7)]  # a latency is 1 / throughput
    rows += ["net,7,1,2,350,0.01", f"net,7,1,3,{700 / 6},0.01"]
    found = evaluate_law(read_profiles("\n".join(rows).encode(), "synthetic"))
    assert found == {2: [pytest.approx(1.0)], 3: [pytest.approx(2.0)]}


def test_spread_of_one_value() -> None:
    one = spread_of([2.0])
    assert (one.n, one.min, one.quarter, one.median, one.three_quarters, one.max) == (1, 2, 2, 2, 2, 2)
    assert spread_of([1, 2, 3, 4, 5]).quarter == 2


def test_missing_measurements_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="docs/evaluation/data"):
        run_dstack(tmp_path, 0, Console(quiet=True), print, quick=True)
    (tmp_path / "rapp").mkdir()
    empty = gzip.compress(b"model,batch,sm_pct,time_quota_pct,latency_ms\nalexnet,1,5,100,3.0\n")
    (tmp_path / "rapp" / "v100_latency_ms_by_sm_quota_batch.csv.gz").write_bytes(empty)
    with pytest.raises(ConfigError, match="fewer than two"):
        run_dstack(tmp_path, 0, Console(quiet=True), print, quick=True)
