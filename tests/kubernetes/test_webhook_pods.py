"""The webhook translates pods to claims, and refuses what cannot be honoured."""

import re
from typing import Any

import pytest

from cotenant.cluster.kubernetes.webhook.pod_request import AllocationMode, WebhookSettings
from cotenant.cluster.kubernetes.webhook.review import mutate, validate
from tests.support.admission_reviews import answer_of, mutated, patch_of, refusal_of, review_of

GIB = 1 << 30


def pod(annotations: dict[str, str] | None = None, limits: dict[str, Any] | None = None, **spec: Any) -> Any:
    container: dict[str, Any] = {"name": "main", "image": "app"}
    if limits is not None:
        container["resources"] = {"limits": limits}
    metadata: dict[str, Any] = {"name": "infer"}
    if annotations is not None:
        metadata["annotations"] = {f"cotenant.dev/{name}": value for name, value in annotations.items()}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def of_job(value: Any) -> Any:
    value["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    return value


def own_annotations(value: Any) -> dict[str, str]:
    found = value["metadata"]["annotations"].items()
    return {name.removeprefix("cotenant.dev/"): text for name, text in found if name.startswith("cotenant.dev/")}


def test_an_annotated_pod_gets_a_claim_and_stays_schedulable() -> None:
    translated = mutated("Pod", pod({"slo": "50ms", "memory": "4GiB", "share": "30%"}))
    claim = translated["metadata"]["labels"]["cotenant.dev/claim"]
    assert re.fullmatch(r"infer-gpu-[0-9a-f]{10}", claim)
    assert translated["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim}]
    assert translated["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert own_annotations(translated) == {
        "slo": "50ms",
        "memory": "4GiB",
        "share": "30%",
        "kind": "online",
        "gpus": "1",
    }
    assert "schedulingGates" not in translated["spec"]


def test_an_offline_pod_waits_behind_the_gate_in_addition_to_others() -> None:
    translated = mutated("Pod", pod({"kind": "offline"}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    gates = [gate["name"] for gate in translated["spec"]["schedulingGates"]]
    assert gates == ["kueue.x-k8s.io/admission", "cotenant.dev/round"]


@pytest.mark.parametrize(
    "annotations, in_job, kind",
    [
        ({"memory": "1GiB"}, False, "online"),
        ({"memory": "1GiB"}, True, "offline"),
        ({"slo": "50ms"}, True, "online"),
        ({"kind": "online"}, True, "online"),
    ],
)
def test_the_kind_follows_from_the_objective_and_the_owner(annotations: Any, in_job: bool, kind: str) -> None:
    value = of_job(pod(annotations)) if in_job else pod(annotations)
    assert own_annotations(mutated("Pod", value))["kind"] == kind


def test_the_pods_of_one_job_get_different_claims() -> None:
    value = of_job(pod({"memory": "1GiB"}))
    value["metadata"].pop("name")
    value["metadata"]["generateName"] = "a-job-with-a-name-that-is-longer-than-forty-characters-"
    names = [mutated("Pod", value, uid=uid)["metadata"]["labels"]["cotenant.dev/claim"] for uid in ("1", "2", "3")]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"a-job-with-a-name-that-is-longer-than-fo-gpu-[0-9a-f]{10}", name) for name in names)


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}, {"gpus": "1", "memory": "3000MiB", "share": "0%"}),
        ({"nvidia.com/gpumem": 3072}, {"memory": "3GiB", "share": "0%"}),
        ({"nvidia.com/gpumem-percentage": "50"}, {"memory": "8GiB", "share": "0%"}),
        ({"nvidia.com/gpumem-percentage": "100"}, {"share": "100%"}),
        ({"nvidia.com/gpucores": "30", "nvidia.com/gpu": 2}, {"gpus": "2", "share": "30%"}),
        ({"nvidia.com/gpucores": "0", "nvidia.com/gpumem": 1024}, {"memory": "1GiB", "share": "0%"}),
        ({"nvidia.com/gpumem": 1024, "nvidia.com/priority": "0"}, {"memory": "1GiB", "share": "0%", "priority": "1"}),
        ({"nvidia.com/gpumem": 1024, "nvidia.com/priority": "1"}, {"memory": "1GiB", "share": "0%", "priority": "2"}),
        ({"cotenant.dev/gpu": "1"}, {"gpus": "1"}),
    ],
)
def test_resource_names_keep_the_meaning_that_hami_gives_them(limits: Any, expected: Any) -> None:
    settings = WebhookSettings(memory_sizes=(16 * GIB,))
    translated = mutated("Pod", pod(limits={**limits, "cpu": "2"}), settings)
    assert own_annotations(translated) == {"kind": "online", "gpus": "1", **expected}
    resources = translated["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "2"}, "claims": [{"name": "gpu"}]}


def test_a_high_priority_of_hami_is_above_the_default_of_its_kind() -> None:
    translated = mutated("Pod", of_job(pod(limits={"nvidia.com/gpumem": 1024, "nvidia.com/priority": 0})))
    assert own_annotations(translated)["priority"] == "6"


def test_requests_are_read_and_removed_like_limits() -> None:
    value = pod(limits={"nvidia.com/gpumem": 1024})
    value["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpumem": 1024, "nvidia.com/gpu": 1}
    resources = mutated("Pod", value)["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {}, "requests": {}, "claims": [{"name": "gpu"}]}


def test_a_request_that_differs_from_its_limit_is_refused() -> None:
    value = pod(limits={"nvidia.com/gpumem": 2048})
    value["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpumem": "1k"}
    expected = "spec.containers[0].resources.requests[nvidia.com/gpumem] = '1k': differs from the limit, which is 2048"
    assert expected in refusal_of("Pod", value)
    value["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpumem": "2048"}
    assert own_annotations(mutated("Pod", value))["memory"] == "2GiB"


def test_a_label_of_a_claim_without_a_request_is_refused() -> None:
    value = pod()
    value["metadata"]["labels"] = {"cotenant.dev/claim": "stolen"}
    assert "metadata.labels[cotenant.dev/claim] = 'stolen': names a claim, and the pod asks for no GPU" in refusal_of(
        "Pod", value
    )


def test_a_plain_gpu_is_left_to_the_device_plugin_of_nvidia_unless_the_settings_say_otherwise() -> None:
    value = pod(limits={"nvidia.com/gpu": "1"})
    assert mutated("Pod", value) == value
    translated = mutated("Pod", value, WebhookSettings(translate_plain_gpu=True))
    assert own_annotations(translated) == {"kind": "online", "gpus": "1", "share": "100%"}
    assert mutated("Pod", pod({"slo": "50ms"}, {"nvidia.com/gpu": "1"}))["spec"]["resourceClaims"]


def test_pods_that_ask_for_nothing_are_left_alone() -> None:
    for value in (pod(), pod(limits={"cpu": "1"}), pod(limits={"nvidia.com/gpu": "0"}), pod(limits={"amd.com/gpu": 1})):
        assert mutated("Pod", value) == value
        assert answer_of(validate(review_of("Pod", value), WebhookSettings()))["allowed"]


def test_a_pod_that_names_claims_of_its_own_is_left_alone() -> None:
    value = pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    value["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    assert mutated("Pod", value) == value


@pytest.mark.parametrize("allocation", list(AllocationMode))
@pytest.mark.parametrize(
    "value",
    [
        pod({"kind": "offline", "memory": "2GiB", "priority": "8"}),
        pod(limits={"nvidia.com/gpumem": 1024, "nvidia.com/gpu": 1}),
        of_job(pod(limits={"nvidia.com/gpucores": 30})),
    ],
)
def test_a_second_call_changes_nothing_and_the_result_is_valid(value: Any, allocation: AllocationMode) -> None:
    settings = WebhookSettings(allocation=allocation)
    once = mutated("Pod", value, settings)
    assert once != value
    answer = answer_of(mutate(review_of("Pod", once, uid="another-request"), settings))
    assert answer["allowed"]
    assert patch_of(answer) == []
    assert answer_of(validate(review_of("Pod", once), settings))["allowed"]


def test_a_dry_run_gets_the_same_answer() -> None:
    value = pod({"slo": "50ms"})
    settings = WebhookSettings()
    assert mutate(review_of("Pod", value, dryRun=True), settings) == mutate(review_of("Pod", value), settings)


def test_a_sidecar_that_another_webhook_adds_later_gets_no_claim() -> None:
    once = mutated("Pod", pod({"slo": "50ms"}))
    once["spec"]["containers"].append({"name": "proxy", "image": "proxy"})
    assert mutated("Pod", once) == once


def test_the_device_plugin_serves_clusters_without_claims() -> None:
    settings = WebhookSettings(allocation=AllocationMode.DEVICE_PLUGIN)
    translated = mutated("Pod", pod({"kind": "offline"}, {"nvidia.com/gpumem": 1024, "nvidia.com/gpu": 2}), settings)
    amounts = {"cotenant.dev/gpu": "2"}
    assert translated["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert not {"resourceClaims", "schedulingGates"} & set(translated["spec"])
    gang = pod({"kind": "offline", "gang": "g", "gang-size": "2"})
    assert "needs placement rounds, which this cluster does not have" in refusal_of("Pod", gang, settings)


def test_an_init_container_with_the_same_request_uses_the_same_claim() -> None:
    value = pod(limits={"nvidia.com/gpumem": 1024})
    value["spec"]["initContainers"] = [{"name": "warm", "resources": {"limits": {"nvidia.com/gpumem": "1024"}}}]
    translated = mutated("Pod", value)
    assert translated["spec"]["initContainers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_an_annotation_needs_a_container_that_uses_the_gpu() -> None:
    value = pod({"slo": "50ms"})
    value["spec"]["containers"].append({"name": "proxy"})
    assert "the pod has 2 containers" in refusal_of("Pod", value)
    value["spec"]["containers"][1]["resources"] = {"limits": {"cotenant.dev/gpu": 1}}
    translated = mutated("Pod", value)
    assert "resources" not in translated["spec"]["containers"][0]
    assert translated["spec"]["containers"][1]["resources"]["claims"] == [{"name": "gpu"}]


REFUSED: list[tuple[Any, str]] = [
    (pod({"kind": "batch"}), "metadata.annotations[cotenant.dev/kind] = 'batch': write online or offline"),
    (pod({"slo": "50"}), "metadata.annotations[cotenant.dev/slo] = '50'"),
    (pod({"kind": "offline", "slo": "50ms"}), "metadata.annotations[cotenant.dev/slo] = '50ms'"),
    (pod({"sloo": "50ms"}), "did you mean cotenant.dev/slo?"),
    (pod({"memory": "4"}), "metadata.annotations[cotenant.dev/memory] = '4'"),
    (pod({"memory": "1B"}), "must be at least 1MiB"),
    (pod({"share": "130%"}), "metadata.annotations[cotenant.dev/share] = '130%'"),
    (pod({"priority": "10"}), "write a whole number from 0 to 9"),
    (pod({"priority": "-1"}), "metadata.annotations[cotenant.dev/priority] = '-1'"),
    (pod({"gpus": "0"}), "write a whole number from 1 to 64"),
    (pod({"kind": "offline", "gang": "g"}), "needs cotenant.dev/gang-size too"),
    (pod({"kind": "offline", "gang": "G!", "gang-size": "2"}), "metadata.annotations[cotenant.dev/gang] = 'G!'"),
    (pod({"slo": "50ms", "gang": "g", "gang-size": "2"}), "only offline pods are placed as a gang"),
    (pod({"slo": "50ms", "avoid": "web"}), "is read when an offline pod is placed"),
    (pod({"kind": "offline", "avoid": "a,,b"}), "write at most 64 names of at most 128 characters"),
    (pod({"kind": "offline", "avoid": ",".join(["a"] * 65)}), "write at most 64 names"),
    (pod({"kind": "offline", "group": "g" * 129}), "metadata.annotations[cotenant.dev/group] = "),
    (pod({"gpus": "9" * 5000}), "write a whole number from 1 to 64"),
    (pod({"memory": "9" * 5000 + "GiB"}), "metadata.annotations[cotenant.dev/memory] = "),
    (pod({"memory": "4Zi"}), "metadata.annotations[cotenant.dev/memory] = '4Zi'"),
    (pod({"gpus": "\u0663"}), "metadata.annotations[cotenant.dev/gpus] = '\u0663'"),
    (pod({"slo": "50ms"}, nodeName="n1"), "spec.nodeName = 'n1'"),
    (pod(schedulingGates=[{"name": "cotenant.dev/round"}]), "would never be removed"),
    (pod({"memory": "1GiB"}, {"nvidia.com/gpumem": 2048}), "contradicts the resources of the container"),
    (pod({"share": "30%"}, {"nvidia.com/gpucores": 100}), "contradicts the resources of the container"),
    (pod({"gpus": "2"}, {"cotenant.dev/gpu": 1}), "contradicts the resources of the container"),
    (pod(limits={"nvidia.com/gpumem": "3Gi"}), "is a number of MiB; write it without a unit"),
    (pod(limits={"nvidia.com/gpumem": "1500m"}), "spec.containers[0].resources.limits[nvidia.com/gpumem]"),
    (pod(limits={"nvidia.com/gpumem": 10, "nvidia.com/gpumem-percentage": 10}), "states the memory a second time"),
    (pod(limits={"nvidia.com/gpumem-percentage": 101}), "write a percentage from 0 to 100"),
    (pod(limits={"nvidia.com/gpumem-percentage": 50}), "no GPU has been reported yet"),
    (pod(limits={"nvidia.com/gpucores": 101}), "from 0 to 100"),
    (pod(limits={"nvidia.com/gpucores": -1}), "must not be negative"),
    (pod(limits={"nvidia.com/gpumem": 10, "nvidia.com/priority": 2}), "write 0 (high) or 1 (low)"),
    (pod(limits={"nvidia.com/gpumem": 10, "nvidia.com/gpu": 0}), "write a number from 1 to 64"),
    (pod(limits={"nvidia.com/gpumem": 10, "cotenant.dev/gpu": 1, "nvidia.com/gpu": 1}), "names the same GPUs"),
    (pod({"slo": "1s"}, {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1}), "cannot be shared"),
    (pod(limits={"nvidia.com/gpumem": 10}, schedulerName="hami-scheduler"), "spec.schedulerName = 'hami-scheduler'"),
    (
        pod({"slo": "50ms"}, resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]),
        "spec.resourceClaims[0].name",
    ),
]


@pytest.mark.parametrize("value, message", REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_honoured_is_refused_with_the_field(value: Any, message: str) -> None:
    assert message in refusal_of("Pod", value)


def test_a_percentage_of_memory_needs_gpus_of_one_size() -> None:
    value = pod(limits={"nvidia.com/gpumem-percentage": 50})
    message = refusal_of("Pod", value, WebhookSettings(memory_sizes=(16 * GIB, 40 * GIB)))
    assert "the GPUs of this cluster have different sizes (16GiB, 40GiB)" in message


@pytest.mark.parametrize("name", ["nvidia.com/use-gputype", "hami.io/gpu-scheduler-policy"])
def test_a_selection_that_only_hami_knows_is_refused(name: str) -> None:
    value = pod(limits={"nvidia.com/gpumem": 10})
    value["metadata"]["annotations"] = {name: "x"}
    assert f"metadata.annotations[{name}] = 'x': is only read by HAMi" in refusal_of("Pod", value)


def test_two_containers_that_use_the_gpu_at_the_same_time_are_refused() -> None:
    value = pod(limits={"nvidia.com/gpumem": 10})
    value["spec"]["containers"].append({"name": "other", "resources": {"limits": {"nvidia.com/gpu": 1}}})
    assert "spec.containers[1] = 'other': asks for a GPU as well as spec.containers[0]" in refusal_of("Pod", value)
    sidecar = pod(limits={"nvidia.com/gpumem": 10})
    resources = {"limits": {"nvidia.com/gpumem": 10}}
    sidecar["spec"]["initContainers"] = [{"name": "s", "restartPolicy": "Always", "resources": resources}]
    assert "asks for a GPU as well as" in refusal_of("Pod", sidecar)


def test_an_init_container_with_another_request_is_refused() -> None:
    value = pod(limits={"nvidia.com/gpumem": 1024})
    value["spec"]["initContainers"] = [{"name": "warm", "resources": {"limits": {"nvidia.com/gpumem": "2048"}}}]
    assert "asks for other GPU resources than an init container" in refusal_of("Pod", value)


def test_an_ephemeral_container_cannot_use_a_gpu() -> None:
    value = pod(ephemeralContainers=[{"name": "debug", "resources": {"limits": {"nvidia.com/gpu": 1}}}])
    assert "spec.ephemeralContainers[0].resources = 'debug'" in refusal_of("Pod", value)


def test_variables_that_identify_a_tenant_are_refused() -> None:
    value = pod({"slo": "50ms"})
    value["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "COTENANT_SLOT", "value": "0"}]
    assert "spec.containers[0].env[1].name = 'COTENANT_SLOT'" in refusal_of("Pod", value)


def test_a_pod_that_got_its_name_after_the_claim_was_named_is_accepted() -> None:
    value = pod({"slo": "50ms"})
    del value["metadata"]["name"]
    value["metadata"]["generateName"] = "ranking-"
    translated = mutated("Pod", value)
    assert translated["metadata"]["labels"]["cotenant.dev/claim"].startswith("ranking-gpu-")
    translated["metadata"]["name"] = "ranking-x7k2p"
    assert answer_of(validate(review_of("Pod", translated), WebhookSettings()))["allowed"]
    assert mutated("Pod", translated) == translated


def test_a_copy_of_a_pod_with_the_claim_of_another_is_refused() -> None:
    copied = mutated("Pod", pod({"slo": "50ms"}))
    copied["metadata"]["name"] = "second"
    assert "names the claim of another pod" in refusal_of("Pod", copied)


def test_a_pod_that_was_not_translated_is_refused_by_the_validating_webhook() -> None:
    once = mutated("Pod", pod({"kind": "offline"}))
    del once["spec"]["schedulingGates"]
    answer = answer_of(validate(review_of("Pod", once), WebhookSettings()))
    assert not answer["allowed"]
    assert "another admission webhook changed it afterwards" in answer["status"]["message"]


def test_a_privileged_container_is_accepted_with_a_warning() -> None:
    value = pod({"slo": "50ms"})
    value["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    answer = answer_of(mutate(review_of("Pod", value), WebhookSettings()))
    assert answer["allowed"]
    assert "privileged" in answer["warnings"][0]


def test_a_pod_that_needs_more_memory_than_any_gpu_has_is_accepted_with_a_warning() -> None:
    settings = WebhookSettings(memory_sizes=(16 * GIB, 32 * GIB))
    for memory, count in (("33GiB", 1), ("32GiB", 0)):
        answer = answer_of(mutate(review_of("Pod", pod({"slo": "50ms", "memory": memory})), settings))
        assert answer["allowed"]
        assert len(answer.get("warnings", ())) == count
    answer = answer_of(mutate(review_of("Pod", pod({"slo": "50ms", "memory": "33GiB"})), settings))
    expected = "metadata.annotations[cotenant.dev/memory] = 33GiB: the largest GPU of this cluster has 32GiB; "
    assert answer["warnings"] == [f"{expected}the pod waits for a larger one"]


@pytest.mark.parametrize("name", ["annotations", "labels"])
def test_an_update_cannot_change_what_the_claim_was_made_from(name: str) -> None:
    old = mutated("Pod", pod({"slo": "50ms"}))
    new = mutated("Pod", pod({"slo": "50ms"}))
    new["metadata"][name].update({"cotenant.dev/slo": "10ms", "cotenant.dev/claim": "x"})
    answer = answer_of(validate(review_of("Pod", new, old, "UPDATE"), WebhookSettings()))
    assert not answer["allowed"]
    assert "cannot change" in answer["status"]["message"]


@pytest.mark.parametrize(
    "name, key, value",
    [("annotations", "cotenant.dev/kind", "offline"), ("labels", "cotenant.dev/claim", "x")],
)
def test_an_update_cannot_ask_for_a_gpu(name: str, key: str, value: str) -> None:
    old, new = pod(), pod()
    new["metadata"][name] = {key: value}
    message = answer_of(validate(review_of("Pod", new, old, "UPDATE"), WebhookSettings()))["status"]["message"]
    assert f"metadata.{name}[{key}] = '{value}': cannot change after the pod was created" in message


def test_other_updates_of_a_pod_that_was_not_translated_pass() -> None:
    old, new = pod({"kind": "offline"}), pod({"kind": "offline"})  # created while no webhook answered
    new["metadata"]["annotations"]["team"] = "a"
    assert answer_of(validate(review_of("Pod", new, old, "UPDATE"), WebhookSettings()))["allowed"]


def test_other_updates_and_subresources_pass() -> None:
    old = mutated("Pod", pod({"kind": "offline"}))
    new = mutated("Pod", pod({"kind": "offline"}))
    del new["spec"]["schedulingGates"]
    new["metadata"]["annotations"]["team"] = "a"
    settings = WebhookSettings()
    assert answer_of(validate(review_of("Pod", new, old, "UPDATE"), settings))["allowed"]
    assert answer_of(validate(review_of("Pod", {}, old, "UPDATE", subResource="status"), settings))["allowed"]
    assert patch_of(answer_of(mutate(review_of("Pod", new, old, "UPDATE"), settings))) == []
