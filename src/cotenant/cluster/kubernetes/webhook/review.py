"""AdmissionReview (admission.k8s.io/v1): decode a request of the API server, decide, and encode the answer.

The answer depends on the request and the settings only. Nothing is created or changed here, so that a dry run and a
second call for the same object are safe.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes.names import CLAIM_SUFFIX_DIGITS
from cotenant.cluster.kubernetes.webhook.claim_check import validate_claim, validate_claim_template
from cotenant.cluster.kubernetes.webhook.job_patch import translate_job
from cotenant.cluster.kubernetes.webhook.json_patch import difference
from cotenant.cluster.kubernetes.webhook.objects import JsonObject
from cotenant.cluster.kubernetes.webhook.pod_patch import (
    Translation,
    translate_pod,
    validate_pod,
    validate_pod_update,
)
from cotenant.cluster.kubernetes.webhook.pod_request import WebhookSettings
from cotenant.errors import ConfigError, PeerError

_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_UNPROCESSABLE: Final = 422
_TOO_DEEP: Final = "the object of the review is nested too deeply"
_WARNING_LIMIT: Final = 250
"""The API server cuts longer warnings."""


class GroupVersionResource(msgspec.Struct, frozen=True):
    """The resource of a request, such as pods."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a request that decisions depend on."""

    uid: str
    resource: GroupVersionResource
    operation: str = "CREATE"
    sub_resource: str = ""
    object: Any = None
    old_object: Any = None


class ReviewRequest(msgspec.Struct, frozen=True, rename="camel"):
    """An AdmissionReview as the API server sends it."""

    api_version: str
    kind: str
    request: AdmissionRequest


def mutate(body: bytes, settings: WebhookSettings) -> bytes:
    """Return the answer of the mutating webhook; PeerError if the body is not an AdmissionReview."""
    request = _decode(body)
    try:
        old = _object_of(request.object, "object")
        new, warnings = _translation(request, old, settings)
        patch = difference(old, new)
    except ConfigError as error:
        return _refusal(request.uid, error)
    except RecursionError:
        raise PeerError(_TOO_DEEP) from None
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    if warnings:
        response["warnings"] = [warning[:_WARNING_LIMIT] for warning in warnings]
    return _encode(response)


def validate(body: bytes, settings: WebhookSettings) -> bytes:
    """Return the answer of the validating webhook; PeerError if the body is not an AdmissionReview."""
    request = _decode(body)
    try:
        _check(request, settings)
    except ConfigError as error:
        return _refusal(request.uid, error)
    except RecursionError:
        raise PeerError(_TOO_DEEP) from None
    return _encode({"uid": request.uid, "allowed": True})


def _translation(request: AdmissionRequest, old: JsonObject, settings: WebhookSettings) -> Translation:
    if request.operation != "CREATE" or request.sub_resource:
        return Translation(old)
    if _is_resource(request, "", "pods"):
        # The uid of a request is unique, so that the claims of two pods of one Job have different names.
        digest = hashlib.sha256(request.uid.encode()).hexdigest()
        return translate_pod(old, digest[:CLAIM_SUFFIX_DIGITS], settings)
    if _is_resource(request, "batch", "jobs"):
        return translate_job(old, settings)
    return Translation(old)


def _check(request: AdmissionRequest, settings: WebhookSettings) -> None:
    if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
        return
    value = _object_of(request.object, "object")
    is_update = request.operation == "UPDATE"
    if _is_resource(request, "", "pods"):
        if is_update:
            validate_pod_update(_object_of(request.old_object, "oldObject"), value)
        else:
            validate_pod(value, settings)
    elif _is_resource(request, "batch", "jobs") and not is_update:
        translate_job(value, settings)
    elif _is_resource(request, "resource.k8s.io", "resourceclaims"):
        validate_claim(value)
    elif _is_resource(request, "resource.k8s.io", "resourceclaimtemplates"):
        validate_claim_template(value)


def _is_resource(request: AdmissionRequest, group: str, resource: str) -> bool:
    return (request.resource.group, request.resource.resource) == (group, resource)


def _object_of(value: Any, field: str) -> JsonObject:
    if not isinstance(value, dict):
        raise ConfigError(f"request.{field}", value, "must be an object")
    return value


def _decode(body: bytes) -> AdmissionRequest:
    try:
        review = msgspec.json.decode(body, type=ReviewRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"the body is not an AdmissionReview: {error}") from None
    if (review.api_version, review.kind) != (_VERSION, _KIND):
        found = f"{review.api_version[:100]} {review.kind[:100]}"
        raise PeerError(f"the body is {found}, and this webhook answers {_VERSION} {_KIND}")
    return review.request


def _refusal(uid: str, error: ConfigError) -> bytes:
    status = {"status": "Failure", "message": str(error), "reason": "Invalid", "code": _UNPROCESSABLE}
    return _encode({"uid": uid, "allowed": False, "status": status})


def _encode(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": _VERSION, "kind": _KIND, "response": response})
