"""The tenant tables: for each device, the entries that tell its tenants about each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cotenant.gate.grant import Kind
from cotenant.gate.rules import ENTRIES_LIMIT, GateEntry, GatePolicy, GateRules, Limit
from cotenant.node.model.action import Action, RemoveEntry, SetTenantTable, UpsertEntry
from cotenant.node.model.calibration import Calibration
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.protection import ExitPhase
from cotenant.node.model.tenant import PRIORITY_LOWEST, Tenant
from cotenant.node.policy.limit.share import ALL_SMS_PPM, delay_of, offline_sms_of

_NO_LAUNCH: Final = frozenset(
    {
        ExitPhase.DRAINING,
        ExitPhase.FINISHING,
        ExitPhase.KILLED,
        ExitPhase.SUSPENDING,
        ExitPhase.SUSPENDED,
        ExitPhase.RESTORING,
    }
)
"""Phases in which a tenant must not launch."""


def user_limit_ppm(tenant: Tenant) -> int:
    """Return the share among peers that the user set; 0: none."""
    return 0 if tenant.spec.limit is Limit.OFF else tenant.grant.share_ppm


def entry_of(tenant: Tenant, share_ppm: int = 0) -> GateEntry:
    """Return a tenant's table entry. Its share is also its guaranteed minimum below other tenants.

    `share_ppm` is the share among peers that the node assigns where the user set no limit.

    A terminating tenant has the lowest priority and is never paused: it launches only what its exit needs.
    """
    grant, phase = tenant.grant, tenant.lifecycle.phase
    online = grant.kind is Kind.ONLINE
    if phase is ExitPhase.TERMINATING:
        return GateEntry(grant.slot, grant.generation, PRIORITY_LOWEST, False, False, grant.share_ppm, True)
    paused = tenant.paused or phase in _NO_LAUNCH
    limit_ppm = user_limit_ppm(tenant) or share_ppm
    static = tenant.spec.limit is Limit.STATIC and limit_ppm > 0
    state = (paused, grant.share_ppm, False, limit_ppm, static)
    return GateEntry(grant.slot, grant.generation, grant.priority, online, *state)


class TenantTables:
    """Table entries by device; device -1 holds the tenants without one.

    Entries are unordered and sorted only when a whole table is sent. The changes of a turn are collected for its
    actions.
    """

    __slots__ = ("_entries", "_shares", "calibrations", "changed", "setpoints")

    def __init__(
        self,
        tenants: Iterable[Tenant] = (),
        setpoints: Iterable[OnlineShareSetpoint] = (),
        calibrations: Mapping[int, Calibration] = MappingProxyType({}),
    ) -> None:
        """Begin with these tenants, set-points and measurements of devices."""
        self.setpoints: dict[int, OnlineShareSetpoint] = {}
        self.calibrations = dict(calibrations)
        """By device: the measurements that the gate uses."""
        self._shares: dict[tuple[int, int], int] = {}  # by device and slot, from all set-points
        for setpoint in setpoints:
            self.set_online_share(setpoint)
        self._entries: dict[int, dict[int, GateEntry]] = {}
        self.changed: dict[int, GateEntry | int | None] = {}
        """By device: a changed entry, the slot of a removed one, or None for the whole table."""
        for tenant in tenants:
            self.put(tenant)
        self.changed.clear()

    def set_online_share(self, setpoint: OnlineShareSetpoint) -> None:
        """Set the online share of a device; a share of 0 removes the set-point."""
        before = self.setpoints.pop(setpoint.gpu, None)
        for slot, _ in before.shares if before else ():
            self._shares.pop((setpoint.gpu, slot), None)
        if setpoint.online_ppm:
            self.setpoints[setpoint.gpu] = setpoint
            self._shares.update({(setpoint.gpu, slot): share_ppm for slot, share_ppm in setpoint.shares})

    def share_among_peers(self, gpu: int, slot: int) -> int:
        """Return the share among peers that the node assigned to a slot on a device; 0: none."""
        return self._shares.get((gpu, slot), 0)

    def put(self, tenant: Tenant) -> None:
        """Add or change the entries of a tenant on its devices."""
        slot = tenant.grant.slot
        for gpu in tenant.grant.places:
            entry = entry_of(tenant, self._shares.get((gpu, slot), 0))
            entries = self._entries.setdefault(gpu, {})
            if entries.get(slot) != entry:
                entries[slot] = entry
                self._record_change(gpu, entry)

    def clear(self, tenant: Tenant) -> None:
        """Remove the entries of a tenant."""
        slot = tenant.grant.slot
        for gpu in tenant.grant.places:
            del self._entries[gpu][slot]
            self._record_change(gpu, slot)

    def mark_all(self, gpu: int) -> None:
        """Mark the whole table of a device as changed."""
        self._record_change(gpu, None)

    def _record_change(self, gpu: int, change: GateEntry | int | None) -> None:
        """Record a change; a second change of a device in one turn marks its whole table."""
        if gpu >= 0:
            self.changed[gpu] = None if gpu in self.changed else change

    def changes(self, turn: int, rules: GateRules) -> list[Action]:
        """Return the table actions of this turn by device, and forget the changes.

        A full device gets its whole table: a journal of an older version may have more tenants than a table holds.
        """
        actions = [self._change(gpu, self.changed[gpu], turn, rules) for gpu in sorted(self.changed)]
        self.changed.clear()
        return actions

    def _change(self, gpu: int, change: GateEntry | int | None, turn: int, rules: GateRules) -> Action:
        if change is None or len(self._entries.get(gpu, ())) >= ENTRIES_LIMIT:
            return SetTenantTable(turn, gpu, self.table(gpu, rules))
        return UpsertEntry(turn, gpu, change) if isinstance(change, GateEntry) else RemoveEntry(turn, gpu, change)

    def entries(self, gpu: int) -> tuple[GateEntry, ...]:
        """Return all entries of a device, by slot."""
        entries = self._entries.get(gpu, {})
        return tuple(entries[slot] for slot in sorted(entries))

    def count(self, gpu: int) -> int:
        """Return the number of tenants on a device."""
        return len(self._entries.get(gpu, ()))

    def devices(self) -> list[int]:
        """Return the devices that have tenants."""
        return sorted(gpu for gpu, entries in self._entries.items() if entries)

    def table(self, gpu: int, rules: GateRules) -> GateRules:
        """Return the rules with the entries of a device; its online share determines the delay budget.

        With an online share, offline work shares no SMs with active online work unless the config says so: the budget
        buys more device time in the pauses of online work, at a lower latency. In a simple mode the gate is open, and
        offline work has the SMs that the online share leaves.
        """
        setpoint = self.setpoints.get(gpu)
        calibration = self.calibrations.get(gpu)
        is_filled = rules.policy is GatePolicy.FILL and rules.sm_ppm is None
        is_simple = setpoint is not None and setpoint.is_simple and is_filled
        has_all = setpoint is not None and setpoint.online_ppm <= ALL_SMS_PPM and rules.policy is GatePolicy.FILL
        is_open = is_simple or has_all
        policy = GatePolicy.OPEN if is_open else rules.policy
        if policy is GatePolicy.FILL and calibration is not None and calibration.gap_filling_loss:
            policy = GatePolicy.STRICT
        sm_ppm = offline_sms_of(setpoint.online_ppm) if setpoint is not None and is_simple else 0
        return GateRules(
            policy,
            rules.bound_ns,
            rules.delay_ppm if setpoint is None else delay_of(setpoint.online_ppm),
            rules.patience_ns,
            rules.switch_ns if calibration is None else calibration.switch_ns,
            rules.spin_ppm,
            self.entries(gpu)[:ENTRIES_LIMIT],
            rules.sm_ppm if setpoint is None or rules.sm_ppm is not None else sm_ppm,
            rules.ignored_priority_ppm if calibration is None else calibration.ignored_priority_ppm,
        )
