"""The node's state machine: passes each event to the part that handles it and collects the actions.

The registry holds tenants and slots; the other parts handle exits, suspensions, memory pressure, device health,
operator commands and online shares.
"""

from __future__ import annotations

from collections import deque

import msgspec

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateRules
from cotenant.node.model.action import NO_PEER, Action, RecordPlacement, Refuse, Stop
from cotenant.node.model.admission import Plan, Reason, Reject
from cotenant.node.model.event import (
    DEPARTED_LIMIT,
    DisruptionAnnounced,
    Event,
    EvictionRequested,
    GpuCalibrated,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    GpusFound,
    MemoryBypassed,
    MemoryRequested,
    MpsStatusChanged,
    NodeReported,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    OnlineShareProposed,
    PeerLost,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    SettingsChanged,
    ShareChanged,
    TenantDrained,
    TenantFaulted,
    TenantHung,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, GpuWatch, Lifecycle
from cotenant.node.model.tenant import Tenant, TenantView
from cotenant.node.state.capacity import Capacity
from cotenant.node.state.commands import OperatorCommands
from cotenant.node.state.devices import DeviceHealth
from cotenant.node.state.invariants import check, plan_of
from cotenant.node.state.memory_pressure import MemoryPressure
from cotenant.node.state.online_shares import OnlineShares
from cotenant.node.state.registry import NO_GPU, NodeContext, TenantRegistry
from cotenant.node.state.suspension import Suspensions
from cotenant.node.state.tenant_exit import ENDING, TenantExits
from cotenant.node.state.tenant_tables import TenantTables
from cotenant.units.dispatch import handler
from cotenant.units.instant import NEVER, Instant
from cotenant.units.text import format_duration


class NodeMachine:
    """The state machine of a node: takes events and returns actions; no other input changes its state."""

    def __init__(self) -> None:
        """Begin without settings; the first event must be `NodeStarted` or `NodeRestored`."""
        context = self._context = NodeContext()
        registry = self.registry = TenantRegistry(context)
        exits = self._exits = TenantExits(context, registry)
        suspensions = self._suspensions = Suspensions(context, registry, exits)
        pressure = self._pressure = MemoryPressure(context, registry, exits, suspensions)
        devices = self._devices = DeviceHealth(context, registry, exits, suspensions, pressure)
        commands = OperatorCommands(context, registry, exits)
        online_shares = self._online_shares = OnlineShares(context, registry)
        self._handlers = dict(
            (
                handler(NodeStarted, self._started),
                handler(NodeRestored, self._restored),
                handler(TenantJoined, self._joined),
                handler(TenantResumed, self._resumed),
                handler(TenantLeft, self._left),
                handler(PeerLost, self._peer_lost),
                handler(TenantsPaused, commands.pause),
                handler(PriorityChanged, commands.set_priority),
                handler(ShareChanged, commands.set_share),
                handler(ObjectiveChanged, commands.set_objective),
                handler(RulesChanged, commands.set_rules),
                handler(OnlineShareProposed, online_shares.adjust),
                handler(EvictionRequested, commands.evict),
                handler(DisruptionAnnounced, commands.announce),
                handler(QuitRequested, self._quit),
                handler(GpusFound, self._gpus_found),
                handler(GpuSampled, devices.sampled),
                handler(GpuFaulted, devices.device_faulted),
                handler(GpuLost, devices.lost),
                handler(GpuRecovered, devices.recovered),
                handler(MpsStatusChanged, devices.mps_changed),
                handler(GpuCalibrated, self._calibrated),
                handler(TenantFaulted, devices.tenant_faulted),
                handler(TenantHung, devices.tenant_hung),
                handler(MemoryRequested, pressure.memory_requested),
                handler(MemoryBypassed, devices.memory_bypassed),
                handler(TenantDrained, self._drained),
                handler(TenantSuspended, suspensions.suspended),
                handler(TenantRestored, suspensions.restored),
                handler(TenantRestarted, self._restarted),
                handler(TimerFired, self._timer_fired),
                handler(SettingsChanged, self._settings_changed),
                handler(NodeReported, self._reported),
                handler(NodeStopping, self._stopping),
            )
        )

    @property
    def turn(self) -> int:
        """The number of turns so far."""
        return self._context.turn

    @property
    def settings(self) -> NodeSettings:
        """The settings of the latest start, with the devices found since."""
        return self._context.settings

    @property
    def rules(self) -> GateRules:
        """The gate rules in force on all devices."""
        return self._context.rules

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        """Handle one event and return the actions to carry out, in this order."""
        self._context.turn += 1
        actions: list[Action] = self._handlers[type(event)](event, now)
        if not self._devices.admits_all or self._pressure.waiting:
            actions = [*actions, *self._settle(event, now)]
        if self.registry.tables.setpoints and self.registry.tables.changed:
            self._online_shares.settle()
        return (
            [*self.registry.tables.changes(self._context.turn, self._context.rules), *actions]
            if self.registry.tables.changed
            else actions
        )

    def _settle(self, event: Event, now: Instant) -> list[Action]:
        """Return the actions that follow from any event: device health first, then waiting joins."""
        if isinstance(event, NodeRestored):  # its consequences are part of the snapshot
            return []
        return [*self._devices.settle(now), *self._pressure.settle(now)]

    def next_wakeup(self) -> Instant | None:
        """Return the earliest deadline: of reconnecting tenants, of an idle node, of a tenant or a waiting join."""
        node: Instant | None = None
        if self.registry.disconnected_until != NEVER:
            node = self.registry.disconnected_until
        elif self.registry.idle_since != NEVER and self._context.settings.idle_exit_ns:
            node = self.registry.idle_since + self._context.settings.idle_exit_ns
        if not self.registry.deadlines and not self._pressure.waiting:
            return node
        deadlines = [*self.registry.deadlines.values(), *(join.until_ns for join in self._pressure.waiting)]
        return min(deadlines if node is None else [node, *deadlines])

    def tenants(self) -> list[TenantView]:
        """Return all tenants, by slot."""
        return [
            TenantView(self.registry.holders[slot], slot in self.registry.peer_of)
            for slot in sorted(self.registry.holders)
        ]

    def waiting_peers(self) -> list[int]:
        """Return the peers whose joins wait until other tenants have freed memory."""
        return [join.peer for join in self._pressure.waiting]

    def watches(self) -> list[GpuWatch]:
        """Return the monitor state by device index."""
        return list(self._devices.watches)

    def is_changed_by(self, event: GpuSampled, now: Instant) -> bool:
        """Return whether a sample would change the state."""
        return self._devices.is_changed_by(event, now)

    def snapshot(self) -> NodeRestored:
        """Return the whole state as the event that restores it."""
        return NodeRestored(
            self._context.settings,
            self._context.turn,
            tuple(self.registry.generations),
            tuple(
                (self.registry.peer_of.get(slot, NO_PEER), self.registry.holders[slot])
                for slot in sorted(self.registry.holders)
            ),
            tuple(self.registry.departed),
            self.registry.disconnected_until,
            self.registry.idle_since,
            self._context.rules,
            tuple(self._devices.watches),
            tuple(self._pressure.waiting),
            tuple(entry for _, entry in sorted(self._devices.online_first.items())),
            tuple(setpoint for _, setpoint in sorted(self.registry.tables.setpoints.items())),
            tuple(
                GpuCalibrated(gpu, calibration)
                for gpu, calibration in sorted(self.registry.tables.calibrations.items())
            ),
        )

    def plan(self) -> Plan:
        """Return the reservations on all devices."""
        return plan_of(self._context, self.registry)

    def check(self) -> None:
        """Raise `InvariantError` with a description if an invariant does not hold."""
        check(self._context, self.registry, self._devices, self._pressure)

    # -- the node --------------------------------------------------------------------------------------------------

    def _started(self, event: NodeStarted, now: Instant) -> list[Action]:
        """Handle a start: all known tenants are disconnected until they resume.

        Their grants are issued again without a peer, so that the pages agree with the journal. Rules that an operator
        changed outlive a restart unless the new settings have other rules than the old ones. Tenants that were exiting
        or being suspended continue once their parents have reconnected; waiting joins are dropped.
        """
        if event.settings.gate != self._context.settings.gate:
            self._context.rules = event.settings.gate
        before = self._context.settings.gpus
        self._context.settings = event.settings
        self._forget_calibrations(before)
        self.registry.peer_of.clear()
        self.registry.slot_of_peer.clear()
        self._pressure.waiting.clear()
        for slot in self.registry.deadlines:
            tenant = self.registry.holders[slot]
            lifecycle = msgspec.structs.replace(tenant.lifecycle, until_ns=NEVER)
            self.registry.holders[slot] = msgspec.structs.replace(tenant, lifecycle=lifecycle)
        self.registry.disconnected_until = now + event.settings.grace_ns if self.registry.holders else NEVER
        self.registry.idle_since = NEVER if self.registry.holders else now
        self.registry.rebuild()
        self.registry.mark_all()
        watched = self._devices.started(before, now)
        return [
            *(
                self.registry.issue_grant(NO_PEER, self.registry.holders[slot])
                for slot in sorted(self.registry.holders)
            ),
            *watched,
        ]

    def _restored(self, event: NodeRestored, now: Instant) -> list[Action]:
        del now
        self._context.settings = event.settings
        self._context.turn = event.turn
        self.registry.departed = deque(event.departed, maxlen=DEPARTED_LIMIT)
        self.registry.holders = {tenant.grant.slot: tenant for _, tenant in event.tenants}
        self.registry.peer_of = {tenant.grant.slot: peer for peer, tenant in event.tenants if peer != NO_PEER}
        self.registry.slot_of_peer = {peer: slot for slot, peer in self.registry.peer_of.items()}
        self.registry.generations = list(event.generations)
        self.registry.disconnected_until = event.disconnected_until_ns
        self.registry.idle_since = event.idle_since_ns
        self._context.rules = event.settings.gate if event.gate is None else event.gate
        self._pressure.waiting = list(event.waiting)
        calibrations = {entry.gpu: entry.calibration for entry in event.calibrations}
        self.registry.tables = TenantTables((), event.setpoints, calibrations)
        self.registry.rebuild()
        self._devices.restore(event.watches, event.online_first)
        return []

    def _gpus_found(self, event: GpusFound, now: Instant) -> list[Action]:
        del now
        known_gpus = self._context.settings.gpus
        self._context.settings = msgspec.structs.replace(self._context.settings, gpus=(*known_gpus, *event.gpus))
        self.registry.capacity = Capacity(self._context.settings, self.registry.holders.values(), self._context.rules)
        self._devices.add_devices(len(event.gpus))
        for gpu in range(len(known_gpus), len(self._context.settings.gpus)):
            self.registry.tables.mark_all(gpu)
        return []

    def _settings_changed(self, event: SettingsChanged, now: Instant) -> list[Action]:
        """Use other settings from now on; rules that an operator changed stay unless the new settings have others."""
        del now
        before, self._context.settings = self._context.settings, event.settings
        if event.settings.gate != before.gate:
            self._context.rules = event.settings.gate
        self.registry.capacity = Capacity(event.settings, self.registry.holders.values(), self._context.rules)
        self._devices.add_devices(len(event.settings.gpus) - len(before.gpus))
        self._forget_calibrations(before.gpus)
        self.registry.mark_all()
        return []

    def _calibrated(self, event: GpuCalibrated, now: Instant) -> list[Action]:
        """Use measured costs from now on, unless the settings state them."""
        del now
        if 0 <= event.gpu < len(self._context.settings.gpus) and self._context.settings.uses_calibration:
            self.registry.tables.calibrations[event.gpu] = event.calibration
            self.registry.tables.mark_all(event.gpu)
        return []

    def _forget_calibrations(self, before: tuple[Gpu, ...]) -> None:
        """Forget the measurements of devices that are no longer the same, or of all if the settings state the costs."""
        settings, calibrations = self._context.settings, self.registry.tables.calibrations
        for gpu in list(calibrations):
            is_same = gpu < min(len(before), len(settings.gpus)) and before[gpu] == settings.gpus[gpu]
            if not is_same or not settings.uses_calibration:
                del calibrations[gpu]

    def _reported(self, event: NodeReported, now: Instant) -> list[Action]:
        """Change nothing: the event is journaled for `cotenant events`."""
        del event, now
        return []

    def _timer_fired(self, event: TimerFired, now: Instant) -> list[Action]:
        del event
        actions: list[Action] = []
        for slot in sorted(slot for slot, until_ns in self.registry.deadlines.items() if now >= until_ns):
            actions += self._deadline_reached(self.registry.holders[slot], now)
        if self.registry.disconnected_until != NEVER and now >= self.registry.disconnected_until:
            self.registry.disconnected_until = NEVER
            disconnected = [slot for slot in sorted(self.registry.holders) if slot not in self.registry.peer_of]
            for slot in disconnected:
                actions += self._exits.reconnect_timed_out(self.registry.holders[slot])
                actions += self.registry.release(slot, "lost: did not reconnect in time", NO_PEER, now)
        idle_exit_ns = self._context.settings.idle_exit_ns
        if idle_exit_ns and self.registry.idle_since != NEVER and now >= self.registry.idle_since + idle_exit_ns:
            self.registry.idle_since = NEVER
            actions.append(Stop(self._context.turn, "idle: no tenant for the time of node.idle_exit"))
        return actions

    def _stopping(self, event: NodeStopping, now: Instant) -> list[Action]:
        """Stop the daemon; disconnected tenants keep their slots, and the next start begins their grace period anew."""
        del now
        self.registry.idle_since = NEVER
        return [Stop(self._context.turn, event.reason)]

    # -- joins and departures ------------------------------------------------------------------------------------------

    def _joined(self, event: TenantJoined, now: Instant) -> list[Action]:
        spec, peer = event.spec, event.peer
        if peer in self.registry.slot_of_peer or (self._pressure.waiting and self._pressure.is_waiting(peer)):
            return self._refuse_second_join(peer)
        if not self.registry.free:
            detail = (
                f"all {self._context.settings.slots} slots are taken; wait for a tenant to leave or raise node.slots"
            )
            return self.registry.refuse(peer, Reason.NO_SLOT, detail)
        if spec.name in self.registry.slot_of_name:
            detail = f"the name {spec.name!r} is taken by the tenant in slot {self.registry.slot_of_name[spec.name]}"
            return self.registry.refuse(peer, Reason.NAME_TAKEN, detail)
        if not self._context.settings.gpus:
            return self.registry.admit(event, (NO_GPU,), now)
        is_unrestricted = self._devices.admits_all and not self._pressure.waiting and not self.registry.suspended
        barred = {} if is_unrestricted else self._devices.bars(spec.kind, now)
        choice = self.registry.choose(spec, barred)
        if isinstance(choice, Reject):
            may_reclaim = spec.kind is Kind.ONLINE and spec.memory_bytes > 0 and choice.reason is Reason.NO_MEMORY
            reclaim = self._pressure.make_room(event, now, barred) if may_reclaim else None
            return [Refuse(self._context.turn, peer, choice)] if reclaim is None else reclaim
        if choice.shortfall_ppm and self._context.settings.refuse_unmet and spec.slo_ns and spec.use is not None:
            detail = (
                f"its objective of {format_duration(spec.slo_ns)} is predicted to be missed on every GPU: {choice.why}"
            )
            return self.registry.refuse(peer, Reason.NO_OBJECTIVE, detail)
        actions = self.registry.admit(event, choice.gpus, now)
        if choice.why:
            slot = self.registry.slot_of_peer[peer]
            actions.append(
                RecordPlacement(
                    self._context.turn,
                    slot,
                    self.registry.generations[slot],
                    choice.gpu,
                    choice.why,
                    choice.shortfall_ppm,
                    choice.more_gpus,
                )
            )
        if not is_unrestricted:
            self._devices.tenant_returned(self.registry.holders[self.registry.slot_of_peer[peer]])
        return actions

    def _resumed(self, event: TenantResumed, now: Instant) -> list[Action]:
        slot, generation = event.slot, event.generation
        tenant = self.registry.holders.get(slot)
        if event.peer in self.registry.slot_of_peer or self._pressure.is_waiting(event.peer):
            return self._refuse_second_join(event.peer)
        if tenant is None or tenant.grant.generation != generation:
            reason = self._eviction_reason(slot, generation, event.pid, event.uid)
            if reason is not None:
                return self.registry.refuse(event.peer, Reason.EVICTED, reason)
        if tenant is None:
            return self.registry.refuse(event.peer, Reason.UNKNOWN_SLOT, f"no tenant holds slot {slot}")
        if (tenant.pid, tenant.uid) != (event.pid, event.uid):
            return self.registry.refuse(event.peer, Reason.NOT_YOURS, f"slot {slot} belongs to another process")
        if tenant.grant.generation != generation:
            detail = f"slot {slot} is at generation {tenant.grant.generation}, not {generation}"
            return self.registry.refuse(event.peer, Reason.STALE, detail)
        if slot in self.registry.peer_of:
            return self.registry.refuse(
                event.peer, Reason.ALREADY_HERE, f"the holder of slot {slot} is already connected"
            )
        self.registry.peer_of[slot] = event.peer
        self.registry.slot_of_peer[event.peer] = slot
        if len(self.registry.peer_of) == len(self.registry.holders):
            self.registry.disconnected_until = NEVER
        return [self.registry.issue_grant(event.peer, tenant), *self._continue_phase(tenant, now)]

    def _refuse_second_join(self, peer: int) -> list[Action]:
        state = "is already a tenant" if peer in self.registry.slot_of_peer else "already waits to become a tenant"
        return self.registry.refuse(peer, Reason.ALREADY_HERE, f"this connection {state}")

    def _eviction_reason(self, slot: int, generation: int, pid: int, uid: int) -> str | None:
        """Return why a tenant that tries to resume was evicted while it was disconnected, if it was."""
        for departure in self.registry.departed:
            tenant, grant = departure.tenant, departure.tenant.grant
            is_same = (grant.slot, grant.generation, tenant.pid, tenant.uid) == (slot, generation, pid, uid)
            if is_same and tenant.lifecycle.phase in ENDING:
                return tenant.lifecycle.why
        return None

    def _continue_phase(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Continue a tenant's exit or suspension after its parent reconnected."""
        phase = tenant.lifecycle.phase
        if phase is ExitPhase.RUNNING:
            return []
        return self._exits.resumed(tenant, now) if phase in ENDING else self._suspensions.resumed(tenant, now)

    def _left(self, event: TenantLeft, now: Instant) -> list[Action]:
        slot = self.registry.slot_of_peer.get(event.peer)
        if slot is None:  # a peer that is not a tenant may leave, too
            self._pressure.forget(event.peer)
            return []
        return self.registry.release(slot, event.ending, event.peer, now)

    def _peer_lost(self, event: PeerLost, now: Instant) -> list[Action]:
        slot = self.registry.slot_of_peer.get(event.peer)
        if slot is None:
            self._pressure.forget(event.peer)
            return []
        return self.registry.release(slot, "lost: its connection closed", NO_PEER, now)

    # -- the program of a tenant -----------------------------------------------------------------------------------

    def _quit(self, event: QuitRequested, now: Instant) -> list[Action]:
        slot = self.registry.slot_of_peer.get(event.peer)
        if slot is None:
            return []
        why = "ended: its `cotenant run` was asked to stop"
        return self._exits.begin(slot, why, now, grace_ns=event.grace_ns, may_restart=False)

    def _drained(self, event: TenantDrained, now: Instant) -> list[Action]:
        tenant = self.registry.of_slot(event.slot, event.generation)
        if tenant is None:
            return []
        if tenant.lifecycle.phase is ExitPhase.SUSPENDING:
            return self._suspensions.drained(tenant, now)
        return self._exits.drained(tenant, now)

    def _restarted(self, event: TenantRestarted, now: Instant) -> list[Action]:
        tenant = self.registry.of_peer(event.peer)
        if tenant is None:
            return []
        tenant = msgspec.structs.replace(tenant, restarts=event.restarts)
        self.registry.replace(tenant)
        self._devices.tenant_returned(tenant)
        phase = tenant.lifecycle.phase
        if phase is ExitPhase.RUNNING:  # a draining device needs to know when the new program started
            self.registry.replace(
                msgspec.structs.replace(tenant, lifecycle=Lifecycle(turn=self._context.turn, since_ns=now))
            )
            return []
        return self._exits.restarted(tenant, now) if phase in ENDING else self._suspensions.restarted(tenant, now)

    def _deadline_reached(self, tenant: Tenant, now: Instant) -> list[Action]:
        phase = tenant.lifecycle.phase
        return self._exits.due(tenant, now) if phase in ENDING else self._suspensions.due(tenant, now)
