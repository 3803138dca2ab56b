"""Tests of study `muxflow`: policies get the same load, and the report is consistent."""

import gzip
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cotenant.cluster.sim.physics.colocated import built_in
from cotenant.errors import ConfigError
from cotenant_lab.study.claim import DURATIONS, Perturbation
from cotenant_lab.study.muxflow.claims import perturbed_physics
from cotenant_lab.study.muxflow.plots import plotter
from cotenant_lab.study.muxflow.run import (
    ALONE,
    OURS,
    PHILLY,
    PRIORITY,
    UNLIMITED,
    ClusterResult,
    PolicyOutcome,
    play,
    report_of,
    run_muxflow,
)
from cotenant_lab.study.muxflow.tables import show_muxflow

SMALL = msgspec.structs.replace(PHILLY, nodes=2, begin_d=0, hours=1.0, drain_h=3.0)


def write_jobs(root: Path) -> None:
    rows = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    rows += [f"2017-10-09 07:{n:02}:00,{600 + 60 * n},1,0,vc{n % 2}" for n in range(24)]
    (root / "philly").mkdir()
    (root / "philly" / "philly_jobs.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[PolicyOutcome]:
    root = tmp_path_factory.mktemp("data")
    write_jobs(root)
    played = [play(SMALL, policy, root, 0) for policy in (OURS, "time-sharing", ALONE, UNLIMITED, PRIORITY)]
    assert {facts for _, facts in played} == {played[0][1]}
    return [one for one, _ in played]


def test_every_policy_gets_the_same_load_and_loses_no_job(found: list[PolicyOutcome]) -> None:
    assert len({one.memory[0] for one in found}) == 1
    for one in found:
        assert one.utilization[0] == pytest.approx(found[0].utilization[0], rel=0.05)  # courses are kept in steps
        assert not one.problems
        assert one.utilization[1] >= one.utilization[0]
        assert one.memory[1] >= one.memory[0]
    assert [one.mode for one in found] == ["space", "time", "none", "mps", "mps-priority"]


def test_sharing_increases_use_and_shares_limit_slowdown(found: list[PolicyOutcome]) -> None:
    ours, _, alone, unlimited, prior = found
    assert ours.done == 1
    assert ours.offline_speed > alone.offline_speed
    assert ours.utilization[1] > alone.utilization[1]
    assert alone.online_slowdown == pytest.approx(1)
    assert ours.online_slowdown < prior.online_slowdown < unlimited.online_slowdown


def test_report_names_better_policies(found: list[PolicyOutcome], tmp_path: Path) -> None:
    cluster = ClusterResult(name="small", source="synthetic", gpus=16, jobs=24, left_out=0, hours=1.0, found=found)
    report = report_of([cluster], 0, quick=True)
    assert report.met["small: GPU utilization rises"]
    assert report.met["small: the accounting is consistent under every policy"]
    worse = [msgspec.structs.replace(one, jct_h=0.0) if one.policy == ALONE else one for one in found]
    results = report_of([msgspec.structs.replace(cluster, found=worse)], 0, quick=True).met
    assert not results["small: no baseline below 20 % has a shorter mean JCT"]
    assert not results["small: shorter mean JCT than no sharing"]
    out = io.StringIO()
    show_muxflow(Console(file=out, width=200), report)
    assert "26 -> 76 %" in out.getvalue()
    assert UNLIMITED in out.getvalue()
    plotter(tmp_path)(report)
    assert "small-use.svg" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "small-cost.svg").exists()


def test_missing_traces_are_named(tmp_path: Path) -> None:
    text: list[str] = []
    with pytest.raises(ConfigError, match="docs/evaluation/data"):
        run_muxflow(tmp_path, 0, Console(quiet=True), text.append, quick=True)
    assert [line.split(":")[1].strip() for line in text] == ["openb", "philly"]


def test_wrong_durations_change_the_part_on_the_gpu_that_profiles_state() -> None:
    true, wrong = built_in(), perturbed_physics(Perturbation(DURATIONS, 2.0))
    for before, after in zip(true.trainings, wrong.trainings, strict=True):
        assert after.use.kernel_ns == 2 * before.use.kernel_ns
        host_ns = before.use.round_ns - before.use.round_device_ns
        assert after.use.round_ns - after.use.round_device_ns == pytest.approx(host_ns, abs=2)
        assert after.use.duty_ppm >= before.use.duty_ppm
    assert any(
        after.use.duty_ppm > 1.2 * before.use.duty_ppm
        for before, after in zip(true.services, wrong.services, strict=True)
    )
