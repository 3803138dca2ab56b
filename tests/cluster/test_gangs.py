"""Gangs start together or not at all, and jobs of a pool only on its nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cluster.model.cluster import ClusterSettings, GpuReport, JobSpec, JobState
from cotenant.cluster.model.event import (
    ClusterAction,
    ClusterEvent,
    ClusterStarted,
    ClusterWoke,
    JobSubmitted,
    NodeDrained,
    NodeReport,
    PoolSet,
    StartJob,
)
from cotenant.cluster.policy import LIVE
from cotenant.cluster.policy.gang import PATIENCE_NS, place_together
from cotenant.cluster.policy.round import round_of
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.units.instant import SECOND_NS

GIB = 1 << 30
GPU = GpuReport("V100", 32 * GIB, 24 * GIB, 500_000)


class Cluster:
    """A state machine and its clock."""

    def __init__(self, nodes: dict[str, int], place: str = "match") -> None:
        self.machine = ClusterMachine()
        self.now = 0
        self.handle(ClusterStarted(ClusterSettings(round_ns=SECOND_NS, lease_ns=1 << 60, place=place, moves_limit=0)))
        for name, gpus in nodes.items():
            self.handle(NodeReport(name, 1, (GPU,) * gpus))

    def handle(self, event: ClusterEvent) -> list[ClusterAction]:
        actions = self.machine.handle(event, now=self.now)
        self.machine.check()
        return actions

    def submit(self, name: str, **fields: object) -> None:
        self.handle(JobSubmitted(JobSpec(name, "u", **fields)))  # type: ignore[arg-type]

    def round(self) -> dict[str, str]:
        """Hold a round, and return where which job starts."""
        self.now += 20 * SECOND_NS
        return {each.attempt.job: each.node for each in self.handle(ClusterWoke()) if isinstance(each, StartJob)}

    def why(self, name: str) -> str:
        job = self.machine.job(name)
        assert job is not None
        return job.why


@pytest.mark.parametrize("place", [name for name in LIVE if name != "no-sharing"])
def test_a_gang_starts_over_several_nodes_or_not_at_all(place: str) -> None:
    cluster = Cluster({"a": 2, "b": 1}, place)
    for number in range(3):
        cluster.submit(f"member-{number}", gang="g", gang_size=4)
    assert cluster.round() == {}
    assert cluster.why("member-0") == "only 3 of the 4 members of its gang g exist"
    cluster.submit("member-3", gang="g", gang_size=4)
    assert cluster.round() == {}
    assert cluster.why("member-0") == "it waits for a round in which its gang g gets 4 GPUs at once"
    cluster.handle(NodeReport("c", 1, (GPU,)))
    assert sorted(cluster.round().values()) == ["a", "a", "b", "c"]


def test_a_gang_that_does_not_fit_leaves_the_gpus_to_others() -> None:
    cluster = Cluster({"a": 2})
    for number in range(3):
        cluster.submit(f"member-{number}", gang="g", gang_size=3)
    for number in range(2):
        cluster.submit(f"single-{number}")
    assert sorted(cluster.round()) == ["single-0", "single-1"]


def test_priority_decides_between_gangs_and_single_jobs() -> None:
    cluster = Cluster({"a": 2})
    for number in range(2):
        cluster.submit(f"member-{number}", gang="g", gang_size=2, priority=number)
    cluster.submit("urgent", priority=1)
    assert list(cluster.round()) == ["urgent"]  # a gang has the lowest priority of its jobs


def test_a_missing_member_of_a_running_gang_starts_alone() -> None:
    cluster = Cluster({"a": 3})
    for number in range(2):
        cluster.submit(f"member-{number}", gang="g", gang_size=2)
    assert len(cluster.round()) == 2
    cluster.submit("successor", gang="g", gang_size=2)
    assert list(cluster.round()) == ["successor"]


def test_members_that_must_not_share_a_node_are_placed_apart() -> None:
    cluster = Cluster({"a": 2})
    for number in range(2):
        cluster.submit(f"member-{number}", gang="g", gang_size=2, group="x", avoid=("x",))
    assert cluster.round() == {}
    assert all(job.state is JobState.WAITING for job in cluster.machine.job_table.jobs.values())


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), nodes=st.lists(st.integers(1, 3), max_size=4))
def test_no_round_starts_a_part_of_a_gang(sizes: list[int], nodes: list[int]) -> None:
    cluster = Cluster({f"n{number}": gpus for number, gpus in enumerate(nodes)})
    for gang, size in enumerate(sizes):
        for number in range(size):
            cluster.submit(f"g{gang}-{number}", gang=f"g{gang}", gang_size=size)
    for _ in range(3):
        started = [name.split("-")[0] for name in cluster.round()]
        for gang, size in enumerate(sizes):
            assert started.count(f"g{gang}") in {0, size}
    free = sum(nodes) - sum(job.state is not JobState.WAITING for job in cluster.machine.job_table.jobs.values())
    left = {job.spec.gang_size for job in cluster.machine.job_table.jobs.values() if job.state is JobState.WAITING}
    assert all(size > free for size in left), "a gang waits although there are enough GPUs"


def test_a_gang_beyond_its_patience_reserves_gpus() -> None:
    inputs = round_of([[1.0]], [0, 0, 0], [0, 0], sizes=np.ones(2, np.int32))
    jobs = inputs.jobs._replace(waited_ns=np.full(3, 100 * PATIENCE_NS))
    is_free = np.ones(2, bool)
    assert place_together(inputs, [[0, 1, 2]], is_free) == []
    assert is_free.all()
    assert place_together(inputs._replace(jobs=jobs), [[0, 1, 2]], is_free) == []
    assert not is_free.any()


def test_a_pool_restricts_the_nodes_of_a_job() -> None:
    cluster = Cluster({"a": 1, "b": 1})
    cluster.handle(PoolSet("p", ("b", "later")))
    cluster.submit("one", pool="p")
    cluster.submit("two", pool="p")
    cluster.submit("elsewhere", pool="unknown")
    assert cluster.round() == {"one": "b"}
    expected = "1 on nodes that its node selector, affinity or tolerations exclude"
    assert cluster.why("two") == f"none of 1 open GPU is suitable: {expected}"
    cluster.handle(NodeReport("later", 1, (GPU,)))
    assert cluster.round() == {"two": "later"}
    cluster.handle(PoolSet("unknown", ("a",)))
    assert cluster.round() == {"elsewhere": "a"}


def test_pools_and_gangs_survive_a_snapshot() -> None:
    cluster = Cluster({"a": 1, "b": 2})
    cluster.handle(PoolSet("p", ("b",)))
    for number in range(2):
        cluster.submit(f"member-{number}", gang="g", gang_size=2, pool="p")
    other = ClusterMachine()
    other.handle(cluster.machine.snapshot(), now=cluster.now)
    other.check()
    assert other.snapshot() == cluster.machine.snapshot()
    cluster.now += 20 * SECOND_NS
    assert other.handle(ClusterWoke(), now=cluster.now) == cluster.handle(ClusterWoke())


def test_a_drain_may_keep_the_jobs() -> None:
    cluster = Cluster({"a": 2})
    cluster.submit("one")
    assert cluster.round() == {"one": "a"}
    assert cluster.handle(NodeDrained("a", on=True, keeps_jobs=True)) == []
    cluster.submit("two")
    assert cluster.round() == {}
    assert cluster.why("two") == "none of 2 GPUs is open: 1 held, 1 of a drained node"
    cluster.handle(NodeDrained("a", on=False, keeps_jobs=True))
    assert cluster.round() == {"two": "a"}
