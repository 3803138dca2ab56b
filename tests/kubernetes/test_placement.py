"""The controller places gated pods through the API: claims, releases, gangs, ends and waiting reasons."""

import json

import pytest

from cotenant.cluster.kubernetes import names
from tests.support.kubernetes_cluster import GIB, TestCluster


def test_gated_pods_get_pinned_claims_and_lose_their_gate() -> None:
    cluster = TestCluster(nodes=2, gpus=2)
    uids = [cluster.add_pod(memory="4GiB") for _ in range(3)]
    cluster.start_controller()
    cluster.settle(3)
    assert [cluster.is_gated(uid) for uid in uids] == [False] * 3
    assert [cluster.pod(uid)["status"]["phase"] for uid in uids] == ["Running"] * 3
    pinned = {cluster.claims()[uid]["metadata"]["annotations"]["cotenant.dev/gpu-uuids"] for uid in uids}
    assert len(pinned) == 3
    claim = cluster.claims()[uids[0]]
    request = claim["spec"]["devices"]["requests"][0]["exactly"]
    uuid = claim["metadata"]["annotations"]["cotenant.dev/gpu-uuids"]
    assert request["selectors"] == [{"cel": {"expression": f'device.attributes["{names.DRIVER}"].uuid == "{uuid}"'}}]
    assert request["capacity"]["requests"] == {"memory": "4096Mi", "share": "0", "offlinePlaces": "1"}
    parameters = claim["spec"]["devices"]["config"][0]["opaque"]
    assert parameters == {"driver": names.DRIVER, "parameters": {"kind": "offline"}}
    assert claim["metadata"]["ownerReferences"][0]["uid"] == uids[0]


def test_waiting_pods_follow_when_others_end() -> None:
    cluster = TestCluster(nodes=1, gpus=2)
    uids = [cluster.add_pod() for _ in range(6)]
    cluster.start_controller()
    for _ in range(6):
        cluster.settle(4)
        for uid, pod in cluster.pods().items():
            if pod["status"]["phase"] == "Running":
                cluster.end_pod(uid)
    cluster.settle(4)
    assert [cluster.pod(uid)["status"]["phase"] for uid in uids] == ["Succeeded"] * 6
    assert cluster.api.released == dict.fromkeys(uids, 1)
    assert cluster.controller is not None
    assert not cluster.controller.machine.job_table.jobs
    cluster.controller.machine.check()


def test_higher_priority_goes_first() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    low = cluster.add_pod()
    high = cluster.add_pod()
    cluster.change("pods", ("default", "job-2"), lambda pod: pod["spec"].update(priority=1_000_000))
    cluster.start_controller()
    cluster.settle(3)
    assert cluster.is_gated(low)
    assert not cluster.is_gated(high)


def test_pods_share_a_gpu_up_to_its_places_and_its_memory() -> None:
    cluster = TestCluster(nodes=1, gpus=1, places=3)
    large, small = cluster.add_pod(memory="12GiB"), [cluster.add_pod(memory="4GiB") for _ in range(3)]
    unknown = cluster.add_pod()
    cluster.start_controller()
    cluster.settle(12)
    assert not cluster.is_gated(large)
    assert [cluster.is_gated(uid) for uid in small].count(False) == 2
    assert cluster.is_gated(unknown), "it may need all memory"
    [last] = [uid for uid in small if cluster.is_gated(uid)]
    condition = cluster.condition(last)
    assert condition is not None
    assert condition["message"] == "None of 1 GPU is open: 1 held"
    cluster.kill_controller()
    cluster.start_controller()
    cluster.settle(8)
    assert cluster.is_gated(last)
    assert cluster.is_gated(unknown)
    cluster.end_pod(large)
    cluster.settle(8)
    assert not cluster.is_gated(last)
    for uid in small:
        cluster.end_pod(uid)
    cluster.settle(8)
    assert not cluster.is_gated(unknown)
    assert cluster.controller is not None
    cluster.controller.machine.check()


def test_a_pod_with_several_gpus_gets_them_on_one_node() -> None:
    cluster = TestCluster(nodes=2, gpus=4)
    uid = cluster.add_pod(gpus="3")
    cluster.start_controller()
    cluster.settle(3)
    requests = cluster.claims()[uid]["spec"]["devices"]["requests"]
    assert [request["name"] for request in requests] == ["gpu-0", "gpu-1", "gpu-2"]
    assert cluster.pod(uid)["status"]["phase"] == "Running"


