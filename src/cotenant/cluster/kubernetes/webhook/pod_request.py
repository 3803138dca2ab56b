"""Read what a pod, or the template of a Job, asks for: annotations of cotenant and resource names of its containers."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.plugin.parameters import parse_parameters
from cotenant.cluster.kubernetes.quantity import NAME_LIMIT, name_list, whole_number
from cotenant.cluster.kubernetes.webhook import hami
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, join_path, list_at, object_at, text_at
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.node.model.tenant import DEFAULT_PRIORITY
from cotenant.units.text import parse_duration, parse_share, parse_size

GPUS_LIMIT: Final = 64
GANG_LIMIT: Final = 1000
_SMALLEST_MEMORY: Final = 1 << 20
_PREFIX: Final = f"{names.GROUP}/"
_PARAMETERS: Final = {
    "kind": names.ANNOTATION_KIND,
    "priority": names.ANNOTATION_PRIORITY,
    "slo": names.ANNOTATION_SLO,
    "share": names.ANNOTATION_SHARE,
    "task": names.ANNOTATION_TASK,
}
"""The annotation of each parameter of a claim."""
_HAMI_ANNOTATIONS: Final = (
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/numa-bind",
    "nvidia.com/vgpu-mode",
)
"""Annotations with which pods select GPUs under HAMi's scheduler."""
_HAMI_SCHEDULER: Final = "hami-scheduler"
_RESERVED_VARIABLES: Final = ("COTENANT_GRANT", "COTENANT_SLOT")
"""Variables that identify a tenant to its node; a pod that sets them could not join with its own grant."""
_GANG_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class AllocationMode(enum.Enum):
    """How a container gets its GPU."""

    CLAIM = names.ALLOCATION_CLAIM
    """By a ResourceClaim of dynamic resource allocation."""
    DEVICE_PLUGIN = names.ALLOCATION_DEVICE_PLUGIN
    """By the extended resource of the device plugin; there are no placement rounds then."""


class WebhookSettings(msgspec.Struct, frozen=True):
    """Settings on which answers depend."""

    allocation: AllocationMode | None = AllocationMode.CLAIM
    """None: no node has reported yet how its GPUs are allocated."""
    is_fallback: bool = False
    """Whether the device plugin is used because the cluster lacks what claims need."""
    translate_plain_gpu: bool = False
    """Whether `nvidia.com/gpu` alone becomes a claim; it is otherwise left to NVIDIA's device plugin."""
    memory_sizes: tuple[int, ...] = ()
    """The different sizes of the GPUs of the cluster in bytes."""


class ContainerIndex(msgspec.Struct, frozen=True):
    """The position of a container in the specification of a pod."""

    field: str
    """`containers` or `initContainers`."""
    index: int

    def path(self, prefix: str) -> str:
        """Return the path of the container for messages."""
        return f"{join_path(prefix, 'spec')}.{self.field}[{self.index}]"


class GpuRequest(msgspec.Struct, frozen=True):
    """What a pod asks for."""

    kind: Kind
    gpus: int
    annotations: dict[str, str]
    """Every annotation of cotenant that describes the request, including those that were derived."""
    containers: tuple[ContainerIndex, ...]
    """The containers that use the GPU."""


def read_request(pod: JsonObject, settings: WebhookSettings, *, of_job: bool, prefix: str = "") -> GpuRequest | None:
    """Return what a pod asks for; None if it asks for nothing that cotenant provides.

    `of_job` says whether a Job creates the pod. `prefix` is the path of a pod template within its object.
    """
    annotations = annotations_of(pod, prefix)
    own = {name: value for name, value in annotations.items() if name.startswith(_PREFIX)}
    _check_known(own, prefix)
    marked = _marked_containers(pod, settings, prefix, annotated=bool(own))
    if not own and not marked:
        _check_no_gate(pod, prefix)
        _check_no_label(pod, prefix)
        return None
    containers = marked or [_only_container(pod, prefix, next(iter(own)))]
    resources = _common_resources(pod, containers, settings, prefix)
    if resources.is_hami:
        _check_hami_fields(pod, annotations, prefix)
    for container in containers:
        _check_variables(container_at(pod, container), container.path(prefix))
    kind = _kind_of(own, prefix, of_job=of_job)
    values = _merge(own, resources, kind, prefix)
    _check_values(values, kind, prefix)
    if settings.allocation is AllocationMode.DEVICE_PLUGIN:
        _check_no_round(values, prefix)
    return GpuRequest(kind, int(values[names.ANNOTATION_GPUS]), values, tuple(containers))


