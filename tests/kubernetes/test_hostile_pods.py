"""The controller with pods and claims that users wrote or changed by hand, past the webhook."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster.kubernetes import names
from tests.support.kubernetes_cluster import TestCluster

HUGE = "9" * 5000
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "0", "1", "-1", HUGE, "1e9", "٣", "4GiB", "9" * 19 + "GiB", "50ms", "30%", "101%", "offline", "a,b"]
    ),
)


def conditions_of(cluster: TestCluster, uid: str) -> tuple[str, str]:
    condition = cluster.condition(uid)
    assert condition is not None
    return condition["reason"], condition["message"]


@pytest.mark.parametrize("is_gated", [True, False], ids=["offline", "online"])
@pytest.mark.parametrize("name", ["gpus", "gang-size", "priority", "memory", "share"])
def test_a_number_of_5000_digits_is_refused_and_others_are_placed(name: str, is_gated: bool) -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    annotations: dict[str, Any] = {"gang": "g", name.replace("-", "_"): HUGE}
    wrong = cluster.add_pod(is_gated=is_gated, **annotations)
    right = cluster.add_pod()
    cluster.start_controller()
    cluster.settle(10)
    assert not cluster.is_gated(right)
    assert "nodeName" not in cluster.pod(wrong)["spec"] or name == "gang-size"
    cluster.kill_controller()
    cluster.start_controller()
    cluster.settle(3)


@given(
    st.lists(
        st.tuples(st.booleans(), st.dictionaries(st.sampled_from(names.ANNOTATIONS), TEXTS, max_size=4)), max_size=4
    ),
    st.dictionaries(st.sampled_from(names.ANNOTATIONS), TEXTS, max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_no_annotations_stop_the_controller(pods: list[tuple[bool, dict[str, str]]], change: dict[str, str]) -> None:
    cluster = TestCluster(nodes=2, gpus=1)
    cluster.start_controller()
    for number, (is_gated, annotations) in enumerate(pods):
        cluster.add_pod(f"odd-{number}", is_gated=is_gated)
        cluster.change(
            "pods",
            ("default", f"odd-{number}"),
            lambda pod, new=annotations: pod["metadata"]["annotations"].update(new),
        )
    cluster.settle(4)
    for key in list(cluster.api.objects.get("pods", {})):
        cluster.change("pods", key, lambda pod: pod["metadata"]["annotations"].update(change))
    right = cluster.add_pod(memory="1GiB")
    cluster.settle(4)
    for uid, pod in list(cluster.pods().items()):
        if uid != right and pod["status"]["phase"] == "Running":
            cluster.end_pod(uid)
    cluster.kill_controller()
    cluster.start_controller()
    cluster.settle(8)
    assert cluster.controller is not None
    cluster.controller.machine.check()


def claim_of_a_user(namespace: str, name: str, uid: str) -> dict[str, Any]:
    """Return a claim that says that it is pinned for a pod."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_POD_UID: uid},
            "annotations": {"cotenant.dev/node": "node-1", "cotenant.dev/gpu-uuids": "GPU-node-1-0"},
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]}},
    }


@pytest.mark.parametrize("is_gated", [True, False], ids=["offline", "online"])
@pytest.mark.parametrize("is_restarted", [True, False], ids=["restart", "watch"])
def test_a_claim_of_another_namespace_does_not_stand_for_a_pod(is_gated: bool, is_restarted: bool) -> None:
    cluster = TestCluster(nodes=2, gpus=1)
    if not is_restarted:
        cluster.start_controller()
    uid = cluster.add_pod(is_gated=is_gated)
    name = cluster.pod(uid)["metadata"]["labels"][names.LABEL_CLAIM]
    for other in (name, "other"):
        cluster.api.create("resourceclaims", "attacker", claim_of_a_user("attacker", other, uid))
    if is_restarted:
        cluster.start_controller()
    while cluster.controller is not None and ("default", name) not in cluster.api.objects["resourceclaims"]:
        cluster.deliver("resourceclaims")
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
        cluster.advance(1.0)
        assert cluster.clock.instant < 1_795_000_030 * 10**9, "the pod got no claim of its own"
    own = cluster.api.objects["resourceclaims"]["default", name]
    assert own["metadata"]["ownerReferences"][0]["uid"] == uid
    for key in [key for key in cluster.api.objects["resourceclaims"] if key[0] == "attacker"]:
        cluster.api.delete("resourceclaims", key)
    cluster.settle(4)
    assert cluster.pod(uid)["status"]["phase"] == "Running"
    assert ("default", name) in cluster.api.objects["resourceclaims"]


def test_an_online_pod_says_that_a_claim_of_its_name_belongs_to_another() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.start_controller()
    uid = cluster.add_pod("web", is_gated=False)
    name = cluster.pod(uid)["metadata"]["labels"][names.LABEL_CLAIM]
    cluster.api.create("resourceclaims", "default", {"metadata": {"name": name, "labels": {}}})
    for _ in range(10):
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
        cluster.advance(1.0)
    expected = f"A claim {name} exists that does not belong to it; delete that claim"
    assert conditions_of(cluster, uid) == ("NoClaim", expected)
    cluster.api.delete("resourceclaims", ("default", name))
    cluster.settle(20)
    assert cluster.pod(uid)["status"]["phase"] == "Running"
    assert conditions_of(cluster, uid)[0] == "Placed"


