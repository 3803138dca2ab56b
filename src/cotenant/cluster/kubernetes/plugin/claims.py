"""Reads a ResourceClaim: which pod it is for, which GPU was allocated to it, and what it asks of the GPU.

The fields are those of resource.k8s.io/v1 (k8s.io/api v0.35.4, resource/v1/types.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.plugin.parameters import TenantParameters, parse_parameters
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import format_share

_PERCENT_PPM: Final = WHOLE_PPM // 100
_SUFFIXES: Final = {
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)},
    **{prefix: Decimal(1000) ** power for power, prefix in enumerate("kMGTPE", 1)},
    "m": Decimal(1) / 1000,
    "u": Decimal(1) / 1000**2,
    "n": Decimal(1) / 1000**3,
}
"""The suffixes of a Quantity (k8s.io/apimachinery pkg/api/resource); m is a thousandth."""


class _Reference(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource: str = ""


class _Opaque(msgspec.Struct, rename="camel"):
    driver: str = ""
    parameters: Any = None


class _Config(msgspec.Struct, rename="camel"):
    source: str = ""
    requests: list[str] = []
    opaque: _Opaque | None = None


class AllocatedDevice(msgspec.Struct, rename="camel"):
    """A device that was allocated to a claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] = {}
    admin_access: bool | None = None


class _Devices(msgspec.Struct, rename="camel"):
    results: list[AllocatedDevice] = []
    config: list[_Config] = []


class _Allocation(msgspec.Struct, rename="camel"):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _ClaimStatus(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Reference] = []


class ClaimMeta(msgspec.Struct, rename="camel"):
    """Metadata of a claim."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class ResourceClaim(msgspec.Struct, rename="camel"):
    """The fields of a ResourceClaim that a driver reads."""

    metadata: ClaimMeta
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)


class GpuClaim(msgspec.Struct, frozen=True):
    """What a claim gives to its pod."""

    uid: str
    pod_uid: str
    name: str
    """The name of the tenant: that of the pod, with the beginning of the claim's uid."""
    parameters: TenantParameters
    memory_bytes: int
    devices: tuple[AllocatedDevice, ...]


def read_claim(claim: ResourceClaim, uid: str) -> GpuClaim:
    """Return what a claim gives; raise `ConfigError` that says what is wrong with it."""
    meta, where = claim.metadata, f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    if meta.uid != uid:
        raise ConfigError("uid", uid, f"the claim was deleted and created again as {meta.uid}; wait", where=where)
    allocation = claim.status.allocation
    results = [] if allocation is None else [one for one in allocation.devices.results if one.driver == names.DRIVER]
    if allocation is None or not results:
        remedy = "no GPU is allocated to the claim; wait until the scheduler has placed its pod"
        raise ConfigError("status.allocation", None, remedy, where=where)
    pods = [reference for reference in claim.status.reserved_for if reference.resource == "pods"]
    if len(pods) != 1:
        remedy = "a claim is of exactly one pod; use a ResourceClaimTemplate, or one claim for each pod"
        raise ConfigError("status.reservedFor", [pod.name for pod in pods], remedy, where=where)
    _check_results(results, where)
    parameters = _parameters_of(allocation, results, where)
    share_ppm = _consumed(results, names.CAPACITY_SHARE, where) * _PERCENT_PPM
    if parameters.kind is Kind.ONLINE and parameters.share_ppm > share_ppm:
        remedy = f"is more than the claim consumes of the GPU, {format_share(share_ppm)}; make them equal"
        raise ConfigError("share", format_share(parameters.share_ppm), remedy, where=where)
    if parameters.kind is Kind.ONLINE and not parameters.share_ppm:
        # A claim that names no share consumes all of it, which keeps other online pods away. Nothing is reserved then:
        # online work goes first, and offline work uses what it leaves, as on a machine without Kubernetes.
        parameters = msgspec.structs.replace(parameters, share_ppm=share_ppm if share_ppm < WHOLE_PPM else 0)
    memory = _consumed(results, names.CAPACITY_MEMORY, where)
    name = f"{meta.namespace}.{pods[0].name}"[:54].rstrip("-.") + f"-{uid[:8]}"
    return GpuClaim(uid, pods[0].uid, name, parameters, memory, tuple(results))


def _check_results(results: list[AllocatedDevice], where: str) -> None:
    """Refuse a claim without limits, or with one GPU several times: a tenant is on each GPU once, with one limit."""
    devices = [one.device for one in results]
    if any(one.admin_access for one in results):
        remedy = "a claim with admin access consumes nothing, so that its tenant would have no limit; write false"
        raise ConfigError("spec.devices.requests.adminAccess", True, remedy, where=where)
    if len(set(devices)) < len(devices):
        remedy = (
            "one GPU was allocated several times; create the claim again with the constraint "
            f'{{"distinctAttribute": "{names.DRIVER}/{names.ATTRIBUTE_UUID}"}}'
        )
        raise ConfigError("status.allocation.devices", devices, remedy, where=where)


def _consumed(results: list[AllocatedDevice], capacity: str, where: str) -> int:
    """Return the least that the claim consumes of one of its GPUs, since its tenant has the same limit on each."""
    return min(parse_quantity(one.consumed_capacity.get(capacity, "0"), capacity, where) for one in results)


def _parameters_of(allocation: _Allocation, results: list[AllocatedDevice], where: str) -> TenantParameters:
    """Return the parameters of the claim itself, else those of its DeviceClass; without any, it is offline work."""
    requests = {one.request for one in results} | {one.request.partition("/")[0] for one in results}
    found: dict[str, Any] = {}
    for config in allocation.devices.config:
        if config.opaque is None or config.opaque.driver != names.DRIVER:
            continue
        if not config.requests or requests.intersection(config.requests):
            found.setdefault(config.source, config.opaque.parameters)
    parameters = found.get("FromClaim", found.get("FromClass", {"kind": Kind.OFFLINE.value}))
    return parse_parameters(parameters, where)


def parse_quantity(text: str, field: str, where: str = "") -> int:
    """Return the whole number of a Quantity such as 4Gi or 4294967296, rounded up."""
    suffix = next((suffix for suffix in sorted(_SUFFIXES, key=len, reverse=True) if text.endswith(suffix)), "")
    try:
        number = Decimal(text.removesuffix(suffix) if suffix else text) * _SUFFIXES.get(suffix, Decimal(1))
        if not number.is_finite() or number < 0 or number >= 1 << 63:
            raise InvalidOperation
    except InvalidOperation:
        raise ConfigError(field, text, "is not a Kubernetes quantity such as 4Gi", where=where) from None
    whole = int(number)
    return whole if whole == number else whole + 1


def decode_claim(data: bytes | Mapping[str, Any]) -> ResourceClaim:
    """Return the fields of a claim; raise `ConfigError` if it is not one."""
    try:
        if isinstance(data, bytes):
            return msgspec.json.decode(data, type=ResourceClaim)
        return msgspec.convert(data, ResourceClaim)
    except msgspec.MsgspecError as error:
        raise ConfigError("claim", "", f"is not a ResourceClaim: {error}") from None
