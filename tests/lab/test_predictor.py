"""Tests of study `predictor`: pairs, fits, evaluation and the parameters file."""

import gzip
import importlib.util
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.errors import ConfigError
from cotenant.predict.speed import SpeedPredictor
from cotenant.predict.speed_features import Spot
from cotenant.predict.speed_model import FEATURES
from cotenant.predict.speed_parameters import Parameters
from cotenant.softgpu.sim.device import Kernel, preset
from cotenant_lab.cli import main
from cotenant_lab.data.gavel import read_oracle
from cotenant_lab.study.predictor import pairs as speed_pairs
from cotenant_lab.study.predictor import programs as speed_programs
from cotenant_lab.study.predictor import run as speed
from cotenant_lab.study.predictor.fit import FITS, NetworkSettings, TreeSettings, fit_neural, fit_trees
from cotenant_lab.study.predictor.measured import AGAIN, DISB, GAVEL, disb_outcomes, gavel_outcomes
from cotenant_lab.study.predictor.pairs import MODES, PairCase, play
from cotenant_lab.study.predictor.programs import RoundProgram, synthetic
from cotenant_lab.study.predictor.run import ADDS_UP, TWICE, evaluate_speed, read_speeds
from cotenant_lab.study.predictor.tables import show_predictor
from tests.lab.test_predictor_node import JOBS, write_pairs
from tests.support.measurements import DATA, needs_data, write_all


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_all(tmp_path_factory.mktemp("data"))
    rows = ["Name,Profile,Memory_footprint,SM_usage,Duration", *("f,1,0,160,40000", "g,0,0,12,3136") * 8]
    (root / "orion/model_kernels/net_4_fb1.csv").write_text("\n".join(rows) + "\n")
    write_pairs(root / "gavel/pairs_simulation_throughputs.csv.gz")
    again = {
        gpu: {
            one: {
                "null": first[index],
                **{other: [first[index] / 2, second[index] / 2] for other, second in JOBS.items()},
            }
            for one, first in JOBS.items()
        }
        for index, gpu in enumerate(("k80", "p100", "v100"))
    }
    (root / "gavel/oracle_throughputs.json.gz").write_bytes(gzip.compress(msgspec.json.encode(again), mtime=0))
    return root


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the study take a second: too few pairs to learn from, but every step runs."""
    for name, count in (("_FITTED", 12), ("_HELD_OUT", 4), ("_RECORDED", 2), ("_QUICK", 1)):
        monkeypatch.setattr(speed, name, count)
    monkeypatch.setattr(speed_pairs, "_LAUNCHES", 300)
    monkeypatch.setitem(FITS, "boosted trees", lambda rows, errors, _: fit_trees(rows, errors, TreeSettings(4, 2)))
    monkeypatch.setitem(
        FITS, "neural", lambda rows, errors, seed: fit_neural(rows, errors, seed, NetworkSettings((4,), 2, 1))
    )
    monkeypatch.setattr("cotenant_lab.study.predictor.run.os.cpu_count", lambda: 1)


def silent(what: str, done: int, total: int) -> None:
    assert done <= total


def test_command_is_reproducible_draws_and_writes_parameters(
    small: Path, few: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    arguments = [
        "study",
        "predictor",
        "--json",
        "--quick",
        "--data",
        str(small),
        "--seed",
        "3",
        "--parameters",
        str(kept),
    ]
    if importlib.util.find_spec("matplotlib"):
        arguments += ["--plots", str(tmp_path / "plots")]
    code = main(arguments)
    text = capfd.readouterr().out.splitlines()[-1]
    report, evidence, parameters = evaluate_speed(read_speeds(small), 3, 1, silent, quick=True)
    assert msgspec.json.encode(report).decode() == text
    assert code == 0
    assert msgspec.json.decode(kept.read_bytes(), type=Parameters) == parameters
    assert parameters.kind == report.kept
    if importlib.util.find_spec("matplotlib"):
        assert {path.name for path in (tmp_path / "plots").iterdir()} == {"speeds.svg", "index.html"}
    assert [(result.name, result.of) for result in report.results] == [
        (name, of) for name in (GAVEL, AGAIN, DISB) for of in ("speed", "slowdown")
    ]
    assert len(evidence.shown[GAVEL]) == report.results[0].kept.n == 36
    # Gavel's two files have 0.5 and 0.625 for the same job in the first case, and 0.5 and 0.5 in the second.
    assert report.results[0].baselines[TWICE].worst == pytest.approx(0.2)
    assert all(set(line.models) == set(FITS) and ADDS_UP in line.baselines for line in report.results)
    show_predictor(Console(width=160), report)
    assert "targets are met" in capfd.readouterr().out
    predicted = SpeedPredictor((), "time", parameters).predict([None], [Spot((), 500_000)])
    assert 0 < predicted.low[0, 0] <= predicted.point[0, 0] <= 1


def test_unwritable_file_is_rejected_before_the_run(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for bad in (tmp_path / "no" / "file", tmp_path):
        assert main(["study", "predictor", "--quick", "--data", str(small), "--parameters", str(bad)]) == 2
        predicted = capfd.readouterr().err
        assert "--parameters" in predicted
        assert "to do" not in predicted
    assert main(["study", "device", "--parameters", "x"]) == 2
    assert "has no meaning" in capfd.readouterr().err


@pytest.mark.parametrize("mode", MODES)
def test_pair_depends_on_its_number_and_is_within_limits(mode: Any) -> None:
    for number in range(3):
        pair = play(PairCase(mode, number, 7))
        assert pair == play(PairCase(mode, number, 7))
        assert 0 < pair.speed <= 1
        assert pair.slowdown >= 1
        assert pair.spot.online
        assert pair.job.round_ns >= pair.job.round_device_ns * 0.999
    assert play(PairCase(mode, 1, 8)) != play(PairCase(mode, 1, 7))


def test_wide_job_is_as_fast_as_its_share_with_an_idle_neighbour() -> None:
    config = preset("v100")
    wide = Kernel(blocks=8 * config.sm_count, block_ns=10_000, blocks_per_sm=1)
    job = speed_programs._measured(RoundProgram("job", (wide,) * 4, (1_000,) * 4, (False,) * 4, 0), config)
    other = speed_programs._measured(RoundProgram("other", (wide,), (1_000,), (False,), 0), config)
    for share in (0.25, 0.5, 1.0):
        predicted = speed_pairs._simulate(job, [other], [0.01], share, "space", random.Random(1), config)
        assert predicted[0] == pytest.approx(share, abs=0.05)


def test_use_of_a_run_alone_is_consistent() -> None:
    config = preset("v100")
    for number in range(20):
        program = synthetic(random.Random(number), "x", config)
        use = program.use
        assert sum(part for _, part in use.widths) == pytest.approx(1e6, abs=10)
        assert use.duty_ppm == pytest.approx(1e6 * use.round_device_ns / use.round_ns, abs=50)
        assert 0 < use.kernel_ns <= use.longest_ns
        assert len(program.steps(0)) == len(program.kernels)
        assert sum(step.host_ns for step in program.steps(0, 2.0)) == pytest.approx(
            2 * sum(step.host_ns for step in program.steps(0)), abs=len(program.kernels)
        )


@pytest.mark.parametrize("kind", FITS)
def test_every_kind_of_model_learns_errors_of_the_rule(kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 1, (300, len(FEATURES))).astype(np.float32)
    truth = np.stack([0.4 * rows[:, 0] - 0.3 * rows[:, 3], 0.5 * np.abs(rows[:, 5])], axis=1)
    model = FITS[kind](rows[:250], truth[:250], 0)
    left = np.abs(model.errors(rows[250:]) - truth[250:]).mean(axis=0)
    assert (left < 0.75 * np.abs(truth[250:]).mean(axis=0)).all()
    assert np.array_equal(FITS[kind](rows[:250], truth[:250], 0).errors(rows), model.errors(rows))
    assert msgspec.json.decode(msgspec.json.encode(model), type=type(model)) == model


def test_tree_finds_the_threshold() -> None:
    rows = np.linspace(0, 1, 200, dtype=np.float32)[:, None]
    truth = np.where(rows > 0.5, 0.2, -0.2).repeat(2, axis=1)
    trees = fit_trees(rows, truth, TreeSettings(trees=1, levels=1, rate=1.0, firmness=0.0))
    assert trees.above[0][0][0] == pytest.approx(0.5, abs=0.03)
    assert (np.sign(trees.errors(rows)) == np.sign(truth)).mean() > 0.95


def test_outcomes_contain_known_inputs(small: Path) -> None:
    measured = read_speeds(small)
    gavel = gavel_outcomes(measured.pairs)
    assert len(gavel) == 2 * 3 * 6  # each two of three jobs once, and each with itself, on three GPUs
    assert {one.mode for one in gavel} == {"time"}
    assert {round(one.speed, 3) for one in gavel} == {0.5, 0.625}
    assert all(one.slowdown == pytest.approx(3.6 - 1 / one.speed) for one in gavel)
    disb = disb_outcomes(measured.servers, measured.streams)
    assert all(one.mode == "mps" and 0 < one.speed <= 1 for one in disb)
    assert all(isinstance(other, OnlineUse) for one in disb for other in one.spot.online)


def test_damaged_second_file_is_reported() -> None:
    for content in (b"no", gzip.compress(b"[]"), gzip.compress(b'{"k80": {"a": {"null": "fast"}}}')):
        with pytest.raises(ConfigError, match="here"):
            read_oracle(content, "here")
    odd = msgspec.json.encode({"k80": {"a": {"null": 1.0, "a": [0.0, 0.5], "b": [0.5, 0.5]}}})
    assert read_oracle(gzip.compress(odd), "here").pairs == []


@needs_data
def test_second_file_is_read_completely() -> None:
    path = DATA / "gavel/oracle_throughputs.json.gz"
    pairs = read_oracle(path.read_bytes(), str(path))
    assert len(pairs.pairs) == 1858
    assert {pair.gpu for pair in pairs.pairs} == {"k80", "p100", "v100"}
