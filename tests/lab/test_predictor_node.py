"""Tests of study `predictor-node`: held-out data is not used, and results are reproducible."""

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.predict.slowdown import Law, points_of
from cotenant.units.estimate import Estimate
from cotenant.workload.arrival_trace import read_azure, read_mooncake
from cotenant_lab.cli import main
from cotenant_lab.data.gavel import read_pairs
from cotenant_lab.study.predictor_node.co_location import Laws, evaluate_together, training_groups
from cotenant_lab.study.predictor_node.comparison import PredictionCase, compare_predictions, folds
from cotenant_lab.study.predictor_node.load import SYNTHETIC, synthetic_days, windows_of
from cotenant_lab.study.predictor_node.pairs import SHARES, pairs_on_the_model, split_cases
from cotenant_lab.study.predictor_node.run import NodeMeasurements, evaluate_predictor, read_all
from cotenant_lab.study.predictor_node.tables import show_predictor_node
from tests.support.measurements import DATA, needs_data, write_all

HEAD = "gpu,job_a,job_b,solo_a_steps_s,solo_b_steps_s,coloc_a,coloc_b,norm_a,norm_b"
JOBS = {"Big (batch size 1)": (2.0, 8.0, 12.0), "Mid (batch size 8)": (10.0, 30.0, 40.0), "Low": (20.0, 22.0, 23.0)}


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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_all(tmp_path_factory.mktemp("data"))
    rows = ["Name,Profile,Memory_footprint,SM_usage,Duration", *("f,1,0,160,40000", "g,0,0,12,3136") * 8]
    (root / "orion/model_kernels/net_4_fb1.csv").write_text("\n".join(rows) + "\n")
    (root / "orion/model_kernels/other_8_fb1.csv").write_text("\n".join(rows[:4]) + "\n")
    write_pairs(root / "gavel/pairs_simulation_throughputs.csv.gz")
    stamps = [f"2023-11-16 {18 + index // 3600}:{index // 60 % 60:02}:{index % 60:02}.5000000" for index in range(1500)]
    for part in ("conv", "code"):
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{stamp},1,1" for stamp in stamps)]
        pack(root / f"azure_llm/AzureLLMInferenceTrace_2023_{part}.csv.gz", "\n".join(lines))
    lines = [f'{{"timestamp": {index * 500}, "input_length": 1}}' for index in range(1500)]
    pack(root / "mooncake/conversation_trace.jsonl.gz", "\n".join(lines))
    return root


@pytest.fixture(scope="module")
def measured(small: Path) -> NodeMeasurements:
    return read_all(small)


def silent(what: str, done: int, total: int) -> None:
    assert done <= total


def test_command_is_reproducible_and_draws(
    small: Path, measured: NodeMeasurements, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["study", "predictor-node", "--json", "--quick", "--data", str(small), "--seed", "3"]
    if importlib.util.find_spec("matplotlib"):
        arguments += ["--plots", str(tmp_path / "plots")]
    code = main(arguments)
    text = capfd.readouterr().out.splitlines()[-1]
    report, evidence = evaluate_predictor(measured, 3, silent, quick=True)
    assert msgspec.json.encode(report, enc_hook=str).decode() == text
    assert code == 0
    if importlib.util.find_spec("matplotlib"):
        assert {path.name for path in (tmp_path / "plots").iterdir()} >= {"latency.svg", "load.svg", "index.html"}
    assert set(evidence.together) == {
        comparison.name for comparison in report.together.comparisons if "once seen" not in comparison.name
    }
    show_predictor_node(Console(width=160), report)
    shown = capfd.readouterr().out
    assert "pairs on the software GPU" in shown
    assert SYNTHETIC in shown
    # The surfaces were made by a model of the same kind: five points of one are nearly all there is to know.
    (five,) = (comparison for comparison in report.alone.comparisons if comparison.name.endswith("5 points"))
    assert five.errors.median < 0.1


def test_fairly_sliced_pairs_are_predicted(measured: NodeMeasurements) -> None:
    groups = training_groups(measured.pairs)
    assert len(groups) == 27
    assert {group.kind for group in groups} == {"k80", "p100", "v100"}
    assert all(group.slowdowns == pytest.approx((2.0, 1.6)) for group in groups)
    # A job whose speed hardly grows from GPU to GPU is bound by its host; one whose speed does is on the GPU.
    duty = {group.tenants[0]: group.uses[0].duty for group in groups if group.kind == "v100"}
    assert duty["Low"] < 0.2
    assert duty["Big (batch size 1)"] > 0.9


def test_held_out_data_does_not_change_predictions(measured: NodeMeasurements) -> None:
    """Check that a held-out outcome does not influence its own prediction."""
    groups = training_groups(measured.pairs)
    laws = Laws(gains=(0.3, 1.0), turns=(0.0, 0.5))
    changed = []
    for group in groups:
        worse = tuple(
            9.0 if program == "Low" else slowdown
            for program, slowdown in zip(group.programs, group.slowdowns, strict=True)
        )
        changed.append(msgspec.structs.replace(group, slowdowns=worse))
    predicted = [evaluate_together({"p": ("s", one, laws)}, silent)[1]["p"] for one in (groups, changed)]
    pairs = [(one, other) for one, other in zip(*predicted, strict=True) if ": Low" in one.name]
    assert pairs
    assert all(one.estimate == other.estimate for one, other in pairs)
    assert any(one.measured != other.measured for one, other in pairs)


def test_pairs_on_the_model_share_it(measured: NodeMeasurements) -> None:
    groups = pairs_on_the_model(measured.streams)
    assert len(groups) == 6  # of three lists, each also with itself
    for group in groups:
        assert all(1 <= slowdown < 4 for slowdown in group.slowdowns)
        assert all(0 < use.duty <= 1 and use.kernel_ns > 0 for use in group.uses)
        assert len(points_of(group.uses, Law())) == 2


def test_split_shares_are_predicted_by_kernels_alone(measured: NodeMeasurements) -> None:
    cases = split_cases(measured.streams)
    assert len(cases) == 1 * 2 * len(SHARES) * 2  # one service beside two trainings, both sides
    assert all(case.estimate.holds(case.measured) for case in cases)
    assert all(case.estimate.point == pytest.approx(case.measured, rel=0.15) for case in cases)
    assert max(case.measured for case in cases) > 3  # a quarter of the device is a slow place for wide kernels


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
    assert main(["study", "predictor-node", "--data", str(tmp_path)]) == 2
    assert "docs/evaluation/data" in capfd.readouterr().err
    assert main(["study", "predictor-node", "--data", str(tmp_path), "--live", "x"]) == 2
    assert "has no meaning" in capfd.readouterr().err


@needs_data
def test_published_pairs_are_read_completely() -> None:
    path = DATA / "gavel/pairs_simulation_throughputs.csv.gz"
    pairs = read_pairs(path.read_bytes(), str(path))
    assert len(pairs.pairs) == 1881
    assert len(pairs.step_s) == 78
    assert all(min(pair.slowdowns) > 0.99 for pair in pairs.pairs)
