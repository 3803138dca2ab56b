"""`cotenant pause`, `resume`, `evict` and `set`: change tenants and rules of a running node."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cotenant.errors import ConfigError
from cotenant.gate.rules import GatePolicy, Limit
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants, send_command
from cotenant.node.config.file import NodeConfig
from cotenant.node.directories import Directories
from cotenant.node.model.event import GateChange
from cotenant.node.model.tenant import NAME_LIMIT, NAME_PATTERN
from cotenant.node.state.program_exit import AT_ONCE_NS
from cotenant.units.text import parse_duration

RULES = ("gate", "bound", "delay", "patience", "switch", "spin")
"""The fields of `[node]` that are the rules of the gate."""


def set_paused(directories: Directories, names: Sequence[str], *, all_offline: bool, paused: bool) -> wire.Confirmation:
    """Pause or resume tenants."""
    if bool(names) == all_offline:
        raise ConfigError("NAME", " ".join(names), "name the tenants, or use --all-offline; see: cotenant ps")
    request = wire.Pause(wire.VERSION, [_name(name) for name in names], all_offline, paused)
    return send_command(directories, request, " ".join(names))


def evict(directories: Directories, names: Sequence[str], grace: str | None) -> wire.Confirmation:
    """End tenants gracefully; `grace` replaces the tenants' own grace periods."""
    grace_ns = 0 if grace is None else parse_duration(grace, field="--grace") or AT_ONCE_NS
    return send_command(
        directories, wire.EvictTenants(wire.VERSION, [_name(name) for name in names], grace_ns), " ".join(names)
    )


def set_priority(directories: Directories, name: str, priority: int) -> wire.Confirmation:
    """Change the priority of a tenant."""
    return send_command(directories, wire.SetPriority(wire.VERSION, _name(name), priority), name)


def set_share(directories: Directories, name: str, share_ppm: int | None, limit: str | None) -> wire.Confirmation:
    """Change the share of a tenant, or the kind of its limit."""
    new_limit = None if limit is None else Limit(limit)
    if not share_ppm and new_limit in {None, Limit.STATIC}:
        _reject_limit_without_share(directories, _name(name), share_ppm, new_limit)
    return send_command(directories, wire.SetShare(wire.VERSION, _name(name), share_ppm, new_limit), name)


def set_objective(directories: Directories, name: str, slo_ns: int) -> wire.Confirmation:
    """Change or remove the latency objective of an online tenant."""
    return send_command(directories, wire.SetObjective(wire.VERSION, _name(name), slo_ns), name)


def _reject_limit_without_share(
    directories: Directories, name: str, share_ppm: int | None, limit: Limit | None
) -> None:
    """Refuse a static limit without a share here, as an error of the arguments; the node refuses it too."""
    for view in list_tenants(directories).tenants:
        spec = view.tenant.spec
        new_share_ppm = spec.share_ppm if share_ppm is None else share_ppm
        if view.tenant.name == name and not new_share_ppm and (limit or spec.limit) is Limit.STATIC:
            remedy = f"{name!r} has no share that a static limit could apply to; add --share or --limit conserving"
            raise ConfigError("--limit", Limit.STATIC.value, remedy)


def set_rules(directories: Directories, node: NodeConfig, fields: Sequence[str]) -> wire.Confirmation:
    """Change these fields of the gate's rules to their values in `node`."""

    def changed(field: str) -> int | None:
        return int(getattr(node, field)) if field in fields else None

    policy = GatePolicy(node.gate) if "gate" in fields else None
    change = GateChange(policy, *(changed(field) for field in RULES[1:]))
    return send_command(directories, wire.SetRules(wire.VERSION, change), "")


def _name(name: str) -> str:
    if not name or len(name) > NAME_LIMIT or not re.match(NAME_PATTERN, name):
        raise ConfigError("NAME", name, "is not a valid tenant name; see: cotenant ps")
    return name
