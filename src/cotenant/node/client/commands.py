"""`cotenant pause`, `resume`, `evict` and `set`: change tenants and rules of a running node."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cotenant.errors import ConfigError, WorldError
from cotenant.gate.rules import GatePolicy, Limit
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants, read_activity, send_command
from cotenant.node.config.file import NodeConfig
from cotenant.node.directories import Directories
from cotenant.node.model.event import GateChange
from cotenant.node.model.tenant import NAME_LIMIT, NAME_PATTERN
from cotenant.node.state.program_exit import AT_ONCE_NS
from cotenant.units.text import format_size, parse_duration

RULES = ("gate", "bound", "delay", "patience", "switch", "spin", "sms")
"""The fields of `[node]` that are the rules of the gate."""


def set_paused(directories: Directories, names: Sequence[str], *, all_offline: bool, paused: bool) -> wire.Confirmation:
    """Pause or resume tenants."""
    if bool(names) == all_offline:
        raise ConfigError("NAME", " ".join(names), "name the tenants, or use --all-offline; see: cotenant ps")
    request = wire.Pause(wire.VERSION, [valid_name(name) for name in names], all_offline, paused)
    return send_command(directories, request, " ".join(names))


def evict(directories: Directories, names: Sequence[str], grace: str | None) -> wire.Confirmation:
    """End tenants gracefully; `grace` replaces the tenants' own grace periods."""
    grace_ns = 0 if grace is None else parse_duration(grace, field="--grace") or AT_ONCE_NS
    return send_command(
        directories, wire.EvictTenants(wire.VERSION, [valid_name(name) for name in names], grace_ns), " ".join(names)
    )


def set_priority(directories: Directories, name: str, priority: int) -> wire.Confirmation:
    """Change the priority of a tenant."""
    return send_command(directories, wire.SetPriority(wire.VERSION, valid_name(name), priority), name)


def set_share(directories: Directories, name: str, share_ppm: int | None, limit: str | None) -> wire.Confirmation:
    """Change the share of a tenant, or the kind of its limit."""
    new_limit = None if limit is None else Limit(limit)
    if not share_ppm and new_limit in {None, Limit.STATIC}:
        _reject_limit_without_share(directories, valid_name(name), share_ppm, new_limit)
    return send_command(directories, wire.SetShare(wire.VERSION, valid_name(name), share_ppm, new_limit), name)


def set_memory(directories: Directories, name: str, memory_bytes: int) -> wire.Confirmation:
    """Change the device memory that is reserved for a tenant, which is also its limit; 0: neither.

    A limit below what the tenant holds is refused here: the node would treat the rest as used against the limit.
    """
    held_bytes, gpu_bytes = _held_and_present_bytes(directories, valid_name(name))
    if memory_bytes > gpu_bytes > 0:
        raise ConfigError("--memory", format_size(memory_bytes), f"its GPU has {format_size(gpu_bytes)}; choose less")
    if 0 < memory_bytes < held_bytes:
        remedy = f"{name!r} holds {format_size(held_bytes)}; choose at least that, or let it free memory first"
        raise ConfigError("--memory", format_size(memory_bytes), remedy)
    return send_command(directories, wire.SetShare(wire.VERSION, valid_name(name), memory_bytes=memory_bytes), name)


def _held_and_present_bytes(directories: Directories, name: str) -> tuple[int, int]:
    """Return the device memory that a tenant holds, and that its GPU has; 0 where there is none."""
    listed = list_tenants(directories)
    for view in listed.tenants:
        grant = view.tenant.grant
        if view.tenant.name == name and 0 <= grant.gpu < len(listed.gpus):
            ledger = read_activity(directories).gpus[grant.gpu].ledger
            account = None if ledger is None else ledger.accounts.get(grant.slot)
            is_own = account is not None and account.generation == grant.generation
            return account.held_bytes if account is not None and is_own else 0, listed.gpus[grant.gpu].memory_bytes
    return 0, 0


def set_tenant(
    directories: Directories,
    name: str,
    *,
    priority: int | None = None,
    slo_ns: int | None = None,
    share_ppm: int | None = None,
    limit: str | None = None,
    memory_bytes: int | None = None,
) -> wire.Confirmation:
    """Change several values of a tenant, those most likely to be refused first; None: unchanged.

    The node handles one value at a time. The error of a refused value names the values that were already changed.
    """
    changes: list[tuple[str, Callable[[], wire.Confirmation]]] = []
    if memory_bytes is not None:
        changes.append(("memory", lambda: set_memory(directories, name, memory_bytes)))
    if share_ppm is not None or limit is not None:
        changes.append(("share", lambda: set_share(directories, name, share_ppm, limit)))
    if slo_ns is not None:
        changes.append(("objective", lambda: set_objective(directories, name, slo_ns)))
    if priority is not None:
        changes.append(("priority", lambda: set_priority(directories, name, priority)))
    done: list[str] = []
    confirmation: wire.Confirmation | None = None
    for what, change in changes:
        try:
            confirmation = change()
        except WorldError as error:
            before = f"{' and '.join(done)} of {name} changed; " if done else ""
            failure = WorldError(f"{before}{error}")
            failure.exit_code = error.exit_code
            raise failure from None
        done.append(what)
    if confirmation is None:
        raise ConfigError("NAME", name, "name at least one value to change")
    return confirmation


def set_objective(directories: Directories, name: str, slo_ns: int) -> wire.Confirmation:
    """Change or remove the latency objective of an online tenant."""
    return send_command(directories, wire.SetObjective(wire.VERSION, valid_name(name), slo_ns), name)


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


def valid_name(name: str) -> str:
    """Return the name of a tenant; raise `ConfigError` if it is none."""
    if not name or len(name) > NAME_LIMIT or not re.match(NAME_PATTERN, name):
        raise ConfigError("NAME", name, "is not a valid tenant name; see: cotenant ps")
    return name
