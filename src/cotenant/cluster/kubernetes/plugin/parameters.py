"""The parameters of a claim: what a pod asks of its share of a GPU, besides the capacity that DRA counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import Limit
from cotenant.node.model.tenant import (
    COMMAND_LIMIT,
    DEFAULT_PRIORITY,
    NAME_LIMIT,
    PRIORITY_HIGHEST,
    PRIORITY_LOWEST,
    TenantSpec,
)
from cotenant.units.text import parse_duration, parse_share

FIELDS: Final = ("kind", "priority", "slo", "share", "task")
_API_FIELDS: Final = ("apiVersion",)
"""Fields that Kubernetes tools add to any object; they are ignored."""


class TenantParameters(msgspec.Struct, frozen=True):
    """The checked parameters of a claim; 0: none."""

    kind: Kind
    priority: int
    slo_ns: int = 0
    share_ppm: int = 0
    task: str = ""

    def spec(self, name: str, pod: str, gpu: str, memory_bytes: int) -> TenantSpec:
        """Return the spec of the tenant; a share is reserved for online work, and caps offline work."""
        is_cap = self.kind is Kind.OFFLINE and self.share_ppm > 0
        return TenantSpec(
            self.kind,
            self.priority,
            name[:NAME_LIMIT],
            self.slo_ns,
            memory_bytes,
            self.share_ppm,
            self.task,
            gpu=gpu,
            limit=Limit.STATIC if is_cap else Limit.OFF,
            pod=pod,
        )


def parse_parameters(mapping: Mapping[str, object], where: str = "") -> TenantParameters:
    """Return the checked parameters; raise `ConfigError` that names the field, the value and the remedy.

    `where` precedes the message, for instance the name of the claim.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(
            "parameters", mapping, "write an object with kind, priority, slo, share and task", where=where
        )
    for field in mapping:
        if field not in (*FIELDS, *_API_FIELDS):
            raise ConfigError(str(field), mapping[field], f"no such field; use {', '.join(FIELDS)}", where=where)
    try:
        return _parse(mapping)
    except ConfigError as error:
        raise ConfigError(error.field, error.value, error.remedy, where=where) from None


def _parse(mapping: Mapping[str, object]) -> TenantParameters:
    kind = _kind_of(mapping.get("kind"))
    slo_ns = parse_duration(mapping["slo"], field="slo") if "slo" in mapping else 0
    if slo_ns and kind is Kind.OFFLINE:
        raise ConfigError("slo", mapping["slo"], "offline work has no latency objective; write kind online or omit it")
    if "slo" in mapping and not slo_ns:
        raise ConfigError("slo", mapping["slo"], "must be above zero; omit it for work without an objective")
    task = mapping.get("task", "")
    if not isinstance(task, str) or len(task) > COMMAND_LIMIT:
        raise ConfigError("task", task, f"write a text of at most {COMMAND_LIMIT} characters")
    share_ppm = parse_share(mapping["share"], field="share") if "share" in mapping else 0
    return TenantParameters(kind, _priority_of(mapping, kind), slo_ns, share_ppm, task)


def _kind_of(value: object) -> Kind:
    kinds = {kind.value: kind for kind in Kind}
    if not isinstance(value, str) or value not in kinds:
        raise ConfigError("kind", value, "write online for work with requests, or offline for work that may wait")
    return kinds[value]


def _priority_of(mapping: Mapping[str, object], kind: Kind) -> int:
    priority = mapping.get("priority", DEFAULT_PRIORITY[kind])
    is_valid = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_valid or not PRIORITY_HIGHEST <= int(str(priority)) <= PRIORITY_LOWEST:
        remedy = f"write a whole number from {PRIORITY_HIGHEST} (highest) to {PRIORITY_LOWEST}"
        raise ConfigError("priority", priority, remedy)
    return int(str(priority))
