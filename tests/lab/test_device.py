"""Tests of study `device`: held-out data is not used, results are reproducible, errors are one sentence."""

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cotenant_lab.cli import main
from cotenant_lab.data.gavel import TrainingPair, TrainingPairs
from cotenant_lab.data.igniter import SplitPair
from cotenant_lab.data.miso import Miso
from cotenant_lab.physics import tenants
from cotenant_lab.study.data_files import data_directory
from cotenant_lab.study.device import instances, servers, shares, split_shares, sums
from cotenant_lab.study.device.measurements import DeviceMeasurements, read_measurements
from cotenant_lab.study.device.plots import plotter
from cotenant_lab.study.device.run import evaluate_device
from cotenant_lab.study.device.tables import show_device
from cotenant_lab.study.device.trainings import evaluate_pairs, evaluate_slices
from cotenant_lab.study.error import errors_of, halves
from tests.support.measurements import DATA, needs_data, write_all


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def measured(small: Path) -> DeviceMeasurements:
    return read_measurements(small)


def silent(what: str, done: int, total: int) -> None:
    assert done <= total


def test_command_is_reproducible_and_draws(small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", "device", "--json", "--data", str(small), "--plots", str(tmp_path / "once"), "--seed", "3"]
    assert main(arguments) == 0
    text = capfd.readouterr().out.splitlines()[-1]
    # Repeat in one process: the number of workers does not change results.
    report, evidence = evaluate_device(read_measurements(small), 3, 1, silent)
    assert msgspec.json.encode(report, enc_hook=str).decode() == text
    plotter(tmp_path / "again")(report, evidence)
    drawn = [{path.name: path.read_bytes() for path in (tmp_path / turn).iterdir()} for turn in ("once", "again")]
    figures = [{name: data for name, data in turn.items() if name.endswith(".svg")} for turn in drawn]
    assert figures[0] == figures[1], "the page also states its date and how busy the machine was"
    assert sorted(drawn[0]) == sorted(drawn[1])
    assert sorted(drawn[0]) == ["errors.svg", "index.html", "shares.svg", "together.svg"]
    show_device(Console(width=140), report)
    shown = capfd.readouterr().out
    assert all(check.name in shown for check in report.checks)
    assert "Knee from 5 shares" in shown
    # The data come from the device model, so held-out cases are predicted up to the resolution of the fits.
    errors = {check.name: check.errors for check in report.checks}
    assert errors["kernel sums"].worst <= 0.01
    assert errors["latency by share"].n == 4 * 15
    assert errors["latency by share"].worst < 0.02
    assert errors["processes in an instance"].median < 0.05
    assert errors["clients of a server"].median < 0.2
    assert report.left_out == {
        "share curves too short": 0,
        "instance rows not run": 1,
        "instance rows carried over": 1,
        "pairs of programs that were not measured alone": 1,
    }
    assert errors["pairs with split shares"].worst < 0.02
    assert report.igniter.n == 2 * 5
    assert 0.95 < report.igniter.bias < 1.05


def test_held_out_shares_do_not_change_predictions(measured: DeviceMeasurements) -> None:
    curves, _, lean = shares.predict(measured.surface, silent)
    changed = {
        name: {
            quota: {one: latency if one in curves[0].fitted else 7 * latency for one, latency in points.items()}
            for quota, points in quotas.items()
        }
        for name, quotas in measured.surface.items()
    }
    others, _, other_lean = shares.predict(changed, silent)
    assert lean == other_lean
    assert [curve.predicted for curve in curves] == [curve.predicted for curve in others]
    assert [curve.measured for curve in curves] != [curve.measured for curve in others]


def test_held_out_processes_do_not_change_predictions(measured: DeviceMeasurements) -> None:
    lab = instances.Instances(measured.profiles)
    for by in ("cell", "point"):
        known = lab.known_cells(by, 1)
        before = lab.predict(known)
        assert before.predicted
        assert not set(known) & set(before.predicted)
        for name, count in before.predicted:
            lab.latency[name][count] *= 5
        assert lab.predict(known).predicted == before.predicted
        for name, count in before.predicted:
            lab.latency[name][count] /= 5


@pytest.mark.parametrize("by", ["cell", "run", "none"])
def test_held_out_clients_do_not_change_predictions(measured: DeviceMeasurements, by: str) -> None:
    server = measured.servers[0]
    known = servers.known_cells(server, by, 1)
    together = {cell: latency if cell in known else 9 * latency for cell, latency in server.together_ns.items()}
    changed = msgspec.structs.replace(server, together_ns=together)
    before, after = (servers.answer(servers.FitTask(measured=one, by=by, seed=1)) for one in (server, changed))
    assert before.predicted == after.predicted
    assert before.fitted == after.fitted
    assert before.measured != after.measured


def test_held_out_pairs_do_not_change_predictions(measured: DeviceMeasurements) -> None:
    before = split_shares.predict(measured.pairs, 1, silent)
    held = before.predicted.keys()

    def changed(pair: SplitPair) -> SplitPair:
        is_held = any(
            f"{pair.first[0]} batch {pair.first[1]} at {pair.first_share_pct} %" in case
            and f"batch {pair.second[1]} at" in case.split(" and ")[1]
            for case in held
        )
        return (
            msgspec.structs.replace(pair, first_ms=5 * pair.first_ms, second_ms=5 * pair.second_ms) if is_held else pair
        )

    pairs = msgspec.structs.replace(measured.pairs, pairs=[changed(pair) for pair in measured.pairs.pairs])
    after = split_shares.predict(pairs, 1, silent)
    assert after.predicted == before.predicted
    assert after.measured != before.measured


def test_halves_depend_on_the_seed_and_are_complete() -> None:
    cases = [("a", number) for number in range(11)]
    known, held_out = halves(cases, 5)
    assert sorted(known + held_out) == cases
    assert (len(known), len(held_out)) == (5, 6)
    assert halves(list(reversed(cases)), 5) == (known, held_out)
    assert halves(cases, 6) != (known, held_out)


def test_error_summary() -> None:
    short = errors_of({"b": 0.4, "a": 0.4, "c": 0.0, "d": 0.1, "e": 0.2})
    assert (short.n, short.median, short.worst, short.worst_case) == (5, 0.2, 0.4, "a")
    assert short.p90 == pytest.approx(0.4)


def test_curve_that_rises_with_the_share_is_reported() -> None:
    rising = {one: 10.0 if one <= 50 else 30.0 for one in range(5, 101, 5)}
    curves, _, lean = shares.predict({("odd", 1): {100: rising}}, silent)
    (case,) = shares.evaluate_shares(curves, 0, lean).unexplained
    assert case.case.startswith("odd batch 1")
    assert "rises with the share (at 55 % by 200%)" in case.reason


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        (["--data", "/nowhere"], 2, "--data = '/nowhere': is not a directory"),
        (["--seed", "-1"], 2, "--seed = -1: choose 0"),
    ],
)
def test_bad_arguments_are_rejected_in_one_sentence(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "device", *arguments]) == code
    shown = capsys.readouterr().err
    assert text in shown
    assert shown.count("\n") == 1