def annotations_of(pod: JsonObject, prefix: str = "") -> dict[str, str]:
    """Return the annotations of a pod, which are text."""
    metadata = object_at(pod, "metadata", prefix)
    annotations = object_at(metadata, "annotations", join_path(prefix, "metadata"))
    for name in annotations:
        text_at(annotations, name, annotation_path("", prefix))
    return {name: value for name, value in annotations.items() if value is not None}


def annotation_path(name: str, prefix: str) -> str:
    """Return the path of an annotation for messages."""
    path = f"{join_path(prefix, 'metadata')}.annotations"
    return join_path(path, name) if name else path


def container_at(pod: JsonObject, container: ContainerIndex) -> JsonObject:
    """Return a container of a pod."""
    found: JsonObject = pod["spec"][container.field][container.index]
    return found


def _containers(pod: JsonObject, prefix: str) -> Iterator[tuple[ContainerIndex, JsonObject]]:
    path = join_path(prefix, "spec")
    spec = object_at(pod, "spec", prefix)
    for field in ("initContainers", "containers"):
        for index, container in enumerate(list_at(spec, field, path)):
            yield ContainerIndex(field, index), container


def _check_known(own: dict[str, str], prefix: str) -> None:
    for name, value in own.items():
        if name not in names.ANNOTATIONS:
            near = difflib.get_close_matches(name, names.ANNOTATIONS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(names.ANNOTATIONS)}"
            raise ConfigError(annotation_path(name, prefix), value, f"is not an annotation of cotenant; {remedy}")


def _check_no_gate(pod: JsonObject, prefix: str) -> None:
    path = join_path(prefix, "spec")
    for gate in list_at(object_at(pod, "spec", prefix), "schedulingGates", path):
        if gate.get("name") == names.GATE:
            remedy = f"would never be removed, because the pod asks for no GPU; add {names.ANNOTATION_KIND}: offline"
            raise ConfigError(f"{path}.schedulingGates", names.GATE, remedy)


def _check_no_label(pod: JsonObject, prefix: str) -> None:
    """Refuse the label of a claim where nothing asks for one: the controller would create the claim all the same."""
    path = join_path(prefix, "metadata")
    labels = object_at(object_at(pod, "metadata", prefix), "labels", path)
    if names.LABEL_CLAIM in labels:
        field = join_path(f"{path}.labels", names.LABEL_CLAIM)
        remedy = f"names a claim, and the pod asks for no GPU; remove it, or add {names.ANNOTATION_KIND}"
        raise ConfigError(field, labels[names.LABEL_CLAIM], remedy)


def _marked_containers(
    pod: JsonObject, settings: WebhookSettings, prefix: str, *, annotated: bool
) -> list[ContainerIndex]:
    """Return the containers that ask for a GPU; refuse those that would use it at the same time."""
    path = join_path(prefix, "spec")
    for index, container in enumerate(list_at(object_at(pod, "spec", prefix), "ephemeralContainers", path)):
        if hami.asks_for_gpu(container, f"{path}.ephemeralContainers[{index}]", plain=True):
            field = f"{path}.ephemeralContainers[{index}].resources"
            raise ConfigError(field, container.get("name"), "an ephemeral container cannot use a GPU; remove it")
    plain = settings.translate_plain_gpu or annotated
    found = list(_asking(pod, prefix, plain=plain))
    if found and not plain:  # the pod is translated, so that a plain GPU of another container must not be overlooked
        found = list(_asking(pod, prefix, plain=True))
    concurrent = [
        container
        for container in found
        if container.field == "containers" or container_at(pod, container).get("restartPolicy") == "Always"
    ]
    if len(concurrent) > 1:
        first, second = concurrent[:2]
        remedy = f"asks for a GPU as well as {first.path(prefix)}; a pod has one GPU claim: use a pod for each"
        raise ConfigError(second.path(prefix), container_at(pod, second).get("name"), remedy)
    return found


def _asking(pod: JsonObject, prefix: str, *, plain: bool) -> Iterator[ContainerIndex]:
    for container, value in _containers(pod, prefix):
        path = container.path(prefix)
        claims = list_at(object_at(value, "resources", path), "claims", f"{path}.resources")
        is_claimed = any(claim.get("name") == names.POD_CLAIM for claim in claims) and _is_translated(pod, prefix)
        if is_claimed or hami.asks_for_gpu(value, path, plain=plain):
            yield container


