"""Tests of the `cotenant-lab` command: wrong input, the loop bench, and the timelines study."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant_lab.bench import loop
from cotenant_lab.cli import main
from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
TABLE = "Name,Profile,Memory_footprint,SM_usage,Duration\n"
SMALL = TABLE + "conv<int, 3>,1,0,80,40000\nnorm,0,0,8,5000\n" * 3
LATER = TABLE + "conv<int, 3>,1,0,80,60000\nnorm,0,0,8,5000\nrelu,0,0,8,2000\n" * 3
MISTAKES: dict[str, tuple[str, ...]] = {
    "bench": ("name", "--help"),
    "bench everything": ("name", "everything", "--help"),
    "bench loop --rounds 0": ("--rounds", "0", "choose 1 to 1000"),
    "bench loop --rounds x": ("--rounds", "'x'", "--help"),
    "bench loop --quick": ("--quick", "loop"),
    "bench fill --gate ajar": ("--gate", "'ajar'"),
    "bench fill --data none": ("--data", "'none'", "is not a directory"),
    "study fikit --data none": ("--data", "'none'", "is not a directory"),
    "study dstack --data none": ("--data", "'none'", "is not a directory"),
    "study arkgpu --data none": ("--data", "'none'", "is not a directory"),
    "study fikit --no-live": ("--no-live", "fikit"),
    "stdy fikit": ("unknown command 'stdy'", "did you mean study?", "`cotenant-lab --help`"),
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_wrong_input_is_rejected_in_one_sentence(
    typed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: int | str | None = main(typed.split())
    except SystemExit as exited:
        code = exited.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    [line] = err.splitlines()
    assert [word for word in MISTAKES[typed] if word not in line] == [], line


def test_timelines_study_replays_under_the_hook(node_harness: NodeHarness) -> None:
    data = node_harness.home / "data" / "kernel_timelines"
    data.mkdir(parents=True)
    for name, text in (("small", SMALL), ("later", LATER)):
        (data / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))

    def study(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cotenant_lab", "study", "timelines", "--data", str(folder), *words]
        return subprocess.run(
            command, cwd=node_harness.home, env=node_harness.environ, capture_output=True, text=True, check=False
        )

    done = study(data.parent, "--replay", str(ROOT / "examples" / "replay.py"), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert [(one["name"], one["kernels"], one["missing"], one["launches"]) for one in report["timelines"]] == [
        ("later", 3, 0, 9),
        ("small", 2, 0, 6),
    ]
    assert "no timelines" in study(node_harness.home).stderr


def test_loop_bench_reports_every_metric(
    node_harness: NodeHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COTENANT_CONFIG", node_harness.environ["COTENANT_CONFIG"])
    monkeypatch.setattr(loop, "EVENTS", 10_000)  # more events only make the metrics more precise
    monkeypatch.setattr(loop, "NODES", 50)
    assert main(["bench", "loop", "--rounds", "1", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in (
        "sim_events_per_s",
        "vs_bare_heap",
        "vs_bare_heap_journaled",
        "journal_bytes_per_event",
        "live_turn_us_p50",
        "live_turn_us_p99",
    ):
        assert metrics[name] > 0, name
    assert metrics["live_turn_us_p50"] <= metrics["live_turn_us_p99"]
    assert metrics["rounds"] == 1
