"""What happened to whom? Remembers who holds which slot, and tells of each turn in plain words.

The log of a node, `cotenant events`, `cotenant explain` and the counters of /metrics all come from here, so that they
use the same words and agree with each other. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cotenant.domain.action import NO_PEER, Action, Adjusted, Confirm, Grant, Placed, Refuse, Revoke, Signal
from cotenant.domain.control import Cause
from cotenant.domain.event import (
    Event,
    EvictAsked,
    NodeRestored,
    NodeStarted,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
    ShareChanged,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TenantsPaused,
)
from cotenant.domain.happening import Happening, Level, What
from cotenant.domain.instant import Instant
from cotenant.domain.tenant import Tenant, TenantSpec
from cotenant.format.log import cause_of, describe_objective, describe_rules, describe_share, describe_spec, printable
from cotenant.format.quantity import counted, round_duration, round_share
from cotenant.machine.name import program_of
from cotenant.machine.telling import NOBODY, TELLINGS, Resident, Telling

_WELL = "exit 0"


class Chronicle:
    """Feed it every turn in order; it gives back what is worth telling."""

    def __init__(self, unix_offset_ns: int | None = None, turn: int = 0) -> None:
        """Know nobody; the offset is from the node's clock to the wall clock, until a start says it better."""
        self.turn = turn
        self.residents: dict[int, Resident] = {}
        self._offset_ns = unix_offset_ns
        self._slot_of_peer: dict[int, int] = {}
        self._quitting: set[tuple[int, int]] = set()
        self._awaited: dict[int, str] = {}  # peers whose join is neither granted nor refused yet
        self._now: Instant = 0
        self._told: list[Happening] = []
        self._events: dict[type, Callable[[Any, Sequence[Action]], None]] = {
            NodeStarted: self._started,
            NodeRestored: self._restored,
            TenantJoined: self._joined,
            TenantsPaused: self._paused,
            PriorityChanged: self._reprioritized,
            ShareChanged: self._resized,
            ObjectiveChanged: self._reaimed,
            RulesChanged: self._ruled,
            EvictAsked: self._evict_asked,
            QuitAsked: self._quit_asked,
            PeerLost: self._peer_lost,
        }
        self._actions: dict[type, Callable[[Any, Event], None]] = {
            Grant: self._granted,
            Refuse: self._refused,
            Revoke: self._revoked,
            Signal: self._signalled,
            Adjusted: self._adjusted,
            Placed: self._placed,
        }

    def tell(self, now: Instant, event: Event, actions: Sequence[Action]) -> list[Happening]:
        """What happened in this turn, the event before what was done about it."""
        self.turn += 1
        self._now, self._told = now, []
        if handler := self._events.get(type(event)):
            handler(event, actions)
        self._plain(event)
        for action in actions:
            if deed := self._actions.get(type(action)):
                deed(action, event)
            self._plain(action)
        return self._told

    def _plain(self, fact: Event | Action) -> None:
        """What needs no more to be told than who it is about."""
        if words := TELLINGS.get(type(fact)):
            slot, peer = getattr(fact, "slot", NOBODY.terms.slot), getattr(fact, "peer", NO_PEER)
            who = NOBODY
            if slot >= 0:
                who = self._at(slot, getattr(fact, "generation", None))
            elif peer != NO_PEER:
                who = self._of_peer(peer)
            self._say(words(fact, who), who)

    def _say(self, telling: Telling, who: Resident = NOBODY) -> None:
        what, text, level, gpu, why = telling
        place = who.terms.gpu if gpu is None else gpu
        unix_ns = 0 if self._offset_ns is None else self._now + self._offset_ns
        self._told.append(Happening(self._now, self.turn, what, printable(text), who.name, place, why, level, unix_ns))

    # -- who is who --------------------------------------------------------------------------------------------

    def _at(self, slot: int, generation: int | None = None) -> Resident:
        """Whoever holds a slot; somebody without a name where the record does not reach back far enough."""
        found = self.residents.get(slot)
        if found is None or generation not in (None, found.terms.generation):
            return NOBODY._replace(name=f"slot-{slot}")
        return found

    def _of_peer(self, peer: int) -> Resident:
        slot = self._slot_of_peer.get(peer)
        return NOBODY._replace(name=f"peer-{peer}") if slot is None else self._at(slot)

    # -- the node ----------------------------------------------------------------------------------------------

    def _started(self, event: NodeStarted, actions: Sequence[Action]) -> None:
        self._offset_ns = event.unix_ns - self._now
        self._slot_of_peer.clear()
        self._awaited.clear()
        back = sum(isinstance(action, Grant) for action in actions)
        expected = f", {counted(back, 'tenant')} expected back" if back else ""
        size = f"{counted(event.settings.slots, 'slot')}, {counted(len(event.settings.gpus), 'GPU')}"
        self._say(Telling(What.STARTED, f"node {event.version} started: {size}{expected}"))

    def _restored(self, event: NodeRestored, actions: Sequence[Action]) -> None:
        """The head of a segment tells nothing new, unless turns before it are missing."""
        del actions
        missing, self.turn = event.turn - (self.turn - 1), event.turn
        if missing and self.turn > missing:
            text = f"{counted(abs(missing), 'turn')} before this are not on record"
            self._say(Telling(What.GAP, text, Level.WARNING))
        self.residents = {tenant.terms.slot: _resident(tenant) for _, tenant in event.tenants}
        self._slot_of_peer = {peer: tenant.terms.slot for peer, tenant in event.tenants if peer != NO_PEER}

    def _ruled(self, event: RulesChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            self._say(Telling(What.RULES, f"the rules of the gate are changed: {describe_rules(event.change)}"))

    # -- coming and going --------------------------------------------------------------------------------------

    def _joined(self, event: TenantJoined, actions: Sequence[Action]) -> None:
        if not any(isinstance(action, Grant | Refuse) and action.peer == event.peer for action in actions):
            name = self._awaited[event.peer] = _called(event.spec)
            text = f"{name} waits to join until others make room: {describe_spec(event.spec)}"
            self._say(Telling(What.AWAITED, text), NOBODY._replace(name=name))

    def _granted(self, action: Grant, event: Event) -> None:
        terms = action.terms
        known = self.residents.get(terms.slot)
        who = self.residents[terms.slot] = Resident(action.tenant, terms)
        if action.peer == NO_PEER:
            return
        self._slot_of_peer[action.peer] = terms.slot
        self._awaited.pop(action.peer, None)
        if known is not None and known.terms.generation == terms.generation:
            if isinstance(event, TenantResumed):
                self._say(Telling(What.RESUMED, f"{who.name} is back"), who)
            return
        wants = f": {describe_spec(event.spec)}" if isinstance(event, TenantJoined) else ""
        where = f" on GPU {terms.gpu}" if terms.gpu >= 0 else ""
        text = f"{who.name} joined in slot {terms.slot}/{terms.generation}{where}{wants}"
        self._say(Telling(What.JOINED, text), who)

    def _refused(self, action: Refuse, event: Event) -> None:
        reject = action.reject
        reason = reject.reason.value
        retry = f"; worth another try in {round_duration(reject.retry_after_ns)}" if reject.retry_after_ns else ""
        if isinstance(event, TenantJoined | TenantResumed) or action.peer in self._awaited:
            name = self._awaited.pop(action.peer, "")
            if isinstance(event, TenantJoined) and event.peer == action.peer:
                name = _called(event.spec)
            elif isinstance(event, TenantResumed):
                name = self._at(event.slot).name
            text = f"{name} was refused: {reject.detail}{retry}"
            self._say(Telling(What.REFUSED, text, Level.WARNING, why=reason), NOBODY._replace(name=name))
        else:
            self._say(Telling(What.WISH_REFUSED, f"a wish was refused: {reject.detail}{retry}", why=reason))

    def _revoked(self, action: Revoke, event: Event) -> None:
        who = self._at(action.slot, action.generation)._replace(name=action.tenant)
        self.residents.pop(action.slot, None)
        self._slot_of_peer = {peer: slot for peer, slot in self._slot_of_peer.items() if slot != action.slot}
        self._quitting.discard((action.slot, action.generation))
        level = Level.INFO if action.ending == _WELL else Level.WARNING
        if isinstance(event, TenantLeft):
            self._say(Telling(What.LEFT, f"{who.name} left: {action.ending}", level), who)
        else:
            self._say(Telling(What.LOST, f"{who.name} is gone: {action.ending}", Level.WARNING), who)

    def _peer_lost(self, event: PeerLost, actions: Sequence[Action]) -> None:
        del actions
        if name := self._awaited.pop(event.peer, ""):
            self._say(Telling(What.LOST, f"{name} gave up waiting to join"), NOBODY._replace(name=name))

    # -- wishes ------------------------------------------------------------------------------------------------

    def _paused(self, event: TenantsPaused, actions: Sequence[Action]) -> None:
        for name in _confirmed(actions) or ():
            what, words = (What.PAUSED, "is paused") if event.paused else (What.CONTINUED, "goes on")
            self._say(Telling(what, f"{name} {words}: user {event.uid} wants it"), self._named(name))

    def _reprioritized(self, event: PriorityChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            text = f"{event.name} has priority {event.priority} now"
            self._say(Telling(What.PRIORITY, text), self._named(event.name))

    def _resized(self, event: ShareChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            text = f"{event.name} has {describe_share(event)} now"
            self._say(Telling(What.SHARE, text), self._named(event.name))

    def _reaimed(self, event: ObjectiveChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            text = f"{event.name} has {describe_objective(event.slo_ns)} now"
            self._say(Telling(What.OBJECTIVE, text), self._named(event.name))

    def _evict_asked(self, event: EvictAsked, actions: Sequence[Action]) -> None:
        for name in _confirmed(actions) or ():
            self._say(Telling(What.EVICTING, f"{name} is to end: user {event.uid} wants it"), self._named(name))

    def _quit_asked(self, event: QuitAsked, actions: Sequence[Action]) -> None:
        del actions
        who = self._of_peer(event.peer)
        self._quitting.add((who.terms.slot, who.terms.generation))
        self._say(Telling(What.QUITTING, f"{who.name} is to end: `cotenant run` was asked to stop"), who)

    def _signalled(self, action: Signal, event: Event) -> None:
        del event
        who = self._at(action.slot, action.generation)
        if action.kind == "kill":
            self._say(Telling(What.KILLED, f"{who.name} is killed: {cause_of(action.why)}", Level.WARNING), who)
        elif (action.slot, action.generation) in self._quitting:
            self._say(Telling(What.ENDING, f"{who.name} is asked to end: {cause_of(action.why)}"), who)
        else:
            self._say(Telling(What.EVICTED, f"{who.name} is asked to end: {cause_of(action.why)}", Level.WARNING), who)

    def _adjusted(self, action: Adjusted, event: Event) -> None:
        del event
        change = action.adjustment
        who = NOBODY if change.slot < 0 else self._at(change.slot, change.generation)
        kept, was = round_share(change.online_ppm), round_share(action.was_ppm)
        text = f"GPU {change.gpu}: online keeps {kept}" + (f" (was {was})" if was != kept else "")
        parts = [f"{self._at(slot).name} {round_share(share_ppm)}" for slot, share_ppm in change.shares]
        text += f", divided among {' and '.join(parts)}" if parts else ""
        text += f": {who.name}" if who.name else ""
        text += f": {change.cause.value}" + (f", {change.detail}" if change.detail else "")
        level = Level.WARNING if change.cause is Cause.BEYOND_REACH else Level.INFO
        self._say(Telling(What.ADJUSTED, text, level, change.gpu, change.cause.value), who)

    def _placed(self, action: Placed, event: Event) -> None:
        del event
        who = self._at(action.slot, action.generation)
        if action.short_ppm:
            short = f"by prediction GPU {action.gpu} is {round_share(action.short_ppm)} too little for all objectives"
            self._say(Telling(What.PLACED, f"{who.name} was placed, but {short}: {action.why}", Level.WARNING), who)
        else:
            self._say(Telling(What.PLACED, f"{who.name} was placed by prediction: {action.why}"), who)

    def _named(self, name: str) -> Resident:
        found = (who for who in self.residents.values() if who.name == name)
        return next(found, NOBODY._replace(name=name))


def _resident(tenant: Tenant) -> Resident:
    return Resident(tenant.name, tenant.terms)


def _called(spec: TenantSpec) -> str:
    """What a newcomer is called before it has a name."""
    return spec.name or program_of(spec.command)


def _confirmed(actions: Sequence[Action]) -> tuple[str, ...] | None:
    """The tenants for which a wish was granted; None where it was not."""
    return next((action.tenants for action in actions if isinstance(action, Confirm)), None)