def _is_translated(pod: JsonObject, prefix: str = "") -> bool:
    """Return whether the webhook has given a pod the name of a claim before."""
    labels = object_at(object_at(pod, "metadata", prefix), "labels", join_path(prefix, "metadata"))
    return names.LABEL_CLAIM in labels


def _only_container(pod: JsonObject, prefix: str, annotation: str) -> ContainerIndex:
    """Return the container that an annotation is about, if no container asks by itself."""
    regular = [container for container, _ in _containers(pod, prefix) if container.field == "containers"]
    if len(regular) != 1:
        remedy = (
            f"the pod has {len(regular)} containers; "
            f'write resources.limits["{names.EXTENDED_RESOURCE}"]: 1 in the one that uses the GPU'
        )
        raise ConfigError(annotation_path(annotation, prefix), annotations_of(pod, prefix)[annotation], remedy)
    return regular[0]


def _common_resources(
    pod: JsonObject, containers: list[ContainerIndex], settings: WebhookSettings, prefix: str
) -> hami.ContainerResources:
    """Return what the containers ask for; init containers must ask for the same as the others."""
    common: hami.ContainerResources | None = None
    for container in containers:
        path = container.path(prefix)
        value = container_at(pod, container)
        resources = hami.read_resources(value, path, settings.memory_sizes)
        if common is not None and resources != common:
            remedy = "asks for other GPU resources than an init container, and a pod has one GPU claim; make them equal"
            raise ConfigError(path, value.get("name"), remedy)
        common = resources
    return common or hami.ContainerResources()


def _check_hami_fields(pod: JsonObject, annotations: dict[str, str], prefix: str) -> None:
    for name, value in annotations.items():
        if name in _HAMI_ANNOTATIONS or name.startswith("hami.io/"):
            remedy = "is only read by HAMi; remove it, and select nodes with spec.nodeSelector or spec.affinity"
            raise ConfigError(annotation_path(name, prefix), value, remedy)
    path = join_path(prefix, "spec")
    if text_at(object_at(pod, "spec", prefix), "schedulerName", path) == _HAMI_SCHEDULER:
        remedy = "would ignore the claim of the pod; remove it, so that kube-scheduler binds the pod"
        raise ConfigError(f"{path}.schedulerName", _HAMI_SCHEDULER, remedy)


def _check_variables(container: JsonObject, path: str) -> None:
    for index, variable in enumerate(list_at(container, "env", path)):
        if variable.get("name") in _RESERVED_VARIABLES:
            remedy = "is set by the node, which identifies the tenant by it; remove it"
            raise ConfigError(f"{path}.env[{index}].name", variable["name"], remedy)


def _kind_of(own: dict[str, str], prefix: str, *, of_job: bool) -> Kind:
    """Return the kind: as annotated, online with a latency objective, offline in a Job, and online otherwise."""
    text = own.get(names.ANNOTATION_KIND)
    if text is None:
        return Kind.OFFLINE if of_job and names.ANNOTATION_SLO not in own else Kind.ONLINE
    if text not in {kind.value for kind in Kind}:
        raise ConfigError(annotation_path(names.ANNOTATION_KIND, prefix), text, "write online or offline")
    return Kind(text)


def _merge(own: dict[str, str], resources: hami.ContainerResources, kind: Kind, prefix: str) -> dict[str, str]:
    """Return annotations with what resource names state; a contradiction is refused."""
    derived = {names.ANNOTATION_KIND: kind.value}
    if resources.gpus is not None or names.ANNOTATION_GPUS not in own:
        derived[names.ANNOTATION_GPUS] = str(resources.gpus or 1)
    if resources.memory:
        derived[names.ANNOTATION_MEMORY] = resources.memory
    if resources.hami_priority is not None:
        derived[names.ANNOTATION_PRIORITY] = str(DEFAULT_PRIORITY[kind] - (resources.hami_priority == 0))
    share = resources.share or ("" if names.ANNOTATION_SHARE in own else resources.default_share)
    if share:
        derived[names.ANNOTATION_SHARE] = share
    for name, value in derived.items():
        if name in own and _amount(name, own[name], prefix) != _amount(name, value, prefix):
            remedy = f"contradicts the resources of the container, which ask for {value}; keep one of them"
            raise ConfigError(annotation_path(name, prefix), own[name], remedy)
    return {**derived, **own}


