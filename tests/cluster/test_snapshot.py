"""Tests of cluster snapshots."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import main
from cotenant.cluster.model.cluster import Attempt, AttemptReport
from cotenant.cluster.model.event import NodeDrained, PoolSet
from cotenant.cluster.plan import plan_on_snapshot
from cotenant.cluster.snapshot import decode_snapshot, encode_snapshot
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.errors import ConfigError
from tests.support.cluster_steps import GIB, GPU, ClusterScript, runs
from tests.support.tools import ROOT

EXAMPLE = ROOT / "scenarios" / "cluster-round.json"


def varied_cluster() -> ClusterScript:
    """Return a cluster with jobs and nodes in every state that a snapshot contains."""
    story = ClusterScript()
    story.join("a", GPU, GPU)
    story.join("b", GPU)
    story.tell(PoolSet("p", ("a", "later")))
    for name in ("one", "two", "three"):
        story.submit(name, memory_bytes=GIB)
    orders = story.until(2)
    story.report("a", *(runs(order, 10_000) for order in orders[:1]), seen=1)
    story.join("c", GPU)
    story.report("c", AttemptReport(Attempt("foreign", 0), (0,)))
    story.submit("late", "bob", gpus=2, types=("V100",), avoid=("web",), pool="p", priority=-1_000_000)
    story.submit("member", "bob", gang="g", gang_size=2)
    story.tell(NodeDrained("b", on=True))
    return story


def test_snapshot_round_trip() -> None:
    story = varied_cluster()
    written = encode_snapshot(story.machine.snapshot(), 7_000_000_000)
    state, now = decode_snapshot(written, "x")
    machine = ClusterMachine()
    machine.handle(state, now=now)
    machine.check()
    assert encode_snapshot(machine.snapshot(), now) == written
    expected = {reported.spec.name: (reported.state, reported.node, reported.gpus) for reported in story.machine.jobs()}
    assert {
        reported.spec.name: (reported.state, reported.node, reported.gpus) for reported in machine.jobs()
    } == expected


def test_plan_on_a_snapshot_equals_the_round_of_the_cluster(tmp_path: Path) -> None:
    story = ClusterScript()
    story.join("a", GPU, GPU)
    for name in ("one", "two", "three"):
        story.submit(name)
    file = tmp_path / "snapshot.json"
    file.write_bytes(encode_snapshot(story.machine.snapshot(), 0))
    report = plan_on_snapshot(file)
    story.until(2)
    started = {reported.spec.name: (reported.node, reported.gpus) for reported in story.machine.jobs() if reported.node}
    assert {row.job: (row.node, row.gpus) for row in report.placed} == started
    assert [row.why for row in report.waiting] == ["every suitable GPU is better used for another job"]


def test_example_snapshot_has_every_kind_of_reason() -> None:
    report = plan_on_snapshot(EXAMPLE)
    cluster = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    waiting = {job["name"] for job in cluster["jobs"] if "state" not in job}
    assert {row.job for row in report.placed} | {row.job for row in report.waiting} == waiting
    gpus = {(node["name"], gpu) for node in cluster["nodes"] for gpu in range(len(node["gpus"]))}
    used = {(row.node, gpu) for row in report.placed for gpu in row.gpus}
    assert used | {(row.node, row.gpu) for row in report.idle} == gpus
    assert all(row.why for row in report.waiting)
    assert all(row.why for row in report.idle)
    assert report.value <= report.bound


BAD: dict[str, tuple[Callable[[dict], Any], str]] = {
    "no JSON": (lambda file: "{", "snapshot"),
    "another format": (lambda file: file | {"format": "x"}, "format"),
    "a version of tomorrow": (lambda file: file | {"version": 4}, "version"),
    "an unknown field": (lambda file: file | {"extra": 1}, "snapshot"),
    "a share of more than all": (lambda file: with_job(file, min_share_ppm=2_000_000), "jobs[0].min_share_ppm"),
    "a job on no node": (lambda file: with_job(file, state="running", node="x", on=[0]), "jobs[0].node"),
    "a job on half of its GPUs": (lambda file: with_job(file, state="running", node="n", gpus=2, on=[0]), "jobs[0].on"),
    "a job that waits on a node": (lambda file: with_job(file, node="n"), "jobs[0].node"),
    "a job that is over": (lambda file: with_job(file, state="done"), "jobs[0].state"),
    "a lost job of a node that speaks": (lambda file: with_job(file, state="lost", node="n", on=[0]), "jobs[0].state"),
    "a gang of none": (lambda file: with_job(file, gpus=0), "jobs[0].gpus"),
    "a gang beyond its limit": (lambda file: with_job(file, gpus=65), "jobs[0].gpus"),
    "a priority beyond its limit": (lambda file: with_job(file, priority=9_999_999_999), "jobs[0].priority"),
    "an instant beyond its limit": (lambda file: with_job(file, waited_ns=1 << 63), "jobs[0].waited_ns"),
    "learned from less than nothing": (lambda file: file | {"learned": [["p", "", -2, 1]]}, "learned[0][2]"),
    "learned too much": (lambda file: file | {"learned": [["p", "", 1, 10**9]]}, "learned[0][3]"),
    "a pool of no name": (lambda file: file | {"pools": {"": ["n"]}}, "pools"),
    "a gang of too many": (lambda file: with_job(file, gang="g", gang_size=1001), "jobs[0].gang_size"),
    "less than no moves": (lambda file: file | {"settings": {"moves_limit": -1}}, "settings.moves_limit"),
    "a slowdown that is none": (
        lambda file: file | {"settings": {"slowdown_limit_ppm": -1}},
        "settings.slowdown_limit_ppm",
    ),
    "had less than nothing": (lambda file: file | {"used_gpu_seconds": {"u": -1}}, "used_gpu_seconds[...]"),
    "had more than there is": (lambda file: file | {"used_gpu_seconds": {"u": 1e300}}, "used_gpu_seconds[...]"),
    "no number": (lambda file: file | {"used_gpu_seconds": {"u": float("nan")}}, "snapshot"),
    "a node of too many GPUs": (
        lambda file: file | {"nodes": [{"name": "n", "gpus": file["nodes"][0]["gpus"] * 33}]},
        "nodes[0].gpus",
    ),
    "a stray on no GPU": (lambda file: file | {"nodes": [file["nodes"][0] | {"strays": [2]}]}, "nodes[0].strays"),
    "two of a name": (lambda file: file | {"nodes": file["nodes"] * 2}, "nodes"),
    "a policy that is none": (lambda file: file | {"settings": {"place": "x"}}, "settings.place"),
}


def with_job(file: dict, **fields: object) -> dict:
    return file | {"jobs": [{"name": "j", "user": "u", **fields}]}


@pytest.mark.parametrize("name", BAD)
def test_bad_snapshot_is_rejected_in_one_sentence(name: str, tmp_path: Path) -> None:
    change, field = BAD[name]
    gpu = {"type": "T4", "memory_bytes": GIB, "free_bytes": GIB, "offer_ppm": 10}
    file = {"format": "cotenant-snapshot", "version": 3, "nodes": [{"name": "n", "gpus": [gpu, gpu]}]}
    changed = change(file)
    path = tmp_path / "s.json"
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        plan_on_snapshot(path)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_plan_command_prints_tables_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "plan", str(EXAMPLE)]) == 0
    assert "waiting jobs" in capsys.readouterr().out
    assert main(["cluster", "plan", str(EXAMPLE), "--place", "first-fit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "first-fit"
    assert main(["cluster", "plan", str(EXAMPLE), "--place", "best"]) == 2
