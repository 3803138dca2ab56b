"""Wires `cotenant pause`, `resume`, `evict` and `set`: what is changed about tenants and rules while they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cotenant.domain.event import GateChange
from cotenant.domain.gate import GatePolicy, Limit
from cotenant.domain.tenant import NAME_LIMIT, NAME_PATTERN
from cotenant.errors import ConfigError
from cotenant.format import wire
from cotenant.format.config import NodeConfig
from cotenant.format.quantity import parse_duration
from cotenant.live.client import tenants_of, wish
from cotenant.machine.ending import AT_ONCE_NS

RULES = ("gate", "bound", "delay", "patience", "switch", "spin")
"""The fields of `[node]` that are the rules of the gate."""


def set_paused(socket: Path, names: Sequence[str], *, all_offline: bool, paused: bool) -> wire.Confirmed:
    """Let tenants launch nothing, or go on."""
    if bool(names) == all_offline:
        raise ConfigError("NAME", " ".join(names), "say which tenants, or --all-offline instead; see: cotenant ps")
    request = wire.Pause(wire.VERSION, [_name(name) for name in names], all_offline, paused)
    return wish(socket, request, " ".join(names))


def evict(socket: Path, names: Sequence[str], grace: str | None) -> wire.Confirmed:
    """Let tenants end gracefully, within a grace other than their own if one is given."""
    grace_ns = 0 if grace is None else parse_duration(grace, field="--grace") or AT_ONCE_NS
    return wish(socket, wire.EvictTenants(wire.VERSION, [_name(name) for name in names], grace_ns), " ".join(names))


def set_priority(socket: Path, name: str, priority: int) -> wire.Confirmed:
    """Give a tenant another priority."""
    return wish(socket, wire.SetPriority(wire.VERSION, _name(name), priority), name)


def set_share(socket: Path, name: str, share_ppm: int | None, limit: str | None) -> wire.Confirmed:
    """Give a tenant another share, or hold it to its share in another way."""
    held = None if limit is None else Limit(limit)
    if not share_ppm and held in {None, Limit.STATIC}:
        _refuse_to_hold_to_nothing(socket, _name(name), share_ppm, held)
    return wish(socket, wire.SetShare(wire.VERSION, _name(name), share_ppm, held), name)


def set_objective(socket: Path, name: str, slo_ns: int) -> wire.Confirmed:
    """Give an online tenant another latency objective, or none."""
    return wish(socket, wire.SetObjective(wire.VERSION, _name(name), slo_ns), name)


def _refuse_to_hold_to_nothing(socket: Path, name: str, share_ppm: int | None, limit: Limit | None) -> None:
    """The node refuses it as well, but for it this is one of many reasons; here it is a mistake in the arguments."""
    for view in tenants_of(socket).tenants:
        spec = view.tenant.spec
        would_have_ppm = spec.share_ppm if share_ppm is None else share_ppm
        if view.tenant.name == name and not would_have_ppm and (limit or spec.limit) is Limit.STATIC:
            remedy = f"{name!r} would have no share to be held to; add --share, or --limit conserving"
            raise ConfigError("--limit", Limit.STATIC.value, remedy)


def set_rules(socket: Path, node: NodeConfig, fields: Sequence[str]) -> wire.Confirmed:
    """Change the rules by which tenants pass: of these, the fields that were given."""

    def given(field: str) -> int | None:
        return int(getattr(node, field)) if field in fields else None

    policy = GatePolicy(node.gate) if "gate" in fields else None
    change = GateChange(policy, *(given(field) for field in RULES[1:]))
    return wish(socket, wire.SetRules(wire.VERSION, change), "")


def _name(name: str) -> str:
    if not name or len(name) > NAME_LIMIT or not re.match(NAME_PATTERN, name):
        raise ConfigError("NAME", name, "no tenant can be called that; see: cotenant ps")
    return name
