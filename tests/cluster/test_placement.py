"""Tests of the placement by the state machine."""

import pytest

from cotenant.cluster.model.cluster import GpuCondition, GpuReport, JobEnd, OnlineUse
from cotenant.cluster.model.event import JobCancelled, NodeReport, StartJob, StopJob
from cotenant.cluster.state import inventory as cluster_floor
from cotenant.cluster.state import jobs as cluster_jobs
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.predict.usage import TaskUse
from tests.support.cluster_steps import BUSY, GIB, GPU, ClusterScript, replaced, runs, starts


def test_hard_constraints() -> None:
    small = GpuReport("T4", 16 * GIB, 4 * GIB, 300_000)
    served = replaced(GPU, online=(OnlineUse("web"),), offer_ppm=900_000)
    story = ClusterScript(slowdown_limit_ppm=100_000_000)
    story.join("a", small)
    story.join("b", served, replaced(GPU, condition=GpuCondition.UNHEALTHY), replaced(GPU, offer_ppm=0))
    requirements_by_job: dict[str, dict[str, object]] = {
        "memory": {"memory_bytes": 5 * GIB},
        "type": {"types": ("T4",)},
        "share": {"min_share_ppm": 400_000},
        "company": {"avoid": ("web",)},
        "gang": {"gpus": 2},
        "nowhere": {"types": ("H100",)},
    }
    placed: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, requirements in requirements_by_job.items():
        story.submit(name, **requirements)
        placed |= starts(story.until(story.now_s + 11))
        story.tell(JobCancelled(name))
        for node, attempts in [("a", ()), ("b", ())]:
            story.now_s += 1
            story.tell(NodeReport(node, 1, story.reported[node].gpus, attempts, 99))
    assert placed == {
        "memory": ("b", (0,)),
        "type": ("a", (0,)),
        "share": ("b", (0,)),
        "company": ("a", (0,)),
    }


def test_gang_gets_all_of_its_gpus_on_one_node_or_none() -> None:
    story = ClusterScript()
    story.join("a")
    story.join("b")
    story.submit("gang", gpus=2)
    assert starts(story.until(15)) == {}
    assert "no node has 2 suitable open GPUs" in story.job("gang").why
    story.join("c", GPU, GPU, GPU)
    assert list(starts(story.until(30)).values()) == [("c", (0, 1))]


def test_groups_that_avoid_each_other_share_no_node() -> None:
    story = ClusterScript()
    story.join("a", GPU, GPU)
    story.join("b", GPU, GPU)
    story.submit("first", group="g", avoid=("g",))
    story.submit("second", group="g", avoid=("g",))
    story.submit("third", group="g", avoid=("g",))
    orders = story.until(15)
    assert {node for node, _ in starts(orders).values()} == {"a", "b"}
    assert sorted(story.state(name).value for name in ("first", "second", "third")) == [
        "starting",
        "starting",
        "waiting",
    ]


def test_job_of_higher_priority_is_placed_first() -> None:
    story = ClusterScript()
    story.submit("early")
    story.submit("urgent", priority=5)
    story.join("a")
    assert list(starts(story.until(5))) == ["urgent"]


def test_fair_sharing_prefers_users_with_less_gpu_time() -> None:
    story = ClusterScript(fair=True)
    story.join("a")
    story.submit("long")
    (order,) = story.until(5)
    story.report("a", runs(order), seen=1)
    story.submit("more")
    story.submit("newcomer", "bob")
    story.until(100)
    story.report("a", runs(order, end=JobEnd.DONE), seen=1)
    assert list(starts(story.until(111))) == ["newcomer"]


def test_job_moves_to_a_faster_gpu_that_stays_reserved_for_it() -> None:
    story = ClusterScript(slowdown_limit_ppm=100_000_000)
    crowded = replaced(GPU, online=(BUSY,), offer_ppm=200_000)
    story.join("slow", crowded)
    story.submit("job", use=TaskUse(950_000, ((800_000, 1_000_000),), 500_000, 100_000))
    (order,) = story.until(5)
    story.report("slow", runs(order, 100_000), seen=1)
    story.now_s = 13
    story.join("fast")
    story.report("slow", runs(order, 200_000), seen=1)
    (stop,) = story.until(25)
    assert isinstance(stop, StopJob)
    assert (stop.node, stop.why) == ("slow", "it is moved to a faster GPU of fast")
    story.submit("thief")
    story.report("fast")
    assert starts(story.until(35)) == {}
    (restart,) = story.report("slow", runs(order, 300_000, JobEnd.EVICTED), seen=1)
    assert isinstance(restart, StartJob)
    assert (restart.node, restart.progress_ppm) == ("fast", 300_000)


def test_job_is_not_moved_for_a_small_gain() -> None:
    story = ClusterScript()
    story.join("a", replaced(GPU, offer_ppm=950_000))
    story.submit("job", use=TaskUse(950_000, ((1_000_000, 1_000_000),), 500_000, 100_000))
    (order,) = story.until(5)
    story.report("a", runs(order), seen=1)
    story.join("b")
    for second in range(10, 100, 10):
        assert story.until(second) == []
        story.report("a", runs(order), seen=1)
        story.report("b")


