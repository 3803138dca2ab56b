"""Tests of study `predictor`: pairs, fits, held-out measurements, reproducible results and the parameters file."""

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
from cotenant.predict.slowdown import slowdowns
from cotenant.predict.speed import SpeedPredictor
from cotenant.predict.speed_features import Spot
from cotenant.predict.speed_model import FEATURES
from cotenant.predict.speed_parameters import Parameters, load_parameters
from cotenant.softgpu.sim.device import Kernel, preset
from cotenant.units.estimate import Estimate
from cotenant.workload.arrival_trace import read_azure, read_mooncake
from cotenant_lab.cli import main
from cotenant_lab.data.gavel import read_oracle, read_pairs
from cotenant_lab.study.predictor import fitting
from cotenant_lab.study.predictor import pairs as speed_pairs
from cotenant_lab.study.predictor import programs as speed_programs
from cotenant_lab.study.predictor.comparison import PredictionCase, compare_predictions, folds
from cotenant_lab.study.predictor.fit import FITS, NetworkSettings, TreeSettings, fit_neural, fit_trees
from cotenant_lab.study.predictor.fitting import choose_law, fit_interference, refitted
from cotenant_lab.study.predictor.judging import judge_cases
from cotenant_lab.study.predictor.left_out import judge_left_out
from cotenant_lab.study.predictor.load import SYNTHETIC, synthetic_days, windows_of
from cotenant_lab.study.predictor.measured import (
    DISB,
    PARVA,
    SPLIT,
    disb_outcomes,
    gavel_outcomes,
    parva_outcomes,
    repeatable,
    split_outcomes,
)
from cotenant_lab.study.predictor.pairs import MODES, PairCase, play
from cotenant_lab.study.predictor.programs import RoundProgram, synthetic
from cotenant_lab.study.predictor.run import PredictorMeasurements, evaluate_predictor, read_predictor
from cotenant_lab.study.predictor.tables import show_predictor
from cotenant_lab.study.predictor.training import training_groups
from tests.support.measurements import DATA, needs_data, write_all

HEAD = "gpu,job_a,job_b,solo_a_steps_s,solo_b_steps_s,coloc_a,coloc_b,norm_a,norm_b"
JOBS = {"Big (batch size 1)": (2.0, 8.0, 12.0), "Mid (batch size 8)": (10.0, 30.0, 40.0), "Low": (20.0, 22.0, 23.0)}
INTERFERENCE = 0.08


