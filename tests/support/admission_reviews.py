"""AdmissionReviews for tests of the webhook, and the application of the patches that it returns."""

import base64
import copy
from typing import Any

import msgspec

from cotenant.cluster.kubernetes.webhook.pod_request import WebhookSettings
from cotenant.cluster.kubernetes.webhook.review import mutate, validate

RESOURCES = {
    "Pod": ("", "v1", "pods"),
    "Job": ("batch", "v1", "jobs"),
    "ResourceClaim": ("resource.k8s.io", "v1", "resourceclaims"),
    "ResourceClaimTemplate": ("resource.k8s.io", "v1", "resourceclaimtemplates"),
}


def review_of(kind: str, value: Any, old: Any = None, operation: str = "CREATE", **fields: Any) -> bytes:
    """Return the AdmissionReview that the API server sends for an object."""
    group, version, resource = RESOURCES[kind]
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": resource},
        "operation": operation,
        "object": value,
        "oldObject": old,
        **fields,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def answer_of(body: bytes) -> dict[str, Any]:
    """Return the response of an AdmissionReview."""
    review = msgspec.json.decode(body)
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    answer: dict[str, Any] = review["response"]
    return answer


def mutated(kind: str, value: Any, settings: WebhookSettings | None = None, **fields: Any) -> Any:
    """Return an object after the mutating webhook; the object must be accepted."""
    answer = answer_of(mutate(review_of(kind, value, **fields), settings or WebhookSettings()))
    assert answer["allowed"], answer
    return apply_patch(value, patch_of(answer))


def refusal_of(kind: str, value: Any, settings: WebhookSettings | None = None) -> str:
    """Return the message with which both webhooks refuse an object."""
    settings = settings or WebhookSettings()
    answer = answer_of(validate(review_of(kind, value), settings))
    assert not answer["allowed"], answer
    if kind in ("Pod", "Job"):
        assert answer_of(mutate(review_of(kind, value), settings)) == answer
    message: str = answer["status"]["message"]
    return message


def patch_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operations of a response."""
    if "patch" not in answer:
        return []
    assert answer["patchType"] == "JSONPatch"
    operations: list[dict[str, Any]] = msgspec.json.decode(base64.b64decode(answer["patch"]))
    return operations


def apply_patch(value: Any, operations: list[dict[str, Any]]) -> Any:
    """Return a copy of a document after a JSON Patch."""
    root = {"": copy.deepcopy(value)}
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
        target: Any = root
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        _apply(target, last, operation)
    return root[""]


def _apply(target: Any, key: str, operation: dict[str, Any]) -> None:
    match operation["op"], target:
        case "add", list():
            assert key == "-" or 0 <= int(key) <= len(target)
            target.insert(len(target) if key == "-" else int(key), operation["value"])
        case "add", dict():
            target[key] = operation["value"]
        case "replace", list():
            target[int(key)] = operation["value"]
        case "replace", dict():
            assert key in target
            target[key] = operation["value"]
        case "remove", list():
            del target[int(key)]
        case "remove", dict():
            del target[key]
        case unknown:
            raise AssertionError(unknown)