def test_a_gang_waits_for_all_members_and_for_enough_gpus() -> None:
    cluster = TestCluster(nodes=2, gpus=2)
    members = [cluster.add_pod(gang="train", gang_size="4") for _ in range(3)]
    cluster.start_controller()
    cluster.settle(8)
    assert all(cluster.is_gated(uid) for uid in members)
    assert not cluster.claims()
    condition = cluster.condition(members[0])
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "GangIncomplete")
    assert condition["message"] == "Only 3 of the 4 members of its gang default/train exist"
    single = cluster.add_pod()
    cluster.settle(2)
    members.append(cluster.add_pod(gang="train", gang_size="4"))
    cluster.settle(8)
    assert not cluster.is_gated(single)
    assert all(cluster.is_gated(uid) for uid in members)
    assert set(cluster.claims()) == {single}
    cluster.end_pod(single)
    cluster.settle(4)
    assert not any(cluster.is_gated(uid) for uid in members)
    assert len({cluster.pod(uid)["spec"]["nodeName"] for uid in members}) == 2


def test_two_gangs_that_do_not_fit_together_run_one_after_the_other() -> None:
    cluster = TestCluster(nodes=3, gpus=1)
    gangs = {name: [cluster.add_pod(gang=name, gang_size="2") for _ in range(2)] for name in ("first", "second")}
    cluster.start_controller()
    cluster.settle(4)
    placed = {name: sum(not cluster.is_gated(uid) for uid in uids) for name, uids in gangs.items()}
    assert sorted(placed.values()) == [0, 2]
    for uid in next(uids for name, uids in gangs.items() if placed[name]):
        cluster.end_pod(uid)
    cluster.settle(4)
    assert not any(cluster.is_gated(uid) for uids in gangs.values() for uid in uids)


def test_no_member_of_a_gang_is_released_before_all_claims_exist() -> None:
    cluster = TestCluster(nodes=2, gpus=2)
    members = [cluster.add_pod(gang="train", gang_size="3") for _ in range(3)]
    claims_at_release = []
    cluster.api.on_release = lambda pod: claims_at_release.append(set(cluster.claims()))
    cluster.start_controller()
    cluster.settle(3)
    assert claims_at_release == [set(members)] * 3


def test_a_refused_claim_gives_up_the_whole_gang_and_is_tried_again() -> None:
    cluster = TestCluster(nodes=2, gpus=2)
    members = [cluster.add_pod(gang="train", gang_size="2") for _ in range(2)]
    name = cluster.pod(members[1])["metadata"]["labels"][names.LABEL_CLAIM]
    stranger = {"metadata": {"name": name, "labels": {names.LABEL_POD_UID: "someone-else"}}}
    cluster.api.create("resourceclaims", "default", stranger)
    cluster.start_controller()
    cluster.settle(5)
    assert all(cluster.is_gated(uid) for uid in members)
    assert set(cluster.claims()) == {"someone-else"}
    cluster.settle(4)
    condition = cluster.condition(members[1])
    assert condition is not None
    assert f"a claim {name} exists that does not belong to it" in condition["message"]
    cluster.api.delete("resourceclaims", ("default", name))
    cluster.settle(15)
    assert not any(cluster.is_gated(uid) for uid in members)


def test_an_online_pod_gets_an_unpinned_claim() -> None:
    cluster = TestCluster()
    cluster.start_controller()
    uid = cluster.add_pod(is_gated=False, slo="50ms", share="30%", memory="2GiB", priority="1")
    cluster.settle(2)
    claim = cluster.claims()[uid]
    assert claim["spec"]["devices"]["requests"] == [
        {
            "name": "gpu",
            "exactly": {
                "deviceClassName": names.DEVICE_CLASS,
                "allocationMode": "ExactCount",
                "tolerations": [{"key": "cotenant.dev/no-offline", "operator": "Exists"}],
                "count": 1,
                "capacity": {"requests": {"memory": "2048Mi", "share": "30"}},
            },
        }
    ]
    parameters = claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    assert parameters == {"kind": "online", "priority": 1, "slo": "50ms", "share": "30%"}


def test_a_pod_without_memory_claims_what_the_gpu_offers() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    uid = cluster.add_pod()
    cluster.start_controller()
    cluster.settle(2)
    capacity = cluster.claims()[uid]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    assert capacity["memory"] == f"{24 * GIB >> 20}Mi"


def test_waiting_pods_say_why_and_that_they_were_placed() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    first = cluster.add_pod()
    second = cluster.add_pod()
    large = cluster.add_pod(memory="30GiB")
    wrong = cluster.add_pod(memory="much")
    cluster.start_controller()
    cluster.settle(10)
    conditions = {uid: cluster.condition(uid) or {} for uid in (first, second, large, wrong)}
    assert all(conditions.values())
    assert (conditions[first]["status"], conditions[first]["reason"]) == ("True", "Placed")
    assert conditions[second]["reason"] == "NoOpenGpu"
    assert conditions[second]["message"] == "None of 1 GPU is open: 1 held"
    assert conditions[wrong]["reason"] == "InvalidAnnotation"
    assert "cotenant.dev/memory = 'much'" in conditions[wrong]["message"]
    events = [tree["message"] for tree in cluster.api.objects["events"].values()]
    assert "None of 1 GPU is open: 1 held" in events
    cluster.end_pod(first)
    cluster.settle(5)
    placed = cluster.condition(second)
    assert placed is not None
    assert placed["status"] == "True"


