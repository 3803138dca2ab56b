"""Tests of live clusters of processes: placement, eviction, and kills."""

from __future__ import annotations

import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from cotenant.cli.render.requests import served_so_far
from cotenant.cluster.model.cluster import JobReport, JobState
from cotenant.gate.grant import Kind
from cotenant.node.client.connection import read_activity
from tests.support.cluster_processes import PATIENCE_S, SERVICE, STEPS, Cluster, clusters, eventually
from tests.support.node_processes import NodeHarness

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]
JOBS = [f"job-{number:02d}" for number in range(20)]
NODES = ("n1", "n2", "n3")
GIB = 1 << 30


def requests_served(node_harness: NodeHarness) -> int:
    tenant_list = node_harness.tenant_list()
    if tenant_list is None:
        return 0
    activity = read_activity(node_harness.directories)
    return sum(one.requests for one in served_so_far(activity, tenant_list).values())


def has_served_more(node_harness: NodeHarness, before: int) -> bool:
    return requests_served(node_harness) > before


def has_online_work_only(node_harness: NodeHarness) -> bool:
    tenant_list = node_harness.tenant_list()
    return tenant_list is not None and {view.tenant.grant.kind for view in tenant_list.tenants} == {Kind.ONLINE}


def running(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """Where each job runs, and its attempt."""
    reported = cluster.jobs()
    return {name: (job.node, job.attempt) for name, job in reported.items() if job.state is JobState.RUNNING}


def all_running(cluster: Cluster, many: int) -> dict[str, tuple[str, int]]:
    """The same, once so many run; nothing before."""
    found = running(cluster)
    return found if len(found) == many else {}


def all_done(cluster: Cluster) -> dict[str, JobReport]:
    """All jobs, once all are done; nothing before."""
    reported = cluster.jobs()
    return reported if {job.state for job in reported.values()} == {JobState.DONE} else {}


def check_log(cluster: Cluster, name: str) -> int:
    """Every step once and in order, one attempt after the other; how many attempts there were."""
    lines = cluster.lines(name)
    assert [line.number for line in lines if line.word == "step"] == list(range(STEPS)), lines
    assert not [line for line in lines if line.word == "overlap"], "two attempts ran at once"
    assert all(one.attempt <= other.attempt for one, other in pairwise(lines)), "an attempt ran after a later one"
    begins = [line for line in lines if line.word == "begin"]
    assert len({line.attempt for line in begins}) == len(begins), "an attempt began twice"
    for begin in begins:
        assert begin.number == len([line for line in lines if line.word == "step" and line.attempt < begin.attempt])
    return len(begins)


def test_kills_neither_lose_nor_repeat_work_of_jobs() -> None:
    with clusters(nodes=3, gpus=2) as cluster:
        story(cluster)


def test_disconnected_node_ends_its_job_before_a_restart_elsewhere() -> None:
    """Its agent stands still, as behind a broken network: only the supervisor is left to keep the lease."""
    with clusters(nodes=2, gpus=1, lease="3s", grace="9s") as cluster:
        daemons = {name: cluster.start_node(name) for name in ("n1", "n2")}
        cluster.submit("job", GIB)
        [(there, attempt)] = eventually(lambda: cluster.half_way() and running(cluster)).values()
        agent = eventually(lambda: cluster.agent_of(there))
        assert agent in children_of(daemons[there])
        os.kill(agent, signal.SIGSTOP)
        try:
            eventually(lambda: any(job.attempt > attempt for job in cluster.jobs().values()))
            cluster.half.touch()
            eventually(lambda: all_done(cluster))
        finally:
            os.kill(agent, signal.SIGCONT)
        eventually(partial(cluster.is_clear, there))  # it comes back, and says how that ended
        assert check_log(cluster, "job") > 1
        assert {job.state for job in eventually(cluster.jobs).values()} == {JobState.DONE}


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def story(cluster: Cluster) -> None:
    daemons = {name: cluster.start_node(name) for name in NODES}
    for node_harness in cluster.nodes.values():
        given = ("--online", "--slo", "50ms", "--memory", "1GiB", "--gpu", "soft:0")
        node_harness.tenant("web", *given, "--", *SERVICE)
    slots = {name: cluster.nodes[name].slots()["web"] for name in NODES}
    for name in JOBS[:-1]:
        cluster.submit(name, 8 * GIB)
    eventually(lambda: len(cluster.half_way()) == 6)  # one on every GPU, in the middle of its work
    before = eventually(lambda: all_running(cluster, 6))
    assert sorted(node for node, _ in before.values()) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    served = {name: requests_served(cluster.nodes[name]) for name in NODES}

    # Online work needs memory on a GPU of the third node: its node evicts the job there.
    big = cluster.nodes["n3"].tenant("big", "--online", "--memory", "14GiB", "--gpu", "soft:1", "--", "sleep", "600")
    [evicted] = eventually(lambda: [name for name, job in cluster.jobs().items() if job.evictions])
    assert before[evicted][0] == "n3"

    # The agent of the second node is killed, the daemon of the first (its agent goes with it), and then the controller.
    agent = eventually(lambda: cluster.agent_of("n2"))
    cluster.kill(agent)
    eventually(lambda: cluster.agent_of("n2") not in {None, agent})
    cluster.kill(daemons["n1"])
    cluster.start_node("n1")
    cluster.kill(cluster.controller_pid)
    cluster.start_controller()
    others = {name: where for name, where in before.items() if name != evicted}
    eventually(lambda: others.items() <= running(cluster).items())  # no other was even started anew

    # A supervisor is killed: its job ends with it, and goes on elsewhere or later.
    [first, *_] = [record for record in cluster.attempts("n2") if record.end() is None]
    order, supervisor = first.order(), first.supervisor()
    assert order is not None
    assert supervisor is not None
    orphan = order.attempt.job
    cluster.kill(supervisor.pid)
    eventually(lambda: any(name == orphan and job.evictions for name, job in cluster.jobs().items()))
    big.send_signal(signal.SIGTERM)
    big.wait(PATIENCE_S)

    cluster.submit(JOBS[-1], 8 * GIB, gpus=2)
    cluster.half.touch()
    reported = eventually(lambda: all_done(cluster))
    assert sorted(reported) == JOBS
    attempts = {name: check_log(cluster, name) for name in JOBS}
    assert all(job.progress_ppm == 1_000_000 and not job.failures for job in reported.values())
    assert attempts[evicted] > 1
    assert attempts[orphan] > 1
    assert {attempts[name] for name in others if name != orphan} == {1}, "what was not evicted was not disturbed"
    for name, node_harness in cluster.nodes.items():
        eventually(partial(cluster.is_clear, name))  # every end was taken note of
        eventually(partial(has_online_work_only, node_harness))
        assert eventually(node_harness.slots)["web"] == slots[name], "online work kept its place all the while"
        eventually(partial(has_served_more, node_harness, served[name]))
