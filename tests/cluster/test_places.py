"""GPUs that several offline jobs may share."""

from cotenant.cluster.model.cluster import JobEnd, JobState
from cotenant.cluster.model.event import StartJob
from cotenant.cluster.plan import plan_on_state
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_steps import GIB, GPU, ClusterScript, replaced, runs, starts

SHARED = replaced(GPU, places=2)
SMALL = {"memory_bytes": 6 * GIB}


def place(script: ClusterScript) -> list[StartJob]:
    """Let rounds start jobs, each of which runs before the next round, until none is started; return the orders."""
    orders: list[StartJob] = []
    for _ in range(4):
        orders += [order for order in script.until(script.now_s + 15) if isinstance(order, StartJob)]
        script.report("a", *map(runs, orders))
    return orders


def test_a_gpu_has_as_many_jobs_as_it_has_places() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    for name in ("one", "two", "three"):
        script.submit(name, **SMALL)
    first, second = place(script)
    assert starts([first, second]) == {"one": ("a", (0,)), "two": ("a", (0,))}
    assert script.job("three").why == "none of 1 GPU is open: 1 held"
    script.report("a", runs(first, end=JobEnd.DONE), runs(second))
    assert starts(script.until(script.now_s + 30)) == {"three": ("a", (0,))}
    assert script.state("two") is JobState.RUNNING


def test_jobs_that_share_a_gpu_fit_into_its_memory_together() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("large", memory_bytes=12 * GIB)
    script.submit("other", memory_bytes=6 * GIB)
    script.submit("small", memory_bytes=3 * GIB)
    assert set(starts(list(place(script)))) == {"large", "small"}
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", replaced(SHARED, places=3))
    script.submit("large", memory_bytes=12 * GIB)
    place(script)
    script.submit("other", memory_bytes=6 * GIB)
    assert starts(script.until(script.now_s + 30)) == {}
    assert script.job("other").why == "none of 1 open GPU is suitable: 1 with too little memory free"


def test_a_job_of_unknown_memory_shares_a_gpu_with_no_other() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("unknown")
    place(script)
    script.submit("known", memory_bytes=1 * GIB)
    assert starts(script.until(script.now_s + 30)) == {}
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("known", memory_bytes=1 * GIB)
    place(script)
    script.submit("unknown")
    assert starts(script.until(script.now_s + 30)) == {}
    assert "it does not say how much memory it needs" in script.job("unknown").why


def test_a_job_is_started_next_to_another_only_when_that_runs() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("one", **SMALL)
    script.submit("two", **SMALL)
    [first] = script.until(30)
    assert script.job("two").why == "none of 1 GPU is open: 1 on which another job is being started"
    script.report("a", runs(first))
    assert starts(script.until(60)) == {"two": ("a", (0,))}


def test_free_gpus_are_used_before_shared_ones() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED, SHARED)
    script.submit("one", **SMALL)
    place(script)
    script.submit("two", **SMALL)
    [(_, taken)] = starts(script.until(script.now_s + 30)).values()
    assert taken != script.job("one").gpus


def test_a_shared_gpu_without_healthy_state_gets_no_further_job() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("one", **SMALL)
    [first] = script.until(15)
    script.reported["a"] = replaced(script.reported["a"], gpus=(replaced(SHARED, offer_ppm=0),))
    script.report("a", runs(first))
    script.submit("two", **SMALL)
    assert starts(script.until(40)) == {}
    assert script.state("one") is JobState.RUNNING


def test_a_smaller_number_of_places_ends_no_job() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    for name in ("one", "two", "three"):
        script.submit(name, **SMALL)
    orders = place(script)
    script.reported["a"] = replaced(script.reported["a"], gpus=(GPU,))
    script.report("a", *map(runs, orders))
    assert [script.state(name) for name in ("one", "two", "three")] == [JobState.RUNNING] * 2 + [JobState.WAITING]
    script.report("a", runs(orders[0], end=JobEnd.DONE), runs(orders[1]))
    assert starts(script.until(script.now_s + 30)) == {}


def test_a_restored_cluster_continues_with_shared_gpus() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    for name in ("one", "two", "three"):
        script.submit(name, **SMALL)
    place(script)
    twin = ClusterMachine()
    twin.handle(script.machine.snapshot(), now=script.now_s * SECOND_NS)
    twin.check()
    assert twin.snapshot() == script.machine.snapshot()


def test_the_plan_names_the_jobs_of_a_gpu_that_no_other_can_share() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("large", memory_bytes=14 * GIB)
    place(script)
    script.submit("other", memory_bytes=6 * GIB)
    [idle] = plan_on_state(script.machine.snapshot(), script.now_s * SECOND_NS, "test").idle
    assert idle.why == "no waiting job can share it with large"
