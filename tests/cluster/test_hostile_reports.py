"""Tests of reports of hostile nodes."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster.model.cluster import (
    Attempt,
    AttemptReport,
    ClusterSettings,
    GpuCondition,
    GpuReport,
    JobEnd,
    JobSpec,
    OnlineUse,
)
from cotenant.cluster.model.event import (
    ClusterEvent,
    ClusterStarted,
    ClusterWoke,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
)
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.predict.usage import TaskUse
from tests.support.effort import examples

LARGEST = (1 << 63) - 1
SECOND = 10**9
nodes = st.sampled_from(["n1", "n2"])
jobs = st.sampled_from(["j1", "j2", "j3"])
amounts = st.sampled_from([0, 1, 2, 5, 1 << 30, LARGEST])
parts = st.sampled_from([0, 1, 300_000, 1_000_000])
gpu_numbers = st.lists(st.sampled_from([-(1 << 63), -1, 0, 1, 2, 63, 64, LARGEST, (1 << 64) - 1]), max_size=3).map(
    tuple
)
uses = st.builds(
    TaskUse,
    parts,
    st.lists(st.tuples(parts, parts), max_size=2).map(tuple),
    parts,
    amounts,
    amounts,
    amounts,
    amounts,
    parts,
)
gpus = st.builds(
    GpuReport,
    st.sampled_from(["V100", "T4"]),
    amounts,
    amounts,
    parts,
    st.sampled_from(GpuCondition),
    st.lists(st.builds(OnlineUse, st.sampled_from(["web", "asr"]), uses, amounts), max_size=2).map(tuple),
)
reports = st.builds(
    AttemptReport,
    st.builds(Attempt, jobs, st.sampled_from([0, 1, 2, 3, 4, LARGEST])),
    gpu_numbers,
    parts,
    amounts,
    st.none() | st.sampled_from(JobEnd),
)
reported = st.builds(
    NodeReport,
    nodes,
    st.sampled_from([-(1 << 63), -1, 0, 1, 2, (1 << 64) - 1]),
    st.lists(gpus, max_size=3).map(tuple),
    st.lists(reports, max_size=3).map(tuple),
    st.sampled_from([0, 1, 2, 3, LARGEST]),
)
specs = st.builds(
    JobSpec,
    jobs,
    st.sampled_from(["anna", "ben"]),
    st.none() | uses,
    st.sampled_from(["", "p"]),
    amounts,
    st.sampled_from([1, 2, 64]),
    st.sampled_from([(), ("V100",), ("nix",)]),
    parts,
    st.sampled_from([-100, 0, 100]),
    st.sampled_from([(), ("web",), ("g",)]),
    st.sampled_from(["", "g"]),
)
events: st.SearchStrategy[ClusterEvent] = st.one_of(
    reported,
    reported,
    st.builds(JobSubmitted, specs),
    st.builds(JobCancelled, jobs),
    st.builds(NodeGone, nodes),
    st.builds(NodeDrained, nodes, st.booleans(), st.booleans()),
    st.just(ClusterWoke()),
)
STARTED = ClusterStarted(ClusterSettings(SECOND, 10 * SECOND, 5 * SECOND))


@given(st.lists(st.tuples(events, st.sampled_from([0, SECOND, 20 * SECOND])), max_size=25))
@settings(max_examples=examples(60, 5000))
def test_arbitrary_events_keep_invariants_and_snapshots_restore(
    steps: list[tuple[ClusterEvent, int]],
) -> None:
    machine = ClusterMachine()
    now = SECOND
    machine.handle(STARTED, now=now)
    for event, delay in steps:
        now += delay
        machine.handle(msgspec.convert(msgspec.to_builtins(event), type(event)), now=now)  # within the limits of values
        machine.check()
    restored = ClusterMachine()
    restored.handle(machine.snapshot(), now=now)
    assert restored.snapshot() == machine.snapshot()