def test_measured_speeds_change_predictions() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job", profile="bert")
    (order,) = story.until(5)
    story.report("a", runs(order, 100_000), seen=1)
    assert story.machine.pair_weights.predictor.learned() == ()
    story.report("a", runs(order, 200_000, rate_ppm=300_000), seen=1)
    learned = story.machine.pair_weights.predictor.learned()
    assert {profile for profile, *_ in learned} == {"bert"}
    story.report("a", runs(order, 300_000, rate_ppm=310_000), seen=1)
    assert story.machine.pair_weights.predictor.learned() == learned, "a similar speed is not learned again"


def test_gpu_kinds_change_with_avoided_tenants() -> None:
    story = ClusterScript()
    web, ads = (replaced(GPU, online=(OnlineUse(name),)) for name in ("web", "ads"))
    story.join("a", web, ads)
    assert len(story.machine.inventory.kinds) == 1, "names that no job avoids do not distinguish kinds"
    story.submit("job", avoid=("ads",), min_share_ppm=1_000_000)
    story.until(5)
    assert [kind.named for kind in story.machine.inventory.kinds if kind.named] == [("ads",)]


def test_unused_kinds_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_floor, "_KINDS_LIMIT", 4)
    monkeypatch.setattr(cluster_jobs, "_KINDS_LIMIT", 4)
    story = ClusterScript()
    story.join("a", GPU, GPU)
    for number in range(12):
        gpus = tuple(replaced(GPU, offer_ppm=offer * 50_000) for offer in (number + 1, number + 2))
        story.reported["a"] = NodeReport("a", 1, gpus)
        story.report("a", seen=99)
        story.submit(f"job{number}", memory_bytes=number + 1, types=("T4",))
        if number > 2:
            story.tell(JobCancelled(f"job{number - 2}"))
        story.until(story.now_s + 12)
    assert len(story.machine.inventory.kinds) < 8
    assert len(story.machine.job_table.kinds) < 12
    story.submit("last", types=("V100",))
    assert starts(story.until(story.now_s + 12)) == {"last": ("a", (1,))}


def test_job_of_unknown_use_is_placed_with_online_work_last() -> None:
    story = ClusterScript()
    unprofiled = OnlineUse("stranger", TaskUse(active_ppm=500_000))
    story.join("a", replaced(GPU, online=(unprofiled,), offer_ppm=800_000))
    story.join("b")
    story.submit("unknown")
    story.submit("another")
    assert starts(story.until(2)) == {"unknown": ("b", (0,)), "another": ("a", (0,))}


def test_job_that_slows_online_work_too_much_is_not_placed() -> None:
    story = ClusterScript(slowdown_limit_ppm=0)
    story.join("a", replaced(GPU, online=(BUSY,), offer_ppm=500_000))
    story.submit("heavy", use=TaskUse(1_000_000, ((1_000_000, 1_000_000),), 1_000_000, 5_000_000, active_ppm=1_000_000))
    assert starts(story.until(15)) == {}
    assert story.job("heavy").why == ("none of 1 open GPU is suitable: 1 would make online work too slow, as predicted")


def test_snapshot_keeps_the_reservation_of_a_move() -> None:
    story = ClusterScript(slowdown_limit_ppm=100_000_000)
    story.join("slow", replaced(GPU, online=(BUSY,), offer_ppm=200_000))
    story.submit("job", use=TaskUse(950_000, ((800_000, 1_000_000),), 500_000, 100_000))
    (order,) = story.until(5)
    story.report("slow", runs(order, 100_000), seen=1)
    story.now_s = 13
    story.join("fast")
    story.report("slow", runs(order, 200_000), seen=1)
    story.until(15)
    assert [job.reserved_on for job in story.machine.snapshot().jobs] == ["fast"]
    stored, story.machine = story.machine.snapshot(), ClusterMachine()
    story.tell(stored)
    (restart,) = story.report("slow", runs(order, 300_000, JobEnd.EVICTED), seen=1)
    assert starts([restart]) == {"job": ("fast", (0,))}


def test_prices_of_a_fuller_round_do_not_delay_jobs() -> None:
    story = ClusterScript()
    story.join("a", GPU, GPU)
    for name in ("one", "two", "three"):
        story.submit(name, use=TaskUse(950_000, ((800_000, 1_000_000),), 500_000, 100_000))
    orders = story.until(2)
    assert any(story.machine.inventory.prices), "more jobs than GPUs leave prices"
    for name in ("one", "two", "three"):
        story.tell(JobCancelled(name))
    story.report("a", *(runs(order, end=JobEnd.EVICTED) for order in orders), seen=2)
    story.submit("modest")
    assert list(starts(story.until(4))) == ["modest"]


def test_weight_of_unknown_job_approaches_its_measured_speed() -> None:
    story = ClusterScript()
    story.join("a", replaced(GPU, online=(BUSY,), offer_ppm=900_000))
    story.submit("job", profile="bert")
    (order,) = story.until(5)
    machine = story.machine

    def weight() -> float:
        kind = machine.job_table.kinds[machine.job_table.jobs["job"].kind]
        return float(
            machine.pair_weights.table([kind], [machine.inventory.kinds[machine.inventory.kind[0]]], 1 << 40).weight[
                0, 0
            ]
        )

    first_weight = weight()
    predictor = machine.pair_weights.predictor
    story.report("a", runs(order, 100_000), seen=1)
    for step in range(20):
        story.report("a", runs(order, 200_000 + step, rate_ppm=(600_000, 400_000)[step % 2]), seen=1)
    learned = sum(times for _, co_runners, times, _ in predictor.learned() if not co_runners)
    assert learned == 20
    assert first_weight < 0.15
    assert 0.4 < weight() < 0.6
