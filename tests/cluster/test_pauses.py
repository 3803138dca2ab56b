"""Tests of delays after evictions."""

from cotenant.cluster.model.cluster import JobEnd
from cotenant.cluster.model.event import StartJob
from cotenant.cluster.state.cluster import ClusterMachine
from tests.support.cluster_steps import ClusterScript, runs


def evict(story: ClusterScript, order: object, after_s: int = 0) -> int:
    """Let the node evict the job after `after_s` seconds and return the second of the eviction."""
    assert isinstance(order, StartJob)
    story.report("a", runs(order), seen=order.attempt.number)
    for _ in range(after_s // 10):
        story.now_s += 10
        story.report("a", runs(order), seen=order.attempt.number)
    story.report("a", runs(order, end=JobEnd.EVICTED), seen=order.attempt.number)
    return story.now_s


def next_start(story: ClusterScript) -> StartJob:
    for _ in range(1_000):
        for action in story.until(story.now_s + 1):
            if isinstance(action, StartJob):
                return action
        story.report("a", seen=99)
    raise AssertionError("the job is never started again")


def test_pause_after_eviction_doubles_and_resets_after_a_long_run() -> None:
    story = ClusterScript(round_ns=1_000_000_000)
    story.join("a")
    story.submit("job")
    order = next_start(story)
    pauses = []
    for after_s in (0, 0, 0, 0, 0, 0, 0, 700, 0):
        evicted_at = evict(story, order, after_s)
        order = next_start(story)
        pauses.append(story.now_s - evicted_at)
    assert [round(pause, -1) for pause in pauses] == [30, 60, 120, 240, 480, 600, 600, 30, 60]


def test_snapshot_keeps_the_number_of_evictions() -> None:
    story = ClusterScript(round_ns=1_000_000_000)
    story.join("a")
    story.submit("job")
    for _ in range(2):
        evict(story, next_start(story))
    machine = ClusterMachine()
    machine.handle(story.machine.snapshot(), now=story.now_s)
    assert machine.job_table.jobs["job"].pushed_out == 2
    assert machine.snapshot().jobs == story.machine.snapshot().jobs
