"""The event log: turns described in sentences for `cotenant events`, `cotenant explain`, the log and the metrics.

All of these use the same log events and agree with each other. Nothing here takes part in decisions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

from cotenant.node.decision_log import (
    cause_of,
    describe_objective,
    describe_rules,
    describe_share,
    describe_spec,
    printable,
)
from cotenant.node.model.action import (
    NO_PEER,
    Action,
    Confirm,
    IssueGrant,
    RecordPlacement,
    Refuse,
    Revoke,
    SetOnlineShare,
    SignalTenant,
)
from cotenant.node.model.control import AdjustCause
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    NodeRestored,
    NodeStarted,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    ShareChanged,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TenantsPaused,
)
from cotenant.node.model.gpu import name_gpus
from cotenant.node.model.log_event import LogEvent, LogEventKind, LogLevel
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.state.event_text import FORMATTERS, NO_TENANT, LogText, TenantIdentity
from cotenant.node.state.registry import program_of
from cotenant.units.dispatch import handler
from cotenant.units.instant import Instant
from cotenant.units.text import counted, round_duration, round_share

_REGULAR_ENDINGS: Final = ("exit 0", "its last process ended")
"""A program that joined by itself reports no exit code; its tenant leaves with its last process."""
_LOST_PREFIX: Final = "lost: "
_CAUSE_LIMIT: Final = 200
_CAUSE_TEXT: Final = {
    AdjustCause.JOINED: "joined",
    AdjustCause.DEPARTED: "has headroom after another tenant left",
    AdjustCause.VIOLATED: "misses its objective",
    AdjustCause.STUCK: "has a request that does not end",
    AdjustCause.NEAR_OBJECTIVE: "is close to its objective",
    AdjustCause.SATURATED: "is saturated",
    AdjustCause.LOAD_INCREASED: "has more load",
    AdjustCause.LOAD_DECREASED: "has less load",
    AdjustCause.HEADROOM: "has headroom",
    AdjustCause.PROBE: "has headroom for another attempt at a smaller share",
    AdjustCause.UNREACHABLE: "cannot meet its objective",
    AdjustCause.DIVIDED: "shares the device with peers",
    AdjustCause.OBJECTIVE: "has a stricter objective",
    AdjustCause.TRIMMED: "misses its objective more or less often than it may",
    AdjustCause.SIMPLE_MODE: "leaves no pauses",
    AdjustCause.GATE_MODE: "gains by the gate",
}
"""The predicate of a sentence whose subject is the tenant that caused an adjustment."""


class EventLog:
    """Converts turns, in order, to log events; remembers which tenant holds which slot."""

    def __init__(self, unix_offset_ns: int | None = None, turn: int = 0) -> None:
        """Begin without tenants; the offset converts the node's clock to wall-clock time until a start sets it."""
        self.turn = turn
        self.tenants: dict[int, TenantIdentity] = {}
        self._offset_ns = unix_offset_ns
        self._slot_of_peer: dict[int, int] = {}
        self._quitting: set[tuple[int, int]] = set()
        self._waiting_joins: dict[int, str] = {}  # peers whose join is neither granted nor refused yet
        self._now: Instant = 0
        self._log_events: list[LogEvent] = []
        self._events = dict(
            (
                handler(NodeStarted, self._node_started),
                handler(NodeRestored, self._node_restored),
                handler(TenantJoined, self._joined),
                handler(TenantsPaused, self._paused),
                handler(PriorityChanged, self._priority_changed),
                handler(ShareChanged, self._share_changed),
                handler(ObjectiveChanged, self._objective_changed),
                handler(RulesChanged, self._rules_changed),
                handler(EvictionRequested, self._eviction_requested),
                handler(QuitRequested, self._quit_requested),
                handler(PeerLost, self._peer_lost),
            )
        )
        self._actions = dict(
            (
                handler(IssueGrant, self._granted),
                handler(Refuse, self._refused),
                handler(Revoke, self._revoked),
                handler(SignalTenant, self._signalled),
                handler(SetOnlineShare, self._adjusted),
                handler(RecordPlacement, self._placed),
            )
        )

    def record(self, now: Instant, event: Event, actions: Sequence[Action]) -> list[LogEvent]:
        """Return the log events of this turn: those of the event, then those of its actions."""
        self.turn += 1
        self._now, self._log_events = now, []
        if handler := self._events.get(type(event)):
            self._describe(event, functools.partial(handler, event, actions))
        self._describe(event, functools.partial(self._add_formatted, event))
        for action in actions:
            if function := self._actions.get(type(action)):
                self._describe(action, functools.partial(function, action, event))
            self._describe(action, functools.partial(self._add_formatted, action))
        return self._log_events

    def _describe(self, subject: Event | Action, add: Callable[[], None]) -> None:
        """Add the log events of a subject; a sentence that cannot be made must not end the node that it is about."""
        try:
            add()
        except Exception as error:  # noqa: BLE001  any exception is a defect of the sentence
            cause = f"{type(error).__name__}: {error}"[:_CAUSE_LIMIT]
            text = f"{type(subject).__name__} has no text because of a defect of cotenant; please report it: {cause}"
            self._add(LogText(LogEventKind.UNDESCRIBED, text, LogLevel.ERROR))

    def _add_formatted(self, subject: Event | Action) -> None:
        """Describe an event or action that needs only its subject."""
        if formatter := FORMATTERS.get(type(subject)):
            slot, peer = getattr(subject, "slot", NO_TENANT.grant.slot), getattr(subject, "peer", NO_PEER)
            tenant = NO_TENANT
            if slot >= 0:
                tenant = self._tenant_in(slot, getattr(subject, "generation", None))
            elif peer != NO_PEER:
                tenant = self._tenant_of(peer)
            self._add(formatter(subject, tenant), tenant)

    def _add(self, log_text: LogText, tenant: TenantIdentity = NO_TENANT) -> None:
        kind, text, level, gpu, why = log_text
        device = tenant.grant.gpu if gpu is None else gpu
        unix_ns = 0 if self._offset_ns is None else self._now + self._offset_ns
        self._log_events.append(
            LogEvent(self._now, self.turn, kind, printable(text), tenant.name, device, why, level, unix_ns)
        )

    # -- tenants --------------------------------------------------------------------------------------------

    def _tenant_in(self, slot: int, generation: int | None = None) -> TenantIdentity:
        """Return the tenant in a slot, or a placeholder if the record does not reach back far enough."""
        tenant = self.tenants.get(slot)
        if tenant is None or generation not in (None, tenant.grant.generation):
            return NO_TENANT._replace(name=f"slot-{slot}")
        return tenant

    def _tenant_of(self, peer: int) -> TenantIdentity:
        slot = self._slot_of_peer.get(peer)
        return NO_TENANT._replace(name=f"peer-{peer}") if slot is None else self._tenant_in(slot)

    # -- the node ----------------------------------------------------------------------------------------------

    def _node_started(self, event: NodeStarted, actions: Sequence[Action]) -> None:
        self._offset_ns = event.unix_ns - self._now
        self._slot_of_peer.clear()
        self._waiting_joins.clear()
        returning = sum(isinstance(action, IssueGrant) for action in actions)
        expected = f", {counted(returning, 'tenant')} expected back" if returning else ""
        size = f"{counted(event.settings.slots, 'slot')}, {counted(len(event.settings.gpus), 'GPU')}"
        self._add(LogText(LogEventKind.STARTED, f"node {event.version} started: {size}{expected}"))

    def _node_restored(self, event: NodeRestored, actions: Sequence[Action]) -> None:
        """Handle the head of a journal segment, which adds no log event unless earlier turns are missing."""
        del actions
        missing, self.turn = event.turn - (self.turn - 1), event.turn
        if missing and self.turn > missing:
            text = f"{counted(abs(missing), 'turn')} before this are not on record"
            self._add(LogText(LogEventKind.GAP, text, LogLevel.WARNING))
        self.tenants = {tenant.grant.slot: _identity(tenant) for _, tenant in event.tenants}
        self._slot_of_peer = {peer: tenant.grant.slot for peer, tenant in event.tenants if peer != NO_PEER}

    def _rules_changed(self, event: RulesChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            self._add(LogText(LogEventKind.RULES, f"the rules of the gate changed: {describe_rules(event.change)}"))

    # -- joins and departures --------------------------------------------------------------------------------------

    def _joined(self, event: TenantJoined, actions: Sequence[Action]) -> None:
        if not any(isinstance(action, IssueGrant | Refuse) and action.peer == event.peer for action in actions):
            name = self._waiting_joins[event.peer] = _join_name(event.spec)
            text = f"{name} waits to join until offline tenants free memory: {describe_spec(event.spec)}"
            self._add(LogText(LogEventKind.JOIN_WAITING, text), NO_TENANT._replace(name=name))

    def _granted(self, action: IssueGrant, event: Event) -> None:
        grant = action.grant
        before = self.tenants.get(grant.slot)
        tenant = self.tenants[grant.slot] = TenantIdentity(action.tenant, grant)
        if action.peer == NO_PEER:
            return
        self._slot_of_peer[action.peer] = grant.slot
        self._waiting_joins.pop(action.peer, None)
        if before is not None and before.grant.generation == grant.generation:
            if isinstance(event, TenantResumed):
                self._add(LogText(LogEventKind.RESUMED, f"{tenant.name} reconnected"), tenant)
            return
        spec = f": {describe_spec(event.spec)}" if isinstance(event, TenantJoined) else ""
        where = f" on {name_gpus(grant.gpus)}" if grant.gpus else ""
        text = f"{tenant.name} joined in slot {grant.slot}/{grant.generation}{where}{spec}"
        self._add(LogText(LogEventKind.JOINED, text), tenant)

    def _refused(self, action: Refuse, event: Event) -> None:
        reject = action.reject
        reason = reject.reason.value
        retry = f"; retry in {round_duration(reject.retry_after_ns)}" if reject.retry_after_ns else ""
        if isinstance(event, TenantJoined | TenantResumed) or action.peer in self._waiting_joins:
            name = self._waiting_joins.pop(action.peer, "")
            if isinstance(event, TenantJoined) and event.peer == action.peer:
                name = _join_name(event.spec)
            elif isinstance(event, TenantResumed):
                name = self._tenant_in(event.slot).name
            text = f"{name} was refused: {reject.detail}{retry}"
            self._add(LogText(LogEventKind.REFUSED, text, LogLevel.WARNING, why=reason), NO_TENANT._replace(name=name))
        else:
            self._add(
                LogText(LogEventKind.COMMAND_REFUSED, f"a command was refused: {reject.detail}{retry}", why=reason)
            )

    def _revoked(self, action: Revoke, event: Event) -> None:
        tenant = self._tenant_in(action.slot, action.generation)._replace(name=action.tenant)
        self.tenants.pop(action.slot, None)
        self._slot_of_peer = {peer: slot for peer, slot in self._slot_of_peer.items() if slot != action.slot}
        self._quitting.discard((action.slot, action.generation))
        level = LogLevel.INFO if action.ending in _REGULAR_ENDINGS else LogLevel.WARNING
        if isinstance(event, TenantLeft):
            self._add(LogText(LogEventKind.LEFT, f"{tenant.name} left: {action.ending}", level), tenant)
        else:
            text = f"{tenant.name} was lost: {action.ending.removeprefix(_LOST_PREFIX)}"
            self._add(LogText(LogEventKind.LOST, text, LogLevel.WARNING), tenant)

    def _peer_lost(self, event: PeerLost, actions: Sequence[Action]) -> None:
        del actions
        if name := self._waiting_joins.pop(event.peer, ""):
            self._add(LogText(LogEventKind.LOST, f"{name} gave up waiting to join"), NO_TENANT._replace(name=name))

    # -- commands ------------------------------------------------------------------------------------------------

    def _paused(self, event: TenantsPaused, actions: Sequence[Action]) -> None:
        for name in _confirmed(actions) or ():
            kind, verb = (LogEventKind.PAUSED, "is paused") if event.paused else (LogEventKind.CONTINUED, "resumes")
            self._add(LogText(kind, f"{name} {verb}: requested by user {event.uid}"), self._tenant_named(name))

    def _priority_changed(self, event: PriorityChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            text = f"{event.name} now has priority {event.priority}"
            self._add(LogText(LogEventKind.PRIORITY, text), self._tenant_named(event.name))

    def _share_changed(self, event: ShareChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            text = f"{event.name} now has {describe_share(event)}"
            self._add(LogText(LogEventKind.SHARE, text), self._tenant_named(event.name))

    def _objective_changed(self, event: ObjectiveChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            text = f"{event.name} now has {describe_objective(event.slo_ns)}"
            self._add(LogText(LogEventKind.OBJECTIVE, text), self._tenant_named(event.name))

    def _eviction_requested(self, event: EvictionRequested, actions: Sequence[Action]) -> None:
        for name in _confirmed(actions) or ():
            self._add(
                LogText(LogEventKind.EVICTING, f"{name} is being evicted: requested by user {event.uid}"),
                self._tenant_named(name),
            )

    def _quit_requested(self, event: QuitRequested, actions: Sequence[Action]) -> None:
        del actions
        tenant = self._tenant_of(event.peer)
        self._quitting.add((tenant.grant.slot, tenant.grant.generation))
        self._add(
            LogText(LogEventKind.QUITTING, f"{tenant.name} is ending: its `cotenant run` was asked to stop"), tenant
        )

    def _signalled(self, action: SignalTenant, event: Event) -> None:
        del event
        tenant = self._tenant_in(action.slot, action.generation)
        if action.kind == "kill":
            self._add(
                LogText(LogEventKind.KILLED, f"{tenant.name} is killed: {cause_of(action.why)}", LogLevel.WARNING),
                tenant,
            )
        elif (action.slot, action.generation) in self._quitting:
            self._add(LogText(LogEventKind.ENDING, f"{tenant.name} is asked to exit: {cause_of(action.why)}"), tenant)
        else:
            self._add(
                LogText(
                    LogEventKind.EVICTED, f"{tenant.name} is asked to exit: {cause_of(action.why)}", LogLevel.WARNING
                ),
                tenant,
            )

    def _adjusted(self, action: SetOnlineShare, event: Event) -> None:
        del event
        change = action.adjustment
        tenant = NO_TENANT if change.slot < 0 else self._tenant_in(change.slot, change.generation)
        share, was = round_share(change.online_ppm), round_share(action.was_ppm)
        text = f"GPU {change.gpu}: online share set to {share}" + (f" (was {was})" if was != share else "")
        parts = [f"{self._tenant_in(slot).name} {round_share(share_ppm)}" for slot, share_ppm in change.shares]
        text += f", divided into {' and '.join(parts)}" if parts else ""
        text += ", gate open, the other SMs for offline work" if change.is_simple else ""
        text += f": {tenant.name} {_CAUSE_TEXT[change.cause]}" if tenant.name else f": {change.cause.value}"
        text += f", {change.detail}" if change.detail else ""
        level = LogLevel.WARNING if change.cause is AdjustCause.UNREACHABLE else LogLevel.INFO
        self._add(LogText(LogEventKind.ADJUSTED, text, level, change.gpu, change.cause.value), tenant)

    def _placed(self, action: RecordPlacement, event: Event) -> None:
        del event
        tenant = self._tenant_in(action.slot, action.generation)
        if action.shortfall_ppm:
            shortfall = f"GPU {action.gpu} is predicted to lack {round_share(action.shortfall_ppm)} for all objectives"
            self._add(
                LogText(
                    LogEventKind.PLACED, f"{tenant.name} was placed, but {shortfall}: {action.why}", LogLevel.WARNING
                ),
                tenant,
            )
        else:
            self._add(LogText(LogEventKind.PLACED, f"{tenant.name} was placed by prediction: {action.why}"), tenant)

    def _tenant_named(self, name: str) -> TenantIdentity:
        matches = (tenant for tenant in self.tenants.values() if tenant.name == name)
        return next(matches, NO_TENANT._replace(name=name))


def _identity(tenant: Tenant) -> TenantIdentity:
    return TenantIdentity(tenant.name, tenant.grant)


def _join_name(spec: TenantSpec) -> str:
    """Return the name of a tenant that has not joined yet."""
    return spec.name or program_of(spec.command)


def _confirmed(actions: Sequence[Action]) -> tuple[str, ...] | None:
    """Return the tenants for which a command was carried out; None: it was refused."""
    return next((action.tenants for action in actions if isinstance(action, Confirm)), None)
