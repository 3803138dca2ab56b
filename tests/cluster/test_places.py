"""GPUs that several offline jobs may share."""

from cotenant.cluster.model.cluster import JobEnd, JobState
from cotenant.cluster.model.event import StartJob
from cotenant.cluster.plan import plan_on_state
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_steps import GIB, GPU, ClusterScript, replaced, runs, starts

SHARED = replaced(GPU, places=2)
SMALL = {"memory_bytes": 6 * GIB}


def test_a_gpu_has_as_many_jobs_as_it_has_places() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    for name in ("one", "two", "three"):
        script.submit(name, **SMALL)
    orders = script.until(30)
    assert starts(orders) == {"one": ("a", (0,)), "two": ("a", (0,))}
    assert script.job("three").why == "none of 1 GPU is open: 1 held"
    first = next(order for order in orders if isinstance(order, StartJob))
    second = next(order for order in orders if isinstance(order, StartJob) and order is not first)
    script.report("a", runs(first), runs(second))
    script.report("a", runs(first, end=JobEnd.DONE), runs(second))
    assert starts(script.until(60)) == {"three": ("a", (0,))}
    assert script.state("two") is JobState.RUNNING


def test_jobs_that_share_a_gpu_fit_into_its_memory_together() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("large", memory_bytes=12 * GIB)
    script.submit("other", memory_bytes=6 * GIB)
    script.submit("small", memory_bytes=3 * GIB)
    assert set(starts(script.until(40))) == {"large", "small"}
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", replaced(SHARED, places=3))
    script.submit("large", memory_bytes=12 * GIB)
    script.until(15)
    script.submit("other", memory_bytes=6 * GIB)
    assert starts(script.until(40)) == {}
    assert script.job("other").why == "none of 1 open GPU is suitable: 1 with too little memory free"


def test_a_job_of_unknown_memory_shares_a_gpu_with_no_other() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("unknown")
    script.until(15)
    script.submit("known", memory_bytes=1 * GIB)
    assert starts(script.until(40)) == {}
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("known", memory_bytes=1 * GIB)
    script.until(15)
    script.submit("unknown")
    assert starts(script.until(40)) == {}
    assert "it does not say how much memory it needs" in script.job("unknown").why


def test_free_gpus_are_used_before_shared_ones() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED, SHARED)
    script.submit("one", **SMALL)
    script.until(15)
    script.submit("two", **SMALL)
    [(_, taken)] = starts(script.until(40)).values()
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
    orders = [order for order in script.until(30) if isinstance(order, StartJob)]
    script.reported["a"] = replaced(script.reported["a"], gpus=(GPU,))
    script.report("a", *map(runs, orders))
    assert [script.state(name) for name in ("one", "two", "three")] == [JobState.RUNNING] * 2 + [JobState.WAITING]
    script.report("a", runs(orders[0], end=JobEnd.DONE), runs(orders[1]))
    assert starts(script.until(60)) == {}


def test_a_restored_cluster_continues_with_shared_gpus() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    for name in ("one", "two", "three"):
        script.submit(name, **SMALL)
    script.until(30)
    twin = ClusterMachine()
    twin.handle(script.machine.snapshot(), now=script.now_s * SECOND_NS)
    twin.check()
    assert twin.snapshot() == script.machine.snapshot()


def test_the_plan_names_the_jobs_of_a_gpu_that_no_other_can_share() -> None:
    script = ClusterScript(lease_ns=3600 * SECOND_NS)
    script.join("a", SHARED)
    script.submit("large", memory_bytes=14 * GIB)
    script.until(15)
    script.submit("other", memory_bytes=6 * GIB)
    [idle] = plan_on_state(script.machine.snapshot(), script.now_s * SECOND_NS, "test").idle
    assert idle.why == "no waiting job can share it with large"
