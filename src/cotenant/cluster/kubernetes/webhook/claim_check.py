"""Validate ResourceClaims and ResourceClaimTemplates (resource.k8s.io/v1) that ask for a GPU of cotenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.plugin.parameters import TenantParameters, parse_parameters
from cotenant.cluster.kubernetes.quantity import whole_quantity
from cotenant.cluster.kubernetes.webhook.objects import JsonObject, list_at, object_at, text_at
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.units.text import format_share

_ALL_PERCENT: Final = 100
_PPM_PER_PERCENT: Final = 10_000
_DISTINCT: Final = tuple(f"{names.DRIVER}/{name}" for name in (names.ATTRIBUTE_UUID, names.ATTRIBUTE_INDEX))
_CAPACITIES: Final = (names.CAPACITY_MEMORY, names.CAPACITY_SHARE, names.CAPACITY_OFFLINE_PLACES)


class DeviceRequest(NamedTuple):
    """A request of a claim for devices of the class of cotenant."""

    name: str
    """The name by which a config selects the request; that of a subrequest is REQUEST/SUBREQUEST."""
    path: str
    value: JsonObject


def validate_claim(claim: JsonObject) -> None:
    """Raise ConfigError if a claim has parameters that the driver would refuse when a pod starts."""
    _validate_devices(object_at(object_at(claim, "spec"), "devices", "spec"), "spec.devices")


def validate_claim_template(template: JsonObject) -> None:
    """Raise ConfigError if a template makes claims with parameters that the driver would refuse."""
    spec = object_at(object_at(template, "spec"), "spec", "spec")
    _validate_devices(object_at(spec, "devices", "spec.spec"), "spec.spec.devices")


def _validate_devices(devices: JsonObject, path: str) -> None:
    requests = list(_requests(devices, path))
    configs = list(_configs(devices, path))
    for request in requests:
        applied = [given for selected, given in configs if not selected or _is_selected(request.name, selected)]
        kinds = {given.kind for given in applied}
        if not kinds:
            remedy = (
                f"asks for class {names.DEVICE_CLASS}, and spec.devices.config has no opaque parameters of driver "
                f'{names.DRIVER} for it; add at least {{"kind": "online"}} or {{"kind": "offline"}}'
            )
            raise ConfigError(f"{request.path}.deviceClassName", names.DEVICE_CLASS, remedy)
        if len(kinds) > 1:
            remedy = "has parameters of kind online and of kind offline; keep one config for each request"
            raise ConfigError(f"{path}.config", request.name, remedy)
        _check_capacity(request, kinds.pop(), max(given.share_ppm for given in applied))
        _check_distinct(request, devices, path)


def _requests(devices: JsonObject, path: str) -> Iterator[DeviceRequest]:
    for index, request in enumerate(list_at(devices, "requests", path)):
        field = f"{path}.requests[{index}]"
        name = text_at(request, "name", field)
        exact = object_at(request, "exactly", field)
        if exact.get("deviceClassName") == names.DEVICE_CLASS:
            yield DeviceRequest(name, f"{field}.exactly", exact)
        for number, alternative in enumerate(list_at(request, "firstAvailable", field)):
            if alternative.get("deviceClassName") == names.DEVICE_CLASS:
                nested = f"{field}.firstAvailable[{number}]"
                yield DeviceRequest(f"{name}/{text_at(alternative, 'name', nested)}", nested, alternative)


def _configs(devices: JsonObject, path: str) -> Iterator[tuple[tuple[str, ...], TenantParameters]]:
    """Yield which requests each config of our driver selects (none: all), and its parameters."""
    for index, config in enumerate(list_at(devices, "config", path)):
        field = f"{path}.config[{index}]"
        opaque = object_at(config, "opaque", field)
        if opaque.get("driver") != names.DRIVER:
            continue
        selected = config.get("requests") or []
        if not isinstance(selected, list) or not all(isinstance(name, str) for name in selected):
            raise ConfigError(f"{field}.requests", selected, "must be a list of names of requests")
        parameters = object_at(opaque, "parameters", f"{field}.opaque")
        try:
            given = parse_parameters(parameters)
        except ConfigError as error:
            name = error.field.rpartition(".")[2]
            raise ConfigError(f"{field}.opaque.parameters.{name}", error.value, error.remedy) from None
        yield tuple(selected), given


def _is_selected(name: str, selected: tuple[str, ...]) -> bool:
    return name in selected or name.partition("/")[0] in selected


def _check_distinct(request: DeviceRequest, devices: JsonObject, path: str) -> None:
    """Refuse a request for several GPUs that kube-scheduler may satisfy with one, since a GPU has several claims."""
    count = request.value.get("count")
    if not isinstance(count, int) or count <= 1:
        return
    for constraint in list_at(devices, "constraints", path):
        selected = constraint.get("requests") or [request.name]
        if constraint.get("distinctAttribute") in _DISTINCT and _is_selected(request.name, tuple(selected)):
            return
    remedy = (
        f"may be allocated the same GPU {count} times; add to {path}.constraints: "
        f'{{"distinctAttribute": "{_DISTINCT[0]}"}}'
    )
    raise ConfigError(f"{request.path}.count", count, remedy)


def _check_capacity(request: DeviceRequest, kind: Kind, share_ppm: int) -> None:
    """Refuse a claim that would take another kind of capacity than its parameters state."""
    capacity = object_at(object_at(request.value, "capacity", request.path), "requests", f"{request.path}.capacity")
    for name, value in capacity.items():
        if name not in _CAPACITIES:  # no device has it, so that the pod would wait for ever
            remedy = f"is not a capacity of a GPU; use {', '.join(_CAPACITIES)}"
            raise ConfigError(f"{request.path}.capacity.requests.{name}", value, remedy)
    field = f"{request.path}.capacity.requests.{names.CAPACITY_OFFLINE_PLACES}"
    stated = capacity.get(names.CAPACITY_OFFLINE_PLACES)
    places = 0 if stated is None else whole_quantity(stated, field, "write 0 or 1")
    wanted = 1 if kind is Kind.OFFLINE else 0
    if places != wanted:
        remedy = f"write {wanted}: a claim of kind {kind.value} takes {wanted} of the offline places of a GPU"
        raise ConfigError(field, places, remedy)
    share_field = f"{request.path}.capacity.requests.{names.CAPACITY_SHARE}"
    share = capacity.get(names.CAPACITY_SHARE)
    percent = _ALL_PERCENT if share is None else whole_quantity(share, share_field, "write a whole number of percent")
    if kind is Kind.ONLINE and share_ppm > percent * _PPM_PER_PERCENT:
        remedy = f"is less than the share of the parameters, {format_share(share_ppm)}; make them equal"
        raise ConfigError(share_field, share, remedy)
    if kind is Kind.OFFLINE and capacity.get(names.CAPACITY_SHARE) not in ("0", 0):
        remedy = 'write "0": offline work takes what online tenants leave, and its limit is the share of the parameters'
        raise ConfigError(share_field, capacity.get(names.CAPACITY_SHARE, "(not set)"), remedy)
