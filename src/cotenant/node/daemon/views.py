"""What a peer that is no operator may see of the node: its own tenants, and the devices without the others."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from cotenant.gate.activity import DeviceSnapshot
from cotenant.gate.ledger import LedgerSnapshot
from cotenant.node import wire
from cotenant.node.model.tenant import Tenant
from cotenant.node.ports import TenantKey


def restrict_list(
    full: wire.TenantList, own: Container[TenantKey], own_departed: Container[TenantKey]
) -> wire.TenantList:
    """Return the list with these tenants only."""
    tenants = [view for view in full.tenants if _key_of(view.tenant) in own]
    slots = {view.tenant.grant.slot for view in tenants}
    setpoints = [
        msgspec.structs.replace(setpoint, shares=tuple(share for share in setpoint.shares if share[0] in slots))
        for setpoint in full.setpoints
    ]
    departed = [departure for departure in full.departed if _key_of(departure.tenant) in own_departed]
    return msgspec.structs.replace(full, tenants=tenants, departed=departed, setpoints=setpoints, is_restricted=True)


def restrict_activity(full: wire.Activity, own: Container[TenantKey]) -> wire.Activity:
    """Return the counters of these tenants only."""
    return msgspec.structs.replace(full, gpus=[_restrict_gpu(gpu, own) for gpu in full.gpus], is_restricted=True)


def _restrict_gpu(activity: wire.GpuActivity, own: Container[TenantKey]) -> wire.GpuActivity:
    gate = None if activity.gate is None else _restrict_gate(activity.gate, own)
    slots = set() if gate is None else {entry.slot for entry in gate.rules.entries}
    holds = {
        slot: msgspec.structs.replace(hold, active_slots=tuple(other for other in hold.active_slots if other in slots))
        for slot, hold in activity.holds.items()
        if slot in slots
    }
    return wire.GpuActivity(gate, None if activity.ledger is None else _restrict_ledger(activity.ledger, own), holds)


def _restrict_gate(snapshot: DeviceSnapshot, own: Container[TenantKey]) -> DeviceSnapshot:
    entries = tuple(entry for entry in snapshot.rules.entries if (entry.slot, entry.generation) in own)
    slots = {entry.slot for entry in entries}
    counts = {slot: counts for slot, counts in snapshot.counts.items() if slot in slots}
    rules = msgspec.structs.replace(snapshot.rules, entries=entries)
    return msgspec.structs.replace(snapshot, rules=rules, counts=counts)


def _restrict_ledger(snapshot: LedgerSnapshot, own: Container[TenantKey]) -> LedgerSnapshot:
    accounts = {slot: account for slot, account in snapshot.accounts.items() if (slot, account.generation) in own}
    return msgspec.structs.replace(snapshot, accounts=accounts)


def _key_of(tenant: Tenant) -> TenantKey:
    return tenant.grant.slot, tenant.grant.generation
