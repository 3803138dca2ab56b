"""Does the lab of a cluster compare the same jobs beside the same load, and count as it says?"""

import gzip
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cotenant.apps.lab_muxflow_cluster import run_muxflow_cluster, show_muxflow_cluster
from cotenant.apps.lab_muxflow_cluster_plots import plotter
from cotenant.errors import WorldError
from cotenant.experiment.lab.muxflow_cluster import ALONE, OURS, PHILLY, UNLIMITED, Cluster, Found, play, report_of

SMALL = msgspec.structs.replace(PHILLY, nodes=2, begin_d=0, hours=1.0, drain_h=3.0)


def write_jobs(root: Path) -> None:
    rows = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    rows += [f"2017-10-09 07:{n:02}:00,{600 + 60 * n},1,0,vc{n % 2}" for n in range(24)]
    (root / "philly").mkdir()
    (root / "philly" / "philly_jobs.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    root = tmp_path_factory.mktemp("data")
    write_jobs(root)
    played = [play(SMALL, policy, root, 0) for policy in (OURS, "time-sharing", ALONE, UNLIMITED)]
    assert {facts for _, facts in played} == {played[0][1]}
    return [one for one, _ in played]


def test_every_policy_sees_the_same_load_and_loses_nothing(found: list[Found]) -> None:
    assert len({one.memory[0] for one in found}) == 1
    for one in found:
        assert one.utilization[0] == pytest.approx(found[0].utilization[0], rel=0.05)  # courses are kept in steps
        assert not one.problems
        assert one.utilization[1] >= one.utilization[0]
        assert one.memory[1] >= one.memory[0]
    assert [one.way for one in found] == ["space", "time", "none", "mps"]


def test_sharing_uses_more_and_does_more_and_shares_cost_less_than_none(found: list[Found]) -> None:
    ours, _, alone, unlimited = found
    assert ours.done == 1
    assert ours.offline_speed > alone.offline_speed
    assert ours.utilization[1] > alone.utilization[1]
    assert alone.online_slowdown == pytest.approx(1)
    assert ours.online_slowdown < unlimited.online_slowdown


def test_the_report_names_who_is_better_and_shows_it(found: list[Found], tmp_path: Path) -> None:
    cluster = Cluster(name="small", source="made up", gpus=16, jobs=24, left_out=0, hours=1.0, found=found)
    report = report_of([cluster], 0, quick=True)
    assert report.met["small: GPU utilization rises"]
    assert report.met["small: the books balance under every policy"]
    worse = [msgspec.structs.replace(one, jct_h=0.0) if one.policy == ALONE else one for one in found]
    judged = report_of([msgspec.structs.replace(cluster, found=worse)], 0, quick=True).met
    assert not judged["small: no baseline below 20 % has a shorter mean JCT"]
    assert not judged["small: shorter mean JCT than no sharing"]
    out = io.StringIO()
    show_muxflow_cluster(Console(file=out, width=200), report)
    assert "26 -> 76 %" in out.getvalue()
    assert UNLIMITED in out.getvalue()
    plotter(tmp_path)(report)
    assert "small-use.svg" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "small-cost.svg").exists()


def test_without_traces_it_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(WorldError, match="COTENANT_DATA"):
        run_muxflow_cluster(tmp_path, 0, Console(quiet=True), said.append, quick=True)
    assert [line.split(":")[1].strip() for line in said] == ["openb", "philly"]
