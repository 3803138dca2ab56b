"""Tests of cluster scenarios."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from cotenant.cli.simulate import simulate_cluster_file
from cotenant.cluster.sim.scenario import decode_cluster, is_of_cluster
from cotenant.errors import ConfigError
from cotenant.simulate.cluster import simulate_cluster
from cotenant_lab.bench.cluster import bench_cluster, measure
from tests.support.tools import ROOT, run, run_or_fail

WORLD = 'kind = "cluster"\nseed = 1\nduration = "1h"\n'
NODES = WORLD + "[[nodes]]\ncount = 2\ngpus = 2\n"
JOBS = NODES + '[[jobs]]\nname = "a"\ncount = 6\nwork = "5min"\n'

# name: the text, the line of the mistake, its field
BAD_SCENARIOS = {
    "no nodes": (WORLD, None, "nodes"),
    "no seed": ('kind = "cluster"\nduration = "1h"\n', None, "seed"),
    "a negative seed": ('kind = "cluster"\nseed = -1\nduration = "1h"\n', 2, "seed"),
    "shorter than a report": (WORLD.replace("1h", "1min") + "[[nodes]]\ncount = 1\n", 3, "duration"),
    "reports all the time": (WORLD + 'report = "1ms"\n[[nodes]]\ncount = 1\n', 4, "report"),
    "rounds all the time": (NODES + '[cluster]\nround = "1ms"\n', 8, "cluster.round"),
    "a trough above the peak": (NODES + '[online]\npeak = "20%"\ntrough = "30%"\n', 9, "online.trough"),
    "two sorts of one name": (JOBS + '[[jobs]]\nname = "a"\ncount = 1\n', 12, "jobs[1].name"),
    "two sorts of nodes of one name": (NODES + "[[nodes]]\ncount = 1\n", 7, "nodes[1].name"),
    "a node with no GPU": (WORLD + "[[nodes]]\ncount = 1\ngpus = 0\n", 6, "nodes[0].gpus"),
    "a gang beyond its limit": (NODES + '[[jobs]]\nname = "a"\ncount = 1\ngpus = 65\n', 10, "jobs[0].gpus"),
    "an unknown key": (NODES + "[failures]\nkills = 3\n", 8, "failures.kills"),
    "away for no time": (NODES + '[failures]\nnode_downtime = "0s"\n', 8, "failures.node_downtime"),
    "never saved": (WORLD + 'checkpoint = "0s"\n[[nodes]]\ncount = 1\n', 4, "checkpoint"),
    "nodes twice": (NODES + '[trace]\nformat = "csv"\nnodes = "n.csv"\n', 9, "trace.nodes"),
    "nodes of Philly": (WORLD + '[trace]\nformat = "philly"\nnodes = "n.csv"\n', 6, "trace.nodes"),
    "services of our own nodes": (
        WORLD + '[trace]\nformat = "csv"\nnodes = "n.csv"\nservices = "p.csv"\n',
        7,
        "trace.services",
    ),
    "a trace of nothing": (NODES + '[trace]\nformat = "csv"\n', 7, "trace.jobs"),
    "a trace of another format": (NODES + '[trace]\nformat = "xml"\njobs = "j"\n', 8, "trace.format"),
}


@pytest.mark.parametrize("name", BAD_SCENARIOS)
def test_bad_scenario_is_rejected_in_one_sentence(name: str) -> None:
    text, line, field = BAD_SCENARIOS[name]
    with pytest.raises(ConfigError) as caught:
        decode_cluster(text, "w.toml")
    assert caught.value.field == field
    assert caught.value.where == (f"w.toml:{line}" if line else "w.toml")
    assert "\n" not in str(caught.value)


# name: what is added, a word of the sentence
BAD_WORLDS = {
    "no such policy": ('[cluster]\nplace = "best"\n', "cluster.place"),
    "no such profile": ('[[jobs]]\nname = "b"\ncount = 1\nprofile = "none"\n', "bert-b2"),
    "no such file": ('[trace]\nformat = "csv"\njobs = "none.csv"\n', "trace.jobs"),
}


@pytest.mark.parametrize("name", BAD_WORLDS)
def test_impossible_cluster_is_rejected_in_one_sentence(name: str) -> None:
    addition, word = BAD_WORLDS[name]
    with pytest.raises(ConfigError, match=word):
        simulate_cluster(decode_cluster(JOBS + addition, "w.toml"), Path("w.toml"))


def test_unknown_mode_is_rejected() -> None:
    text = JOBS.replace("seed = 1", 'seed = 1\nmode = "magic"')
    with pytest.raises(ConfigError, match="mode"):
        simulate_cluster(decode_cluster(text, "w.toml"), Path("w.toml"))


def test_only_a_scenario_of_kind_cluster_is_of_a_cluster() -> None:
    assert is_of_cluster(WORLD)
    assert not is_of_cluster("seed = 1\n")
    assert not is_of_cluster("seed = \n")


def test_trace_in_csv_format_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "job,user,submit_s,work_s,gpus,profile,memory_mib,types\n"
        "early,u,10,60,1,,1000,\na,u,3700,60,1,bert-b2,1000,\nb,v,3650.5,120,2,,1000,T4\nhuge,v,3700,60,9,,1000,\n"
    )
    (tmp_path / "nodes.csv").write_text("node,type,gpus,memory_mib,online\nn,T4,2,16384,0|0.5\n")
    text = WORLD + '[trace]\nformat = "csv"\njobs = "jobs.csv"\nnodes = "nodes.csv"\nbegin = "1h"\n'
    world = tmp_path / "w.toml"
    world.write_text(text)
    played = simulate_cluster(decode_cluster(text, str(world)), world)
    assert played.outcome.left_out == 1
    assert [spec.name for spec in played.world.sim_jobs.specs] == ["b", "a"]
    assert played.world.sim_jobs.submit_ns.tolist() == [50_500_000_000, 100_000_000_000]
    assert played.world.fleet.service.tolist()[0] == -1
    assert played.world.fleet.service.tolist()[1] >= 0
    assert played.outcome.problems == []


@pytest.mark.parametrize("sort", ["philly", "philly-1"])
def test_duplicate_names_of_two_sources_are_rejected(sort: str, tmp_path: Path) -> None:
    (tmp_path / "philly.csv").write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        + "".join(f"2017-10-09 07:0{number}:00,60,1,60,a\n" for number in range(3))
    )
    text = NODES + '[trace]\nformat = "philly"\njobs = "philly.csv"\n' + f'[[jobs]]\nname = "{sort}"\ncount = 2\n'
    world = tmp_path / "w.toml"
    scenario = decode_cluster(text, str(world))
    if sort == "philly":
        with pytest.raises(ConfigError, match=r"jobs = 'philly-0': .*contain a job of this name"):
            simulate_cluster(scenario, world)
    else:
        assert simulate_cluster(scenario, world).outcome.problems == []


def test_page_is_self_contained_and_has_every_plot(tmp_path: Path) -> None:
    world, page = tmp_path / "w.toml", tmp_path / "out.html"
    world.write_text(JOBS)
    lines: list[str] = []
    outcome = simulate_cluster_file(world, 5, str(page), Console(file=None, stderr=True), lines.append)
    assert outcome.seed == 5
    assert sum(" start " in line for line in lines) >= outcome.jobs["done"]
    text = page.read_text()
    assert not re.search(r"https?:|src=|url\(|<link|<script", text)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    labels = [re.search(r"aria-label='([^']*)'", drawing).group(1) for drawing in drawings]  # type: ignore[union-attr]
    assert labels == [
        "utilization over time",
        "SM activity over time",
        "memory over time",
        "jobs over time",
        "distribution of job completion times",
        "online slowdown over time",
        "distribution of online slowdown",
        "utilization of GPUs over time",
    ]
    for drawing in drawings:
        shapes = list(ET.fromstring(drawing.replace("role=img", "")))  # whole, or this raises
        assert any(shape.tag in {"polyline", "rect"} for shape in shapes)
        assert "nan" not in drawing


def test_command_prints_table_or_json_and_rejects_flags_without_effect(tmp_path: Path) -> None:
    world = tmp_path / "w.toml"
    world.write_text(JOBS)
    command: list[str | Path] = [sys.executable, "-m", "cotenant", "simulate", world]
    said = run_or_fail([*command, "--json"], ROOT)
    assert "w: 1.0 of 1.0 h" in said  # how far it is, on stderr
    reported = json.loads(said[said.index("{") :])
    assert reported["jobs"]["done"]
    assert reported["problems"] == []
    refused = run([*command, "--journal", "x"], ROOT)
    assert refused.returncode == 2
    assert "--journal" in refused.stdout


def test_unwritable_page_is_rejected_before_the_run(tmp_path: Path) -> None:
    world = tmp_path / "w.toml"
    world.write_text(JOBS)
    with pytest.raises(ConfigError, match="--report"):
        simulate_cluster_file(world, None, str(tmp_path / "none" / "out.html"), Console(stderr=True), None)


def test_an_interrupted_run_leaves_the_page_of_the_run_before(tmp_path: Path) -> None:
    world, page = tmp_path / "w.toml", tmp_path / "out.html"
    world.write_text(JOBS)
    page.write_text("the page of the run before")

    def interrupted(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_cluster_file(world, 5, str(page), Console(stderr=True), interrupted)
    assert page.read_text() == "the page of the run before"
    assert {path.name for path in tmp_path.iterdir()} == {"w.toml", "out.html"}


def test_bench_reports_its_counts() -> None:
    size = measure(16, 1, 0)
    assert (size.gpus, size.jobs) == (16, 80)
    assert size.rounds >= 12
    assert size.reports >= 2 * 12
    assert 0 < size.round_ms_p50 <= size.round_ms_p99 <= size.round_ms_max
    assert size.done <= size.started
    assert measure(16, 1, 0).decisions == size.decisions


def test_bench_runs_each_size_in_its_own_process() -> None:
    progress: list[tuple[int, int]] = []
    report = bench_cluster(lambda _: None, lambda done, total: progress.append((done, total)), quick=True)
    assert [size.gpus for size in report.sizes] == [40, 160]
    assert progress[-1][0] == progress[-1][1]
    assert report.met == {}
