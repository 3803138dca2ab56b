"""Translate a pod: its request becomes the name of a claim, claims of its containers, a gate and annotations."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.webhook import hami
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, join_path, list_at, object_at, text_at
from cotenant.cluster.kubernetes.webhook.pod_request import (
    AllocationMode,
    ContainerIndex,
    GpuRequest,
    WebhookSettings,
    annotation_path,
    annotations_of,
    container_at,
    read_request,
)
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.units.text import format_size, parse_size

_SUFFIX: Final = re.compile(rf"[0-9a-f]{{{names.CLAIM_SUFFIX_DIGITS}}}")


class Translation(NamedTuple):
    """A pod or a Job as it should be, and what its user should know."""

    object: JsonObject
    warnings: tuple[str, ...] = ()


def translate_pod(pod: JsonObject, suffix: str, settings: WebhookSettings) -> Translation:
    """Return the pod as it should be created; `suffix` makes the name of its claim unique.

    A translated pod is returned as it is, so that the webhook may be called again for the same pod.
    """
    request = read_request(pod, settings, of_job=is_of_job(pod))
    if request is None:
        return Translation(pod)
    _check_node_name(pod, request)
    allocation = _allocation(settings, request)
    translated: JsonObject = msgspec.json.decode(msgspec.json.encode(pod))
    metadata, spec = translated.setdefault("metadata", {}), translated["spec"]
    metadata["annotations"] = {**annotations_of(pod), **request.annotations}
    metadata["labels"] = {**object_at(metadata, "labels", "metadata"), names.LABEL_KIND: request.kind.value}
    if allocation is AllocationMode.CLAIM:
        _add_claim(pod, metadata, spec, suffix)
    for container in request.containers:
        _translate_container(container_at(translated, container), request, allocation)
    if request.kind is Kind.OFFLINE and allocation is AllocationMode.CLAIM:
        gates = list_at(spec, "schedulingGates", "spec")
        if all(gate.get("name") != names.GATE for gate in gates):
            spec["schedulingGates"] = [*gates, {"name": names.GATE}]
    return Translation(translated, tuple(_warnings(pod, request, settings)))


def _allocation(settings: WebhookSettings, request: GpuRequest) -> AllocationMode:
    if settings.allocation is not None:
        return settings.allocation
    remedy = (
        "no node has reported yet whether claims or the device plugin allocate its GPUs; see `kubectl get gpunodes`, "
        "and create the pod again"
    )
    raise ConfigError(annotation_path(names.ANNOTATION_KIND, ""), request.kind.value, remedy)


def validate_pod(pod: JsonObject, settings: WebhookSettings) -> None:
    """Raise ConfigError unless a pod needs no translation, or was translated and not changed since."""
    request = read_request(pod, settings, of_job=is_of_job(pod))
    if request is None:
        return
    if translate_pod(pod, "0" * names.CLAIM_SUFFIX_DIGITS, settings).object != pod:
        annotation = names.ANNOTATION_KIND
        remedy = (
            "the pod was not translated, or another admission webhook changed it afterwards; "
            "check the MutatingWebhookConfiguration of cotenant and its reinvocationPolicy"
        )
        raise ConfigError(annotation_path(annotation, ""), request.kind.value, remedy)


def validate_pod_update(old: JsonObject, new: JsonObject) -> None:
    """Raise ConfigError if an update changes what the claim of a pod was made from, or asks for a GPU too late."""
    before, after = annotations_of(old), annotations_of(new)
    for name in names.ANNOTATIONS:
        if before.get(name) != after.get(name):
            remedy = "cannot change after the pod was created, because its claim was made from it; create the pod again"
            raise ConfigError(annotation_path(name, ""), after.get(name), remedy)
    for name in (names.LABEL_CLAIM, names.LABEL_KIND):
        if _label(old, name) != _label(new, name):
            remedy = f"cannot change after the pod was created; it was {_label(old, name)!r}, so create the pod again"
            raise ConfigError(join_path("metadata.labels", name), _label(new, name), remedy)


def is_of_job(pod: JsonObject) -> bool:
    """Return whether a Job creates the pod."""
    owners = list_at(object_at(pod, "metadata"), "ownerReferences", "metadata")
    return any(owner.get("kind") == "Job" and owner.get("controller") is True for owner in owners)


def _label(pod: JsonObject, name: str) -> str:
    labels = object_at(object_at(pod, "metadata"), "labels", "metadata")
    return text_at(labels, name, "metadata.labels")


def _check_node_name(pod: JsonObject, request: GpuRequest) -> None:
    node = text_at(object_at(pod, "spec"), "nodeName", "spec")
    if node:
        remedy = f"a pod of kind {request.kind.value} must pass the scheduler to get its GPU; use spec.nodeSelector"
        raise ConfigError("spec.nodeName", node, remedy)


def _add_claim(pod: JsonObject, metadata: JsonObject, spec: JsonObject, suffix: str) -> None:
    """Add the name of the claim, or check the one that an earlier call added.

    A pod that has only a generateName when the claim is named has a name as well when it is validated.
    """
    given = [text_at(metadata, field, "metadata") for field in ("name", "generateName")]
    prefixes = [prefix for prefix in given if prefix] or [""]
    claim = _label(pod, names.LABEL_CLAIM)
    if claim:
        starts = [names.claim_name(prefix, "") for prefix in prefixes]
        if not any(claim.startswith(start) and _SUFFIX.fullmatch(claim[len(start) :]) for start in starts):
            remedy = "names the claim of another pod; remove this label and the entry gpu of spec.resourceClaims"
            raise ConfigError(join_path("metadata.labels", names.LABEL_CLAIM), claim, remedy)
    else:
        claim = names.claim_name(prefixes[0], suffix)
    entry = {"name": names.POD_CLAIM, "resourceClaimName": claim}
    entries = list_at(spec, "resourceClaims", "spec")
    for index, existing in enumerate(entries):
        if existing.get("name") == names.POD_CLAIM and existing != entry:
            remedy = (
                "is the name of the claim that the annotations or resources of the pod ask for; "
                "rename this claim, or remove the annotations of cotenant"
            )
            raise ConfigError(f"spec.resourceClaims[{index}].name", names.POD_CLAIM, remedy)
    if entry not in entries:
        spec["resourceClaims"] = [*entries, entry]
    metadata["labels"] = {**object_at(metadata, "labels", "metadata"), names.LABEL_CLAIM: claim}


def _translate_container(container: JsonObject, request: GpuRequest, allocation: AllocationMode) -> None:
    resources = dict(object_at(container, "resources"))
    for kind in ("limits", "requests"):
        amounts = {name: value for name, value in object_at(resources, kind).items() if name not in hami.TRANSLATED}
        if allocation is AllocationMode.DEVICE_PLUGIN:
            amounts[names.EXTENDED_RESOURCE] = str(request.gpus)
        if amounts or object_at(resources, kind):
            resources[kind] = amounts
    if allocation is AllocationMode.CLAIM:
        claims = list_at(resources, "claims")
        if all(claim.get("name") != names.POD_CLAIM for claim in claims):
            resources["claims"] = [*claims, {"name": names.POD_CLAIM}]
    container["resources"] = resources


def _warnings(pod: JsonObject, request: GpuRequest, settings: WebhookSettings) -> list[str]:
    """Return what the user should know about a pod that is accepted."""
    fallback = (
        "the cluster lacks what claims need, so the device plugin allocates the GPU of this pod, without a placement "
        "round; `cotenant kubernetes check` names what is missing"
    )
    return (
        [fallback] * settings.is_fallback
        + size_warnings(request, settings)
        + [
            f"{container.path('')}.securityContext.privileged = true: the container can reach every GPU of its node, "
            "whatever its claim says"
            for container in request.containers
            if _is_privileged(pod, container)
        ]
    )


def size_warnings(request: GpuRequest, settings: WebhookSettings, prefix: str = "") -> list[str]:
    """Return a warning if no GPU that was reported is large enough; a node with larger ones may still come."""
    name, largest = names.ANNOTATION_MEMORY, max(settings.memory_sizes, default=0)
    text = request.annotations.get(name, "")
    if not text or not largest or parse_size(text, field=name) <= largest:
        return []
    remedy = f"the largest GPU of this cluster has {format_size(largest)}; the pod waits for a larger one"
    return [f"{annotation_path(name, prefix)} = {text}: {remedy}"]


def _is_privileged(pod: JsonObject, container: ContainerIndex) -> bool:
    context = object_at(container_at(pod, container), "securityContext", container.path(""))
    return context.get("privileged") is True
