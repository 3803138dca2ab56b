"""Bench `goodput` with servers that only count: the report compares them with a scheduler that knows all arrivals."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf")
from cotenant.serve.load.connections import Endpoint
from cotenant.serve.load.open_loop import LoadReport
from cotenant.serve.model.goodput import GoodputRecorder, RequestOutcome
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant_lab.bench.goodput import bench
from cotenant_lab.bench.goodput.contenders import ModelMetrics
from cotenant_lab.bench.goodput.models import BenchModel
from cotenant_lab.bench.goodput.surface import Surface
from cotenant_lab.bench.goodput.tables import show_goodput
from cotenant_lab.loadgen.play import LoadPlan

MS = MILLISECOND_NS
NAMES = ("short", "long")
ANSWERED = {"dstack": 0.5, "plain": 0.25}
"""The fraction of requests that each server answers in time."""


class CountingSender:
    """Answers a fraction of the requests in time and refuses the others."""

    def __init__(self) -> None:
        self.server = ""

    def play(self, load: LoadPlan) -> LoadReport:
        models = []
        for (name, slo_ns), instants in zip(load.targets, load.instants_ns, strict=True):
            recorder = GoodputRecorder(name, slo_ns)
            measured = [at for at in instants if load.window.warm_ns <= at < load.window.until_ns]
            for index in range(len(measured)):
                is_answered = index < ANSWERED[self.server] * len(measured)
                recorder.record_end(RequestOutcome.ANSWERED if is_answered else RequestOutcome.REFUSED, MS)
            models.append(recorder.goodput(load.window.until_ns - load.window.warm_ns))
        return LoadReport(tuple(models), {}, 1.0, 0.1)


def server_of(name: str, sender: CountingSender) -> Any:
    def wait() -> None:
        sender.server = name

    return SimpleNamespace(
        name=name,
        endpoint=Endpoint("http", "127.0.0.1", 1),
        wait=wait,
        stop=lambda: None,
        front_ns=lambda: 0,
    )


def measured() -> Any:
    cells = tuple(
        RunTime(units, rows, round((1 + 2 * rows) * MS / units**0.8), round((1.1 + 2.2 * rows) * MS / units**0.8))
        for units in (1, 2)
        for rows in (1, 2, 4, 8)
    )
    times = RunTimes(2, cells, 2)
    surface = Surface(dict.fromkeys(NAMES, times), dict.fromkeys(NAMES, 15 * MS), 2)
    models = [ModelMetrics(name, 3.0, 5.0, 15.0, 64) for name in NAMES]
    return bench._ModelMeasurements(models, surface.full_rps(), "the bound", surface)


def report_of(names: Sequence[str]) -> bench.GoodputReport:
    sender = CountingSender()
    models = tuple(BenchModel(name, (TensorSpec("x", Datatype.FP32, (1, 4)),), ("y",)) for name in NAMES)
    contenders = SimpleNamespace(
        models=models, default="plain", is_measured=True, all_units=2, runtime="onnx-cpu", slower=lambda: 1.0,
        open=lambda name: server_of(name, sender),
    )  # fmt: skip
    settings = bench.GoodputSettings(
        rounds=1, loads=bench.BOUND_LOADS, warm_ns=50 * MS, cell_ns=SECOND_NS // 10, slo_times=3.0
    )
    measurements = measured()
    runner = bench._Bench(cast("Any", contenders), settings, cast("Any", sender), measurements, lambda text: None)
    trials = runner.one_by_one(names, 1)
    return bench._report(cast("Any", contenders), measurements, 3.0, 1, names, trials)


def test_report_compares_our_policy_with_known_arrivals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console

    report = report_of(["plain", "dstack"])
    loads = {"1.0", "1.3", "2.0"}
    assert report.vs_bound.keys() == report.vs_bound_bursts.keys() == report.vs_fluid_bound.keys() == loads
    assert all(ratio > 0 for ratio in report.vs_bound.values())
    cells = [cell for cell in report.cells if cell.policy == "plain"]
    assert all(cell.vs_bound is None for cell in cells)
    assert [step.part for step in report.waterfall] == [
        "device",
        "front end",
        "batch formation",
        "queueing",
        "forecasts",
        "admission margins",
        "interference between runs",
    ]
    lost = sum(step.lost_rps for step in report.waterfall)
    assert lost == pytest.approx(report.waterfall[0].goodput_rps - report.waterfall[-1].goodput_rps, abs=0.01)
    assert report.met["slo_attainment_admitted >= 0.99"]
    show_goodput(Console(), report)
    assert "any schedule answers in time" in capsys.readouterr().out