def pack(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def write_pairs(path: Path) -> None:
    """Write pairs of jobs that share time fairly, and rows that must be omitted."""
    rows = [HEAD, "v100,\"('Low', 2)\",\"('Low', 1)\",1,1,1,1,1,1", "k80,\"('Low', 1)\",\"('Low', 1)\",20,20,0,0,,"]
    for index, gpu in enumerate(("k80", "p100", "v100")):
        for one, first in JOBS.items():
            for other, second in JOBS.items():
                a, b = first[index], second[index]
                rows.append(f"{gpu},\"('{one}', 1)\",\"('{other}', 1)\",{a},{b},{a / 2},{b / 1.6},0.5,0.6")
                rows.append(f"{gpu}_unconsolidated,\"('{one}', 1)\",\"('{other}', 1)\",{a},{b},{a / 9},{b / 9},0,0")
    pack(path, "\n".join(rows))


def write_split(folder: Path) -> None:
    """Write four models whose latency alone is inverse to the share, and which slow each other by a constant."""
    folder.mkdir(parents=True, exist_ok=True)
    alone = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    rows = ["model,batch,sm_share_pct,latency_ms,throughput,l2cache,dram"]
    for model, base in alone.items():
        rows += [
            f"{model},{batch},{share},{base * batch * 100 / share},1,,20" for batch in (1, 8) for share in (20, 80)
        ]
    (folder / "solo.csv").write_text("\n".join(rows) + "\n")
    rows = ["model_a,model_b,batch_a,batch_b,sm_share_a_pct,latency_a_ms,latency_b_ms"]
    for first, second in ("ab", "ac", "ad", "bc", "bd", "cd"):
        for share in (20, 40, 80):
            slower = [
                base * 100 / part * (1 + INTERFERENCE)
                for base, part in ((alone[first], share), (alone[second], 100 - share))
            ]
            rows.append(f"{first},{second},1,1,{share},{slower[0]},{slower[1]}")
    rows.append("a,unknown,1,1,50,1,1")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")


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
    write_split(root / "igniter")
    stamps = [f"2023-11-16 {18 + index // 3600}:{index // 60 % 60:02}:{index % 60:02}.5000000" for index in range(1500)]
    for part in ("conv", "code"):
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{stamp},1,1" for stamp in stamps)]
        pack(root / f"azure_llm/AzureLLMInferenceTrace_2023_{part}.csv.gz", "\n".join(lines))
    lines = [f'{{"timestamp": {index * 500}, "input_length": 1}}' for index in range(1500)]
    pack(root / "mooncake/conversation_trace.jsonl.gz", "\n".join(lines))
    return root


@pytest.fixture(scope="module")
def measured(small: Path) -> PredictorMeasurements:
    return read_predictor(small)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the study take a second: too few pairs to learn from, but every step runs."""
    for name, count in (("_FITTED", 12), ("_HELD_OUT", 4), ("_RECORDED", 2), ("_QUICK", 1)):
        monkeypatch.setattr(fitting, name, count)
    monkeypatch.setattr(speed_pairs, "_LAUNCHES", 300)
    monkeypatch.setitem(FITS, "boosted trees", lambda rows, errors, _: fit_trees(rows, errors, TreeSettings(4, 2)))
    monkeypatch.setitem(
        FITS, "neural", lambda rows, errors, seed: fit_neural(rows, errors, seed, NetworkSettings((4,), 2, 1))
    )
    monkeypatch.setattr("cotenant_lab.study.predictor.run.os.cpu_count", lambda: 1)


def silent(what: str, done: int, total: int) -> None:
    assert done <= total


def test_fit_is_reproducible_draws_and_writes_parameters(
    small: Path, measured: PredictorMeasurements, few: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    arguments = ["study", "predictor", "--json", "--quick", "--data", str(small), "--seed", "3"]
    arguments += ["--parameters", str(kept)]
    if importlib.util.find_spec("matplotlib"):
        arguments += ["--plots", str(tmp_path / "plots")]
    code = main(arguments)
    text = capfd.readouterr().out.splitlines()[-1]
    report, _, parameters = evaluate_predictor(measured, 3, 1, silent, quick=True, fit=True)
    assert msgspec.json.encode(report, enc_hook=str).decode() == text
    assert code == 0
    assert msgspec.json.decode(kept.read_bytes(), type=Parameters) == parameters
    if importlib.util.find_spec("matplotlib"):
        names = {"speeds.svg", "latency.svg", "load.svg", "index.html"}
        assert {path.name for path in (tmp_path / "plots").iterdir()} == names
    assert [one.mode for one in report.held_out] == [mode for mode in MODES for _ in range(4)]
    # The pairs of the fit half are slowed by this constant, which does not depend on the bandwidth.
    law = report.law["mps"]
    assert law["interference"] + 0.2 * law["interference_memory"] == pytest.approx(INTERFERENCE, abs=1e-3)
    assert report.law["time"]["turn"] == report.law["time"]["interference"] == 0
    show_predictor(Console(width=200), report)
    shown = capfd.readouterr().out
    assert "targets are met" in shown
    assert SYNTHETIC in shown
    predicted = SpeedPredictor((), "time", parameters).predict([None], [Spot((), 500_000)])
    assert 0 < predicted.low[0, 0] <= predicted.point[0, 0] <= 1


def test_parameters_of_the_package_are_judged_by_default(measured: PredictorMeasurements) -> None:
    report, evidence, parameters = evaluate_predictor(measured, 3, 1, silent, quick=True, fit=False)
    assert parameters == load_parameters()
    assert not report.held_out
    assert {one.name for one in report.node.sets} == {SPLIT, DISB}  # ParvaGPU's only model here is in the fit half
    assert {one.source for one in parva_outcomes(measured.profiles)} == {PARVA}
    assert report.node.cases == sum(one.cases for one in report.node.sets)
    assert all(0 <= one.coverage <= 1 for one in (report.node, report.cluster))
    assert evidence.shown[SPLIT.replace("two models on split shares", "a job on a share, a service on the rest")]
    # The surfaces were made by a model of the same kind: five points of one are nearly all there is to know.
    (five,) = (comparison for comparison in report.alone.comparisons if comparison.name.endswith("5 points"))
    assert five.errors.median < 0.1


def test_held_outcomes_do_not_change_the_fit(measured: PredictorMeasurements) -> None:
    """Check that a fit does not depend on what judges it."""
    outcomes = split_outcomes(measured.split_alone, measured.split_pairs)
    changed = [msgspec.structs.replace(one, speed=one.speed if one.is_fit else 0.1) for one in outcomes]
    assert {one.is_fit for one in outcomes} == {True, False}
    assert all(one.is_fit != one.is_held for one in outcomes)
    recorded = [play(PairCase("mps", number, 3)) for number in range(3)]
    fitted = [choose_law("mps", recorded, [one for one in both if one.is_fit]) for both in (outcomes, changed)]
    assert fitted[0] == fitted[1]
    assert fit_interference([]) == (0.0, 0.0)
    assert not {one.program for one in gavel_outcomes(measured.pairs) if one.is_fit} & {
        one.program for one in gavel_outcomes(measured.pairs) if one.is_held
    }
    cases = judge_cases(outcomes, load_parameters(), as_slowdown=True)
    assert len(cases) == sum(one.is_held for one in outcomes)


def test_number_of_workers_does_not_change_simulated_pairs(measured: PredictorMeasurements) -> None:
    one, two = (fitting._play_all(measured.streams, 3, workers, 200, silent) for workers in (1, 2))
    assert one == two
    assert {len(pairs) for pairs in one[0].values()} == {15}


def test_a_left_out_data_set_does_not_change_its_own_predictions(measured: PredictorMeasurements) -> None:
    split = split_outcomes(measured.split_alone, measured.split_pairs)
    parva = parva_outcomes(measured.profiles)
    slow = [msgspec.structs.replace(one, speed=one.speed / 2) for one in split]
    fitted_to = [msgspec.structs.replace(one, is_fit=True) for one in [*split, *parva]]
    first, second = (
        judge_left_out({SPLIT: outcomes}, fitted_to, load_parameters(), as_slowdown=True)[0]
        for outcomes in (split, slow)
    )
    assert (first.cases, first.interval) == (len(split), second.interval)
    assert first.bias == pytest.approx(2 * second.bias, rel=1e-3)
    # Nothing else was measured on split shares, so no interference is known.
    without = refitted(load_parameters(), [one for one in fitted_to if one.source != SPLIT])
    assert without.modes["mps"].law.interference == 0
    assert refitted(load_parameters(), fitted_to).modes["mps"].law.interference > 0


def test_split_shares_are_slowed_by_interference_alone(measured: PredictorMeasurements) -> None:
    outcomes = split_outcomes(measured.split_alone, measured.split_pairs)
    assert len(outcomes) == 2 * (len(measured.split_pairs) - 1)  # one model was not measured alone
    # 40 and 60 % were not measured alone: they are interpolated between 20 and 80 %, which is exact here.
    assert all(1 / one.speed == pytest.approx(1 + INTERFERENCE) for one in outcomes)
    uses = [outcomes[0].job, outcomes[1].job]
    assert all(1.02 < estimate.point < 1.25 for estimate in slowdowns(uses))


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


def test_outcomes_contain_known_inputs(measured: PredictorMeasurements) -> None:
    gavel = gavel_outcomes(measured.pairs)
    assert len(gavel) == 2 * 3 * 6  # each two of three jobs once, and each with itself, on three GPUs
    assert {one.mode for one in gavel} == {"time"}
    assert {round(one.speed, 3) for one in gavel} == {0.5, 0.625}
    # The second file has 0.5 for every job.
    agreed = repeatable(gavel, gavel_outcomes(measured.again))
    assert {one.speed for one in agreed} == {0.5}
    assert len(agreed) == len(gavel) // 2
    disb = disb_outcomes(measured.servers, measured.streams)
    assert all(one.mode == "mps" and 0 < one.speed <= 1 for one in disb)
    assert all(isinstance(other, OnlineUse) for one in disb for other in one.spot.online)
    assert all(len(one.spot.online) == len(one.others) >= 1 for one in parva_outcomes(measured.profiles))


def test_part_of_a_step_on_the_gpu_follows_from_speeds_alone(measured: PredictorMeasurements) -> None:
    groups = training_groups(measured.pairs)
    assert len(groups) == 27
    assert {group.gpu for group in groups} == {"k80", "p100", "v100"}
    assert all(group.slowdowns == pytest.approx((2.0, 1.6)) for group in groups)
    # A job whose speed hardly grows from GPU to GPU is bound by its host; one whose speed does is on the GPU.
    duty = {group.jobs[0]: group.duties[0] for group in groups if group.gpu == "v100"}
    assert duty["Low"] < 0.2
    assert duty["Big (batch size 1)"] > 0.9


def test_comparison_counts_coverage_and_better_predictors() -> None:
    cases = [PredictionCase(f"c{one}", Estimate(0.9, 1.0, 1.1), 1.0 + one / 50, {"rival": 2.0}) for one in range(10)]
    found = compare_predictions("n", "s", "all", cases, rivals=("rival",))
    assert found.coverage == 0.6
    assert found.met == {"better than rival": True, "intervals hold": False}
    assert folds(["c", "a", "b", "a"], 2) == [["a", "c"], ["b"]]


def test_complete_windows_contain_every_request() -> None:
    counts, begin_ns = windows_of([5 * 10**9 + index * 10**8 for index in range(101)], 2)
    assert (counts, begin_ns) == ([20] * 5, 5 * 10**9)
    assert synthetic_days(1) == synthetic_days(1) != synthetic_days(2)


def test_arrivals_keep_their_time_of_day_and_damage_is_reported() -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5,1,1\n2023-11-17 00:00:00.25,1,1\n"
    assert read_azure(gzip.compress(text.encode()), "a") == (86_399_500_000_000, 86_400_250_000_000)
    for bad in ("2023-11-16 18,1,1", "2023-11-16 18:00:xx,1,1"):
        with pytest.raises(ConfigError, match="a:2"):
            read_azure(gzip.compress(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{bad}\n".encode()), "a")
    assert read_mooncake(gzip.compress(b'{"timestamp": 3}\n{"timestamp": 1}'), "m") == (1_000_000, 3_000_000)
    with pytest.raises(ConfigError, match="m:1"):
        read_mooncake(gzip.compress(b"{}"), "m")
    readers: list[Any] = [read_azure, read_mooncake, read_pairs]
    for reader in readers:
        with pytest.raises(ConfigError, match="gzip"):
            reader(b"no", "x")


def test_directory_without_pairs_is_reported(small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for part in ("orion", "rapp", "parvagpu", "disb"):
        (tmp_path / part).symlink_to(small / part)
    assert main(["study", "predictor", "--data", str(tmp_path)]) == 2
    assert "docs/evaluation/data" in capfd.readouterr().err
    assert main(["study", "predictor", "--data", str(tmp_path), "--live", "x"]) == 2
    assert "has no meaning" in capfd.readouterr().err


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


@needs_data
def test_published_pairs_are_read_completely() -> None:
    path = DATA / "gavel/pairs_simulation_throughputs.csv.gz"
    pairs = read_pairs(path.read_bytes(), str(path))
    assert len(pairs.pairs) == 1881
    assert len(pairs.step_s) == 78
    assert all(min(pair.slowdowns) > 0.99 for pair in pairs.pairs)