def test_missing_data_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTENANT_DATA", raising=False)
    assert main(["study", "device"]) == 2
    shown = capsys.readouterr().err
    assert "COTENANT_DATA" in shown
    assert "docs/evaluation/data" in shown
    monkeypatch.setenv("COTENANT_DATA", "/nowhere")
    assert main(["study", "device"]) == 2
    assert "COTENANT_DATA = '/nowhere'" in capsys.readouterr().err


def test_plots_without_matplotlib_name_the_package(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["study", "device", "--data", str(small), "--plots"]
    (tmp_path / "file").write_text("")
    assert main([*arguments, str(tmp_path / "file")]) == 2
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    assert main([*arguments, str(tmp_path / "plots")]) == 2
    assert "cotenant-lab" in capsys.readouterr().err


def test_damaged_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_all(tmp_path)
    broken = root / "disb" / "results" / "trt.A.json"
    broken.write_text(broken.read_text()[:-20])
    assert main(["study", "device", "--data", str(root)]) == 2
    assert "trt.A.json" in capsys.readouterr().err


@needs_data
def test_published_files_are_complete_and_kernel_sums_match() -> None:
    measured = read_measurements(data_directory(str(DATA), {}))
    assert len({model for model, _ in measured.surface}) == 69
    assert len(measured.surface) == 275
    assert measured.profiles.not_run == 728
    assert [len(server.together_ns) for server in measured.servers] == [40, 40, 40]
    check, _ = sums.evaluate_sums(measured.streams)
    assert check.met


@needs_data
def test_published_curves_and_processes_are_predicted_as_documented() -> None:
    measured = read_measurements(DATA)
    some: Any = dict(sorted(measured.surface.items())[::15])
    results = shares.evaluate_shares(*shares.predict(some, silent))
    assert results.check.errors.median < 0.05
    lab = instances.Instances(measured.profiles)
    assert lab.evaluate(lab.predict(lab.known_cells("cell", 0))).met
    assert lab.evaluate(lab.predict_from_alone()).errors.median < 0.1
    server = measured.servers[0]
    quick = [run for run in server.runs if run.name in {"A", "B"}]
    latencies = tenants.predict(quick, tenants.fit_server(quick, {}, tenants.rtx3080()), tenants.rtx3080())
    assert all(0.5 < latency / server.together_ns[cell] < 2 for cell, latency in latencies.items())


def test_trainings_on_slices_are_predicted_from_others() -> None:
    """Steps with a fixed part and a part that scales with the slices."""
    steps = {
        (f"model{index}", 32): {count: 0.01 * index + 0.7 / count for count in (1, 2, 3, 4, 7)} for index in (1, 2, 3)
    }
    errors = evaluate_slices(Miso(steps, dict.fromkeys(steps, 0.7), dict.fromkeys(steps, 0.4), dict.fromkeys(steps, 1)))
    assert (errors.n, errors.fitted_n) == (6, 9)
    assert errors.error_median < 0.05
    assert 0.95 < errors.bias < 1.05


def test_pairs_by_time_slices_share_the_gpu_and_hold_out_families() -> None:
    """Two trainings that are on the GPU all of the time take twice as long; one that never is does not."""
    step_s: dict[tuple[str, str], float] = {}
    for gpu, power in (("k80", 1.0), ("p100", 4.0), ("v100", 6.0)):
        step_s |= {(gpu, f"{name} (batch size 1)"): 0.6 / power for name in ("A", "B", "C", "D")}
    jobs = [f"{name} (batch size 1)" for name in ("A", "B", "C", "D")]
    pairs = [TrainingPair("v100", pair, (2.0, 2.0)) for pair in itertools.combinations_with_replacement(jobs, 2)]
    found = evaluate_pairs(TrainingPairs(step_s, pairs))
    assert found.errors.error_median <= 0.06  # a switch of 100 us after each slice of 2 ms
    assert found.errors.fitted_n == 2 * 3
    assert found.errors.n == 2 * 3 + 4
