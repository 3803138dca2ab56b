"""The controller evicts offline pods for online pods that find no GPU, and keeps the room until they are scheduled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.kubernetes_cluster import TestCluster


def phase(cluster: TestCluster, uid: str) -> str:
    return str(cluster.pods()[uid]["status"]["phase"]) if uid in cluster.pods() else "gone"


def test_an_online_pod_gets_the_place_of_an_offline_pod() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    offline = cluster.add_pod(memory="24GiB")
    cluster.start_controller()
    cluster.settle(3)
    assert phase(cluster, offline) == "Running"
    online = cluster.add_pod(is_gated=False, memory="16GiB", share="30%")
    cluster.settle(15)
    assert phase(cluster, online) == "Running"
    assert phase(cluster, offline) == "gone"
    events = [event for event in cluster.api.objects["events"].values() if event["reason"] == "EvictedForOnline"]
    assert [event["involvedObject"]["uid"] for event in events] == [offline]
    assert "the online pod default/job-2 needs" in events[0]["message"]


def test_offline_pods_are_placed_next_to_the_kept_room() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.add_pod()
    cluster.start_controller()
    cluster.settle(3)
    online = cluster.add_pod(is_gated=False, memory="20GiB", share="30%")
    successor, large = cluster.add_pod(), cluster.add_pod(memory="16GiB")
    cluster.settle(30)
    assert phase(cluster, online) == "Running"
    assert phase(cluster, successor) == "Running"
    assert cluster.is_gated(large)
    memory = cluster.claims()[successor]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"]
    assert memory == f"{12 << 10}Mi"


def test_nothing_is_evicted_if_it_would_not_help() -> None:
    cluster = TestCluster(nodes=1, gpus=2)
    cluster.start_controller()
    first = cluster.add_pod(is_gated=False, memory="8GiB", share="80%")
    second = cluster.add_pod(is_gated=False, memory="8GiB", share="80%")
    cluster.settle(3)
    offline = [cluster.add_pod(memory="8GiB") for _ in range(2)]
    cluster.settle(3)
    third = cluster.add_pod(is_gated=False, memory="8GiB", share="30%")
    cluster.settle(30)
    assert [phase(cluster, uid) for uid in (first, second, *offline)] == ["Running"] * 4
    assert phase(cluster, third) == "Pending"


def test_a_pod_that_waits_for_something_else_evicts_nothing() -> None:
    cluster = TestCluster(nodes=2, gpus=1)
    offline = [cluster.add_pod(memory="24GiB") for _ in range(2)]
    cluster.start_controller()
    cluster.settle(3)
    online = cluster.add_pod(is_gated=False, memory="4GiB", share="30%")
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.schedule = lambda: None  # type: ignore[method-assign]
    cluster.change("pods", ("default", "job-3"), lambda pod: pod["status"].update(conditions=[refused]))
    cluster.settle(20)
    assert [phase(cluster, uid) for uid in offline] == ["Running"] * 2
    assert phase(cluster, online) == "Pending"


def test_the_offline_pod_of_the_lowest_priority_is_evicted() -> None:
    cluster = TestCluster(nodes=2, gpus=1)
    offline = [cluster.add_pod(memory="24GiB") for _ in range(2)]
    cluster.change("pods", ("default", "job-1"), lambda pod: pod["spec"].update(priority=1000))
    cluster.start_controller()
    cluster.settle(3)
    online = cluster.add_pod(is_gated=False, memory="16GiB", share="30%")
    cluster.settle(15)
    assert phase(cluster, online) == "Running"
    assert [phase(cluster, uid) for uid in offline] == ["Running", "gone"]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 31), st.integers(1, 100)), min_size=1, max_size=10),
    st.integers(1, 3),
)
def test_no_online_pod_waits_because_of_offline_pods(pods: list[tuple[bool, int, int]], gpus: int) -> None:
    cluster = TestCluster(nodes=1, gpus=gpus)
    cluster.start_controller()
    online = {}
    for is_online, gib, percent in pods:
        if is_online:
            uid = cluster.add_pod(is_gated=False, memory=f"{gib}GiB", share=f"{percent}%")
            online[uid] = {"memory": f"{gib << 10}Mi", "share": str(percent)}
        else:
            cluster.add_pod(memory=f"{gib}GiB")
        cluster.settle(12)
    for uid, capacity in online.items():
        has_room = any(cluster.fits(uuid, capacity, is_next_to_offline=False) for uuid in cluster.uuids())
        assert phase(cluster, uid) == "Running" or not has_room
    assert cluster.controller is not None
    cluster.controller.machine.check()
