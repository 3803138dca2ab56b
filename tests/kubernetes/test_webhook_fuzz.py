"""The webhook answers arbitrary JSON: it refuses or accepts, and what it accepts is stable and valid."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cluster.kubernetes.names import ANNOTATIONS
from cotenant.cluster.kubernetes.webhook.hami import TRANSLATED
from cotenant.cluster.kubernetes.webhook.json_patch import difference
from cotenant.cluster.kubernetes.webhook.pod_request import AllocationMode, WebhookSettings
from cotenant.cluster.kubernetes.webhook.review import mutate, validate
from cotenant.errors import PeerError
from tests.support.admission_reviews import RESOURCES, answer_of, apply_patch, patch_of, review_of

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["offline", "online", "50ms", "30%", "4GiB", "1", "0", "3k", "gpu", "Never", "cotenant.dev/round"]),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), TEXTS)
KEYS = st.one_of(
    st.sampled_from([*ANNOTATIONS, *TRANSLATED, "cotenant.dev/claim", "nvidia.com/mig-1g.5gb", "a/b~c"]),
    st.sampled_from(
        ["metadata", "spec", "annotations", "labels", "containers", "initContainers", "resources", "limits", "requests"]
    ),
    st.sampled_from(["claims", "resourceClaims", "schedulingGates", "name", "template", "podFailurePolicy", "rules"]),
    st.sampled_from(["devices", "exactly", "deviceClassName", "config", "opaque", "driver", "parameters", "capacity"]),
    st.text(max_size=5),
)
JSON = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4))
)
AMOUNTS = st.dictionaries(st.sampled_from(TRANSLATED), st.one_of(st.integers(-2, 200), TEXTS, JSON), max_size=3)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.one_of(st.fixed_dictionaries({"limits": AMOUNTS}, optional={"requests": AMOUNTS}), JSON),
        "restartPolicy": TEXTS,
        "env": JSON,
    },
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("pod")},
            optional={
                "annotations": st.dictionaries(st.sampled_from(ANNOTATIONS), TEXTS, max_size=4),
                "labels": st.dictionaries(KEYS, TEXTS, max_size=1),
                "ownerReferences": st.just([{"kind": "Job", "controller": True}]),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINERS, min_size=1, max_size=2)},
            optional={"initContainers": st.lists(CONTAINERS, max_size=1), "resourceClaims": JSON, "nodeName": TEXTS},
        ),
    }
)
SETTINGS = st.builds(
    WebhookSettings,
    st.sampled_from(AllocationMode),
    st.booleans(),
    st.sampled_from([(), (1 << 34,), (1 << 34, 1 << 35)]),
)


@given(st.sampled_from(sorted(RESOURCES)), JSON, JSON, st.sampled_from(["CREATE", "UPDATE", "DELETE"]), SETTINGS)
def test_any_object_gets_an_answer(kind: str, value: Any, old: Any, operation: str, settings: WebhookSettings) -> None:
    review = review_of(kind, value, old, operation)
    for answer in (answer_of(mutate(review, settings)), answer_of(validate(review, settings))):
        assert isinstance(answer["allowed"], bool)
        assert answer["allowed"] or answer["status"]["message"]


@given(PODS, SETTINGS)
def test_an_accepted_pod_is_stable_and_valid(value: Any, settings: WebhookSettings) -> None:
    answer = answer_of(mutate(review_of("Pod", value), settings))
    if not answer["allowed"]:
        assert not answer_of(validate(review_of("Pod", value), settings))["allowed"]
        return
    translated = apply_patch(value, patch_of(answer))
    again = answer_of(mutate(review_of("Pod", translated, uid="2"), settings))
    assert again["allowed"]
    assert patch_of(again) == []
    assert answer_of(validate(review_of("Pod", translated), settings))["allowed"]
    if translated != value:
        containers = [*translated["spec"]["containers"], *(translated["spec"].get("initContainers") or [])]
        for container in containers:  # nothing that asks for a GPU is left without the claim
            resources = container.get("resources") or {}
            amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            left = {name for name, amount in amounts.items() if name in TRANSLATED and amount not in ("0", 0, None)}
            assert left <= ({"cotenant.dev/gpu"} if settings.allocation is AllocationMode.DEVICE_PLUGIN else set())


@given(JSON, JSON)
def test_a_patch_turns_one_document_into_the_other(old: Any, new: Any) -> None:
    assert msgspec.json.encode(apply_patch(old, difference(old, new)), order="sorted") == msgspec.json.encode(
        new, order="sorted"
    )


@given(st.one_of(st.binary(max_size=200), JSON.map(msgspec.json.encode)))
def test_a_body_that_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(PeerError):
        mutate(body, WebhookSettings())


@pytest.mark.parametrize("depth", [100, 500, 5000])
def test_deep_nesting_is_answered_or_refused(depth: int) -> None:
    review = review_of("Pod", "NESTED").replace(b'"NESTED"', b'{"metadata":' * depth + b"{}" + b"}" * depth)
    for decide in (mutate, validate):
        try:
            answer_of(decide(review, WebhookSettings()))
        except PeerError:
            assert depth > 100