def _amount(name: str, text: str, prefix: str) -> Any:
    """Return the value of an annotation such that equal amounts are equal."""
    field = annotation_path(name, prefix)
    if name == names.ANNOTATION_MEMORY:
        return parse_size(text, field=field)
    if name == names.ANNOTATION_SHARE:
        return parse_share(text, field=field)
    if name in (names.ANNOTATION_GPUS, names.ANNOTATION_PRIORITY):
        return whole_number(text, field, 0, 1 << 31)
    return text


def _check_values(values: dict[str, str], kind: Kind, prefix: str) -> None:
    """Refuse annotations with values that no claim could have."""
    for name, limit in ((names.ANNOTATION_GPUS, GPUS_LIMIT), (names.ANNOTATION_GANG_SIZE, GANG_LIMIT)):
        if name in values:
            whole_number(values[name], annotation_path(name, prefix), 1, limit)
    if names.ANNOTATION_MEMORY in values:
        field, text = annotation_path(names.ANNOTATION_MEMORY, prefix), values[names.ANNOTATION_MEMORY]
        if parse_size(text, field=field) < _SMALLEST_MEMORY:
            raise ConfigError(field, text, "must be at least 1MiB; remove it to reserve the whole memory of the GPU")
    profile = values.get(names.ANNOTATION_PROFILE, "")
    if len(profile) > NAME_LIMIT:
        remedy = f"must have at most {NAME_LIMIT} characters; shorten it"
        raise ConfigError(annotation_path(names.ANNOTATION_PROFILE, prefix), profile, remedy)
    _check_gang(values, kind, prefix)
    _check_neighbours(values, prefix)
    for name in (names.ANNOTATION_AVOID, names.ANNOTATION_GROUP):
        if name in values and kind is Kind.ONLINE:
            remedy = f"is read when an offline pod is placed; write {names.ANNOTATION_KIND}: offline, or remove it"
            raise ConfigError(annotation_path(name, prefix), values[name], remedy)
    parameters: dict[str, Any] = {key: values[name] for key, name in _PARAMETERS.items() if name in values}
    if "priority" in parameters:
        field = annotation_path(names.ANNOTATION_PRIORITY, prefix)
        parameters["priority"] = whole_number(parameters["priority"], field, 0, 9)
    try:
        parse_parameters(parameters)
    except ConfigError as error:
        key = error.field.rpartition(".")[2]
        name = _PARAMETERS.get(key, names.ANNOTATION_KIND)
        raise ConfigError(annotation_path(name, prefix), values[name], error.remedy) from None
    if "slo" in parameters:
        parse_duration(parameters["slo"], field=annotation_path(names.ANNOTATION_SLO, prefix))


def _check_gang(values: dict[str, str], kind: Kind, prefix: str) -> None:
    gang, size = values.get(names.ANNOTATION_GANG), values.get(names.ANNOTATION_GANG_SIZE)
    if gang is None and size is None:
        return
    if gang is None or size is None:
        given, missing = names.ANNOTATION_GANG, names.ANNOTATION_GANG_SIZE
        if gang is None:
            given, missing = missing, given
        raise ConfigError(annotation_path(given, prefix), values[given], f"needs {missing} too; add it")
    if not _GANG_NAME.fullmatch(gang):
        remedy = "write at most 63 lower-case letters, digits and dashes"
        raise ConfigError(annotation_path(names.ANNOTATION_GANG, prefix), gang, remedy)
    if kind is Kind.ONLINE:
        remedy = f"only offline pods are placed as a gang; write {names.ANNOTATION_KIND}: offline, or remove it"
        raise ConfigError(annotation_path(names.ANNOTATION_GANG, prefix), gang, remedy)


def _check_neighbours(values: dict[str, str], prefix: str) -> None:
    group = values.get(names.ANNOTATION_GROUP)
    if group is not None and not 1 <= len(group) <= NAME_LIMIT:
        remedy = f"write a name of at most {NAME_LIMIT} characters"
        raise ConfigError(annotation_path(names.ANNOTATION_GROUP, prefix), group, remedy)
    if names.ANNOTATION_AVOID in values:
        name_list(values[names.ANNOTATION_AVOID], annotation_path(names.ANNOTATION_AVOID, prefix))


def _check_no_round(values: dict[str, str], prefix: str) -> None:
    """Refuse what only a placement round could honour, where there are none."""
    for name in (names.ANNOTATION_GANG, names.ANNOTATION_AVOID, names.ANNOTATION_GROUP):
        if name in values:
            remedy = (
                "needs placement rounds, which this cluster does not have (the device plugin allocates GPUs); remove it"
            )
            raise ConfigError(annotation_path(name, prefix), values[name], remedy)
