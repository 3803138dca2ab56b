"""Does the lab judge by what it has not seen, say the same twice, and say one sentence where it cannot work?"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cotenant.apps.lab import data_directory, read_measurements
from cotenant.apps.lab_plots import plotter
from cotenant.apps.show_lab import show_lab
from cotenant.cli import main
from cotenant.experiment.lab import instances, servers, shares, sums
from cotenant.experiment.lab.device import Measurements, judge_device
from cotenant.experiment.lab.judge import errors_of, halves
from cotenant.sim.physics import tenants
from tests.sim.measurements import write_all

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("COTENANT_DATA", ROOT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "rapp").is_dir(), reason=f"no measurements in {DATA}: set COTENANT_DATA to where they are"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def measured(small: Path) -> Measurements:
    return read_measurements(small)


def silent(what: str, done: int, total: int) -> None:
    assert done <= total


def test_the_command_judges_draws_and_says_the_same_twice(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["lab", "device", "--json", "--data", str(small), "--plots", str(tmp_path / "once"), "--seed", "3"]
    assert main(arguments) == 0
    said = capfd.readouterr().out.splitlines()[-1]
    # Again, in one process instead of several: who works out which split changes nothing.
    report, evidence = judge_device(read_measurements(small), 3, 1, silent)
    assert msgspec.json.encode(report, enc_hook=str).decode() == said
    plotter(tmp_path / "again")(report, evidence)
    drawn = [{path.name: path.read_bytes() for path in (tmp_path / turn).iterdir()} for turn in ("once", "again")]
    assert drawn[0] == drawn[1]
    assert sorted(drawn[0]) == ["errors.svg", "index.html", "shares.svg", "together.svg"]
    show_lab(Console(width=140), report)
    shown = capfd.readouterr().out
    assert all(check.name in shown for check in report.checks)
    assert "Knee from 5 shares" in shown
    # The data was made by the device model: what was held out is foretold but for the coarseness of the fits.
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
    }


def test_shares_held_out_change_no_forecast(measured: Measurements) -> None:
    curves, _, lean = shares.foretell(measured.surface, silent)
    changed = {
        name: {
            quota: {one: latency if one in curves[0].fitted else 7 * latency for one, latency in points.items()}
            for quota, points in quotas.items()
        }
        for name, quotas in measured.surface.items()
    }
    others, _, other_lean = shares.foretell(changed, silent)
    assert lean == other_lean
    assert [curve.foretold for curve in curves] == [curve.foretold for curve in others]
    assert [curve.measured for curve in curves] != [curve.measured for curve in others]


def test_processes_held_out_change_no_forecast(measured: Measurements) -> None:
    lab = instances.Instances(measured.profiles)
    for by in ("cell", "point"):
        known = lab.known_cells(by, 1)
        before = lab.foretell(known)
        assert before.foretold
        assert not set(known) & set(before.foretold)
        for name, count in before.foretold:
            lab.latency[name][count] *= 5
        assert lab.foretell(known).foretold == before.foretold
        for name, count in before.foretold:
            lab.latency[name][count] /= 5


@pytest.mark.parametrize("by", ["cell", "run", "none"])
def test_clients_held_out_change_no_forecast(measured: Measurements, by: str) -> None:
    server = measured.servers[0]
    known = servers.known_cells(server, by, 1)
    together = {cell: latency if cell in known else 9 * latency for cell, latency in server.together_ns.items()}
    changed = msgspec.structs.replace(server, together_ns=together)
    before, after = (servers.answer(servers.Question(measured=one, by=by, seed=1)) for one in (server, changed))
    assert before.foretold == after.foretold
    assert before.fitted == after.fitted
    assert before.measured != after.measured


def test_halves_are_a_function_of_the_seed_and_leave_nothing_out() -> None:
    cases = [("a", number) for number in range(11)]
    known, held_out = halves(cases, 5)
    assert sorted(known + held_out) == cases
    assert (len(known), len(held_out)) == (5, 6)
    assert halves(list(reversed(cases)), 5) == (known, held_out)
    assert halves(cases, 6) != (known, held_out)


def test_errors_in_short() -> None:
    short = errors_of({"b": 0.4, "a": 0.4, "c": 0.0, "d": 0.1, "e": 0.2})
    assert (short.n, short.median, short.worst, short.worst_case) == (5, 0.2, 0.4, "a")
    assert short.p90 == pytest.approx(0.4)


def test_a_curve_that_rises_with_the_share_is_named() -> None:
    rising = {one: 10.0 if one <= 50 else 30.0 for one in range(5, 101, 5)}
    curves, _, lean = shares.foretell({("odd", 1): {100: rising}}, silent)
    (case,) = shares.judge_shares(curves, 0, lean).unexplained
    assert case.case.startswith("odd batch 1")
    assert "rises with the share (at 55 % by 200%)" in case.reason


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["--data", "/nowhere"], 2, "--data = '/nowhere': no such directory"),
        (["--seed", "-1"], 2, "--seed = -1: choose 0"),
    ],
)
def test_bad_arguments_get_one_sentence(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "device", *arguments]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_absent_data_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTENANT_DATA", raising=False)
    assert main(["lab", "device"]) == 75
    assert capsys.readouterr().err.count("COTENANT_DATA") == 1
    monkeypatch.setenv("COTENANT_DATA", "/nowhere")
    assert main(["lab", "device"]) == 2
    assert "COTENANT_DATA = '/nowhere'" in capsys.readouterr().err


def test_plots_without_matplotlib_name_the_extra(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["lab", "device", "--data", str(small), "--plots"]
    (tmp_path / "file").write_text("")
    assert main([*arguments, str(tmp_path / "file")]) == 2
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    assert main([*arguments, str(tmp_path / "plots")]) == 2
    assert "cotenant[plots]" in capsys.readouterr().err


def test_a_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_all(tmp_path)
    broken = root / "disb" / "results" / "trt.A.json"
    broken.write_text(broken.read_text()[:-20])
    assert main(["lab", "device", "--data", str(root)]) == 2
    assert "trt.A.json" in capsys.readouterr().err


@needs_data
def test_the_published_files_are_whole_and_kernels_take_their_time() -> None:
    measured = read_measurements(data_directory(str(DATA), {}))
    assert len({model for model, _ in measured.surface}) == 69
    assert len(measured.surface) == 275
    assert measured.profiles.not_run == 728
    assert [len(server.together_ns) for server in measured.servers] == [40, 40, 40]
    check, _ = sums.judge_sums(measured.streams)
    assert check.met


@needs_data
def test_published_curves_and_processes_are_foretold_as_documented() -> None:
    measured = read_measurements(DATA)
    some: Any = dict(sorted(measured.surface.items())[::15])
    judged = shares.judge_shares(*shares.foretell(some, silent))
    assert judged.check.errors.median < 0.05
    lab = instances.Instances(measured.profiles)
    assert lab.judge(lab.foretell(lab.known_cells("cell", 0))).met
    assert lab.judge(lab.foretell_by_alone()).errors.median < 0.1
    server = measured.servers[0]
    quick = [run for run in server.runs if run.name in {"A", "B"}]
    latencies = tenants.foretell(quick, tenants.fit_server(quick, {}, tenants.rtx3080()), tenants.rtx3080())
    assert all(0.5 < latency / server.together_ns[cell] < 2 for cell, latency in latencies.items())