def test_unchanged_reasons_are_not_written_again() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    for _ in range(5):
        cluster.add_pod()
    cluster.start_controller()
    cluster.settle(20)
    before = [request for request in cluster.api.requests if request.path.endswith(("/status", "/events"))]
    cluster.settle(60)
    assert [request for request in cluster.api.requests if request.path.endswith(("/status", "/events"))] == before
    assert len(before) == 10


def test_changed_annotations_of_a_waiting_pod_are_used() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    uid = cluster.add_pod(memory="much")
    cluster.start_controller()
    cluster.settle(3)
    assert cluster.is_gated(uid)

    def fix(pod: dict) -> None:
        pod["metadata"]["annotations"]["cotenant.dev/memory"] = "1GiB"

    cluster.change("pods", ("default", "job-1"), fix)
    cluster.settle(3)
    assert not cluster.is_gated(uid)


def test_a_cordoned_node_gets_no_pods_and_keeps_those_that_it_has() -> None:
    cluster = TestCluster(nodes=1, gpus=2)
    first = cluster.add_pod()
    cluster.start_controller()
    cluster.settle(3)
    cluster.change("nodes", ("", "node-0"), lambda node: node["spec"].update(unschedulable=True))
    second = cluster.add_pod()
    cluster.settle(10)
    assert cluster.pod(first)["status"]["phase"] == "Running"
    condition = cluster.condition(second)
    assert condition is not None
    assert condition["message"] == "None of 2 GPUs is open: 1 held, 1 of a drained node"
    cluster.change("nodes", ("", "node-0"), lambda node: node["spec"].update(unschedulable=False))
    cluster.settle(3)
    assert not cluster.is_gated(second)


def test_selectors_and_taints_restrict_the_nodes() -> None:
    cluster = TestCluster(nodes=0)
    cluster.add_node("plain", 1)
    cluster.add_node("special", 1, {"pool": "training"})
    cluster.change(
        "nodes",
        ("", "plain"),
        lambda node: node["spec"].update(taints=[{"key": "dedicated", "value": "web", "effect": "NoSchedule"}]),
    )
    anywhere, selective, nowhere = cluster.add_pod(), cluster.add_pod(), cluster.add_pod()
    cluster.change("pods", ("default", "job-2"), lambda pod: pod["spec"].update(nodeSelector={"pool": "training"}))
    cluster.change("pods", ("default", "job-3"), lambda pod: pod["spec"].update(nodeSelector={"pool": "other"}))
    toleration = [{"key": "dedicated", "operator": "Exists"}]
    cluster.change("pods", ("default", "job-1"), lambda pod: pod["spec"].update(tolerations=toleration))
    cluster.start_controller()
    cluster.settle(10)
    assert cluster.pod(selective)["spec"]["nodeName"] == "special"
    assert cluster.pod(anywhere)["spec"]["nodeName"] == "plain"
    assert cluster.is_gated(nowhere)
    cluster.end_pod(selective)
    cluster.settle(10)
    condition = cluster.condition(nowhere)
    assert condition is not None
    assert "on nodes that its node selector, affinity or tolerations exclude" in condition["message"]


def test_a_silent_node_gets_no_pods_until_it_reports() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.start_controller()
    cluster.settle(2)
    for _ in range(130):
        cluster.advance(1.0)
    uid = cluster.add_pod()
    for _ in range(10):
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
        cluster.advance(1.0)
    condition = cluster.condition(uid)
    assert condition is not None
    assert condition["message"] == "None of 1 GPU is open: 1 of a silent node"
    cluster.settle(3)
    assert not cluster.is_gated(uid)