@pytest.mark.parametrize("is_gated", [True, False], ids=["offline", "online"])
def test_a_quota_on_claims_is_a_reason_to_wait_until_it_permits_the_claim(is_gated: bool) -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    message = "exceeded quota: gpus, requested: count/resourceclaims.resource.k8s.io=1, used: 2, limited: 2"
    cluster.api.forbidden["resourceclaims"] = message
    cluster.start_controller()
    uid = cluster.add_pod(is_gated=is_gated)
    cluster.settle(12)
    assert message in conditions_of(cluster, uid)[1]
    assert not cluster.api.objects.get("resourceclaims")
    cluster.api.forbidden.clear()
    cluster.settle(40)
    assert cluster.pod(uid)["status"]["phase"] == "Running"
    assert conditions_of(cluster, uid)[0] == "Placed"


def test_a_restarted_controller_corrects_what_it_said_about_a_claim() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.api.forbidden["resourceclaims"] = "exceeded quota"
    cluster.start_controller()
    uid = cluster.add_pod(is_gated=False)
    cluster.settle(12)
    assert conditions_of(cluster, uid)[0] == "NoClaim"
    cluster.kill_controller()
    cluster.api.forbidden.clear()
    cluster.start_controller()
    cluster.settle(10)
    assert conditions_of(cluster, uid)[0] == "Placed"


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restart", "watch"])
def test_a_pod_with_the_gate_of_another_controller_holds_no_gpu(is_restarted: bool) -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.start_controller()
    uid = cluster.add_pod("queued", other_gates=("kueue.x-k8s.io/admission",))
    other = cluster.add_pod()
    if is_restarted:
        cluster.kill_controller()
        cluster.start_controller()
    cluster.settle(10)
    assert not cluster.is_gated(other)
    expected = "It waits for the controllers that remove its gate kueue.x-k8s.io/admission"
    assert conditions_of(cluster, uid) == ("OtherGates", expected)
    cluster.end_pod(other)

    def admit(pod: dict) -> None:
        pod["spec"].update(schedulingGates=[{"name": names.GATE}], nodeSelector={"flavor": "none"})

    cluster.change("pods", ("default", "queued"), admit)
    cluster.settle(10)
    assert cluster.is_gated(uid), "no node has the label that the other controller requires"
    cluster.change("nodes", ("", "node-0"), lambda node: node["metadata"]["labels"].update(flavor="none"))
    cluster.settle(10)
    assert cluster.pod(uid)["status"]["phase"] == "Running"
    assert cluster.pod(uid)["spec"]["nodeSelector"] == {"flavor": "none", "kubernetes.io/hostname": "node-0"}


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restart", "watch"])
def test_a_pod_that_is_being_deleted_before_it_started_holds_no_gpu(is_restarted: bool) -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.start_controller()
    cluster.add_pod("stuck")
    while not cluster.api.released:  # released, and not scheduled when it is deleted
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
        cluster.advance(1.0)
    cluster.add_pod("gated")
    other = cluster.add_pod()
    for name in ("stuck", "gated"):  # a finalizer keeps them
        cluster.change(
            "pods", ("default", name), lambda pod: pod["metadata"].update(deletionTimestamp="2026-11-18T09:00:00Z")
        )
    if is_restarted:
        cluster.kill_controller()
        cluster.start_controller()
    for _ in range(3):
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
        cluster.advance(1.0)
    assert not cluster.is_gated(other)
    assert [key[1] for key in cluster.api.objects["pods"] if key[1] in ("stuck", "gated")] == ["stuck", "gated"]


def test_several_gpus_of_an_online_pod_differ() -> None:
    cluster = TestCluster(nodes=1, gpus=2)
    cluster.start_controller()
    several = cluster.add_pod(is_gated=False, gpus="2", memory="4GiB", share="30%")
    one = cluster.add_pod(is_gated=False, memory="4GiB")
    while len(cluster.claims()) < 2:
        cluster.deliver("pods")
        while cluster.outbox:
            cluster.execute()
    devices = {uid: claim["spec"]["devices"] for uid, claim in cluster.claims().items()}
    assert devices[several]["constraints"] == [{"distinctAttribute": "gpu.cotenant.dev/uuid"}]
    assert "constraints" not in devices[one]


def test_the_name_of_an_event_is_valid_for_any_name_of_a_pod() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.add_pod()
    name = "a" * 229 + "." + "b" * 20
    cluster.add_pod(name)
    cluster.start_controller()
    cluster.settle(10)
    [event] = [key[1] for key in cluster.api.objects["events"] if key[1].startswith("aaaa")]
    assert ".." not in event


def test_claims_that_a_quota_refuses_are_retried_a_few_at_a_time() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.api.forbidden["resourceclaims"] = "exceeded quota"
    cluster.start_controller()
    uids = [cluster.add_pod(is_gated=False, memory="1GiB", share="0%") for _ in range(120)]
    cluster.settle(2)
    before = len(cluster.api.requests)
    cluster.settle(31)
    created = [each for each in cluster.api.requests[before:] if each.path.endswith("/resourceclaims")]
    assert 50 <= len(created) <= 150
    cluster.api.forbidden.clear()
    cluster.settle(60)
    assert set(cluster.claims()) == set(uids)