@pytest.mark.parametrize(
    "nodes, reason, is_left_out",
    [
        (2, "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector.", True),
        (1, "0/1 nodes are available: 1 Insufficient cpu.", True),
        (1, "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable", False),
    ],
)
def test_a_pod_that_the_scheduler_refuses_is_evicted_and_a_node_without_cpu_left_out(
    nodes: int, reason: str, is_left_out: bool
) -> None:
    cluster = TestCluster(nodes=nodes, gpus=1)
    cluster.start_controller()
    uid = cluster.add_pod()
    cluster.settle(1)
    cluster.deliver("pods")
    while cluster.outbox:
        cluster.execute()
    node = cluster.claims()[uid]["metadata"]["annotations"]["cotenant.dev/node"]
    held = cluster.claims()[uid]["metadata"]["annotations"]["cotenant.dev/gpu-uuids"]
    assert not cluster.pod(uid)["spec"].get("nodeName"), "it was bound before the test could refuse it"
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
    cluster.change("pods", ("default", "job-1"), lambda pod: pod["status"].update(conditions=[refusal]))
    cluster.deliver("pods")
    for _ in range(70):
        cluster.advance(1.0)
        while cluster.outbox:
            cluster.execute()
    assert uid not in cluster.pods()
    successor = cluster.add_pod()
    cluster.settle(3)
    assert held
    assert (cluster.pod(successor)["spec"].get("nodeName") != node) is is_left_out
    assert cluster.is_gated(successor) is (is_left_out and nodes == 1)


def test_a_gate_that_was_removed_by_hand_leads_to_an_unpinned_claim() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    blocker = cluster.add_pod()
    cluster.start_controller()
    cluster.settle(3)
    uid = cluster.add_pod()
    cluster.settle(1)
    cluster.change("pods", ("default", "job-2"), lambda pod: pod["spec"].update(schedulingGates=[]))
    cluster.settle(2)
    assert "annotations" not in cluster.claims()[uid]["metadata"]
    assert cluster.controller is not None
    assert len(cluster.controller.machine.job_table.jobs) == 1
    cluster.delete_pod(blocker)


def test_tenants_of_unknown_pods_close_their_gpu() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    tenant = {"podUid": "uid-unknown", "kind": "offline", "gpus": ["GPU-node-0-0"]}
    cluster.change("gpunodes", ("", "node-0"), lambda node: node["status"].update(tenants=[tenant]))
    uid = cluster.add_pod()
    cluster.start_controller()
    for _ in range(8):
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
        cluster.advance(1.0)
    condition = cluster.condition(uid)
    assert condition is not None
    assert condition["message"] == "None of 1 GPU is open: 1 with an unwanted attempt that must end first"
    cluster.settle(3)  # the next report does not name the tenant
    assert not cluster.is_gated(uid)


def test_a_deleted_claim_of_a_released_pod_is_created_again() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    uid = cluster.add_pod()
    cluster.start_controller()
    while cluster.is_gated(uid):
        cluster.execute()
    name = cluster.pod(uid)["metadata"]["labels"][names.LABEL_CLAIM]
    cluster.deliver("pods")
    cluster.deliver("resourceclaims")
    cluster.api.delete("resourceclaims", ("default", name))
    cluster.settle(3)
    assert cluster.pod(uid)["status"]["phase"] == "Running"


def test_learned_speeds_are_stored() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.add_pod(profile="resnet")
    cluster.start_controller()
    cluster.settle(70)
    stored = cluster.api.objects["configmaps"]["cotenant", names.PREDICTIONS_CONFIG_MAP]["data"][names.PREDICTIONS_KEY]
    assert {entry[0] for entry in json.loads(stored)} == {"resnet"}


def test_a_node_that_is_deleted_is_forgotten_when_its_pods_have_ended() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    uid = cluster.add_pod()
    cluster.start_controller()
    cluster.settle(3)
    cluster.api.delete("gpunodes", ("", "node-0"))
    cluster.deliver("gpunodes")
    assert cluster.controller is not None
    machine = cluster.controller.machine
    assert list(machine.inventory.nodes) == ["node-0"]
    cluster.delete_pod(uid)
    cluster.deliver("pods")
    assert not machine.inventory.nodes
    machine.check()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("is_restarted", [True, False], ids=["restart", "watch"])
def test_the_claim_of_a_pod_that_ended_is_deleted_and_those_of_users_stay(phase: str, is_restarted: bool) -> None:
    cluster = TestCluster(nodes=1, gpus=2)
    ended, running = cluster.add_pod(), cluster.add_pod()
    users = {"metadata": {"name": "mine", "labels": {names.LABEL_POD_UID: ended}}}
    cluster.api.create("resourceclaims", "default", users)
    cluster.start_controller()
    cluster.settle(4)
    assert {ended, running} <= set(cluster.claims())
    if is_restarted:
        cluster.kill_controller()
    cluster.end_pod(ended, phase)
    if is_restarted:
        cluster.start_controller()
    cluster.settle(4)
    claims = {(claim["metadata"]["name"], uid) for uid, claim in cluster.claims().items()}
    name = cluster.pod(running)["metadata"]["labels"][names.LABEL_CLAIM]
    assert claims == {("mine", ended), (name, running)}
    assert cluster.pod(ended)["status"]["phase"] == phase
