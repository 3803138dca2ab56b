"""What happened to whom? Remembers who holds which slot, and tells of each turn in plain words.

The log of a node, `cotenant events`, `cotenant explain` and the counters of /metrics all come from here, so that they
use the same words and agree with each other. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from cotenant.domain.action import (
    NO_PEER,
    Action,
    Confirm,
    Grant,
    Kill,
    MpsRestart,
    Refuse,
    Restore,
    Revoke,
    Signal,
    Stop,
    Suspend,
    Watch,
)
from cotenant.domain.event import (
    Event,
    EvictAsked,
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpusFound,
    MemoryWanted,
    MpsSeen,
    NodeRestored,
    NodeStarted,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
    TenantFaulted,
    TenantHangs,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.domain.happening import NO_GPU, Happening, Level, What
from cotenant.domain.instant import Instant
from cotenant.domain.protect import Health
from cotenant.domain.tenant import Tenant, TenantSpec, Terms
from cotenant.format.log import describe_rules, describe_spec, printable
from cotenant.format.quantity import round_duration, round_size
from cotenant.policy.protect.errors import classify

_HEALTH_LEVELS = {Health.UNHEALTHY: Level.WARNING, Health.OVERLIMIT: Level.WARNING, Health.DISABLED: Level.ERROR}
_WELL = "exit 0"


class Resident(NamedTuple):
    """Who holds a slot."""

    name: str
    terms: Terms


_NOBODY = Resident("", Terms(-1, 0, msgspec.UNSET, 0, 0, 0, 0, NO_GPU))  # type: ignore[arg-type]  # never shown


class Chronicle:
    """Feed it every turn in order; it gives back what is worth telling."""

    def __init__(self, unix_offset_ns: int | None = None) -> None:
        """Know nobody; the offset is from the node's clock to the wall clock, until a start says it better."""
        self.turn = 0
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
            RulesChanged: self._ruled,
            EvictAsked: self._evict_asked,
            QuitAsked: self._quit_asked,
            TenantSuspended: self._suspended,
            TenantRestored: self._tenant_restored,
            TenantRestarted: self._restarted,
            TenantFaulted: self._faulted,
            TenantHangs: self._hangs,
            MemoryWanted: self._wanted,
            GpusFound: self._found,
            GpuFaulted: self._gpu_faulted,
            GpuLost: self._gpu_lost,
            GpuBack: self._gpu_back,
            MpsSeen: self._mps_seen,
            PeerLost: self._peer_lost,
        }
        self._actions: dict[type, Callable[[Any, Event], None]] = {
            Grant: self._granted,
            Refuse: self._refused,
            Revoke: self._revoked,
            Signal: self._signalled,
            Kill: self._killed,
            Suspend: self._suspending,
            Restore: self._restoring,
            Watch: self._watched,
            MpsRestart: self._mps_restarted,
            Stop: self._stopped,
        }

    def tell(self, now: Instant, event: Event, actions: Sequence[Action]) -> list[Happening]:
        """What happened in this turn, the event before what was done about it."""
        self.turn += 1
        self._now, self._told = now, []
        if handler := self._events.get(type(event)):
            handler(event, actions)
        for action in actions:
            if deed := self._actions.get(type(action)):
                deed(action, event)
        return self._told

    def _say(
        self, what: What, text: str, who: Resident = _NOBODY, gpu: int | None = None, why: str = "", level: Level = Level.INFO
    ) -> None:
        place = who.terms.gpu if gpu is None else gpu
        unix_ns = 0 if self._offset_ns is None else self._now + self._offset_ns
        self._told.append(Happening(self._now, self.turn, what, printable(text), who.name, place, why, level, unix_ns))

    # -- who is who --------------------------------------------------------------------------------------------

    def _at(self, slot: int, generation: int | None = None) -> Resident:
        """Whoever holds a slot; somebody without a name where the record does not reach back far enough."""
        found = self.residents.get(slot)
        if found is None or generation not in (None, found.terms.generation):
            return _NOBODY._replace(name=f"slot-{slot}")
        return found

    def _of_peer(self, peer: int) -> Resident:
        slot = self._slot_of_peer.get(peer)
        return _NOBODY._replace(name=f"peer-{peer}") if slot is None else self._at(slot)

    # -- the node ----------------------------------------------------------------------------------------------

    def _started(self, event: NodeStarted, actions: Sequence[Action]) -> None:
        self._offset_ns = event.unix_ns - self._now
        self._slot_of_peer.clear()
        self._awaited.clear()
        back = sum(isinstance(action, Grant) for action in actions)
        expected = f", {_counted(back, 'tenant')} expected back" if back else ""
        size = f"{_counted(event.settings.slots, 'slot')}, {_counted(len(event.settings.gpus), 'GPU')}"
        self._say(What.STARTED, f"node {event.version} started: {size}{expected}")

    def _restored(self, event: NodeRestored, actions: Sequence[Action]) -> None:
        """The head of a segment tells nothing new, unless turns before it are missing."""
        del actions
        missing, self.turn = event.turn - (self.turn - 1), event.turn
        if missing and self.turn > missing:
            self._say(What.GAP, f"{_counted(abs(missing), 'turn')} before this are not on record", level=Level.WARNING)
        self.residents = {tenant.terms.slot: _resident(tenant) for _, tenant in event.tenants}
        self._slot_of_peer = {peer: tenant.terms.slot for peer, tenant in event.tenants if peer != NO_PEER}

    def _stopped(self, action: Stop, event: Event) -> None:
        del event
        self._say(What.STOPPED, f"node stops: {action.reason}")

    def _ruled(self, event: RulesChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            self._say(What.RULES, f"the rules of the gate are changed: {describe_rules(event.change)}")

    # -- coming and going --------------------------------------------------------------------------------------

    def _joined(self, event: TenantJoined, actions: Sequence[Action]) -> None:
        if not any(isinstance(action, Grant | Refuse) and action.peer == event.peer for action in actions):
            name = self._awaited[event.peer] = _called(event.spec)
            who = _NOBODY._replace(name=name)
            self._say(What.AWAITED, f"{name} waits to join until others make room: {describe_spec(event.spec)}", who)

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
                self._say(What.RESUMED, f"{who.name} is back", who)
            return
        wants = f": {describe_spec(event.spec)}" if isinstance(event, TenantJoined) else ""
        where = f" on GPU {terms.gpu}" if terms.gpu >= 0 else ""
        self._say(What.JOINED, f"{who.name} joined in slot {terms.slot}/{terms.generation}{where}{wants}", who)

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
            who = _NOBODY._replace(name=name)
            self._say(What.REFUSED, f"{name} was refused: {reject.detail}{retry}", who, None, reason, Level.WARNING)
        else:
            self._say(What.WISH_REFUSED, f"a wish was refused: {reject.detail}{retry}", why=reason)

    def _revoked(self, action: Revoke, event: Event) -> None:
        who = self._at(action.slot, action.generation)._replace(name=action.tenant)
        self.residents.pop(action.slot, None)
        self._slot_of_peer = {peer: slot for peer, slot in self._slot_of_peer.items() if slot != action.slot}
        self._quitting.discard((action.slot, action.generation))
        level = Level.INFO if action.ending == _WELL else Level.WARNING
        if isinstance(event, TenantLeft):
            self._say(What.LEFT, f"{who.name} left: {action.ending}", who, level=level)
        else:
            self._say(What.LOST, f"{who.name} is gone: {action.ending}", who, level=Level.WARNING)

    def _peer_lost(self, event: PeerLost, actions: Sequence[Action]) -> None:
        del actions
        if name := self._awaited.pop(event.peer, ""):
            self._say(What.LOST, f"{name} gave up waiting to join", _NOBODY._replace(name=name))

    def _restarted(self, event: TenantRestarted, actions: Sequence[Action]) -> None:
        del actions
        who = self._of_peer(event.peer)
        times = "once" if event.restarts == 1 else f"{event.restarts} times"
        text = f"{who.name} was started again ({times} by now) after: {event.ending}"
        self._say(What.RESTARTED, text, who, level=Level.WARNING)

    # -- wishes ------------------------------------------------------------------------------------------------

    def _paused(self, event: TenantsPaused, actions: Sequence[Action]) -> None:
        for name in _confirmed(actions) or ():
            who = self._named(name)
            what, words = (What.PAUSED, "is paused") if event.paused else (What.CONTINUED, "goes on")
            self._say(what, f"{name} {words}: user {event.uid} wants it", who)

    def _reprioritized(self, event: PriorityChanged, actions: Sequence[Action]) -> None:
        if _confirmed(actions) is not None:
            self._say(What.PRIORITY, f"{event.name} has priority {event.priority} now", self._named(event.name))

    def _evict_asked(self, event: EvictAsked, actions: Sequence[Action]) -> None:
        for name in _confirmed(actions) or ():
            self._say(What.EVICTING, f"{name} is to end: user {event.uid} wants it", self._named(name))

    def _quit_asked(self, event: QuitAsked, actions: Sequence[Action]) -> None:
        del actions
        who = self._of_peer(event.peer)
        self._quitting.add((who.terms.slot, who.terms.generation))
        self._say(What.QUITTING, f"{who.name} is to end: `cotenant run` was asked to stop", who)

    def _named(self, name: str) -> Resident:
        found = (who for who in self.residents.values() if who.name == name)
        return next(found, _NOBODY._replace(name=name))

    # -- protection --------------------------------------------------------------------------------------------

    def _signalled(self, action: Signal, event: Event) -> None:
        del event
        who = self._at(action.slot, action.generation)
        is_own = (action.slot, action.generation) in self._quitting
        if action.kind == "kill":
            self._say(What.KILLED, f"{who.name} is killed: {action.why}", who, level=Level.WARNING)
        elif is_own:
            self._say(What.ENDING, f"{who.name} is asked to end: {action.why}", who)
        else:
            self._say(What.EVICTED, f"{who.name} is evicted, and asked to end: {action.why}", who, level=Level.WARNING)

    def _killed(self, action: Kill, event: Event) -> None:
        del event
        who = self._at(action.slot)
        text = f"{who.name} is killed by the node itself: {action.why}"
        self._say(What.KILLED, text, who, action.gpu, level=Level.WARNING)

    def _suspending(self, action: Suspend, event: Event) -> None:
        del event
        who = self._at(action.slot)
        self._say(What.SUSPENDING, f"{who.name} is to move its memory to the host: {action.why}", who)

    def _restoring(self, action: Restore, event: Event) -> None:
        del event
        who = self._at(action.slot)
        self._say(What.RESTORING, f"{who.name} is to move its memory back to the device", who)

    def _suspended(self, event: TenantSuspended, actions: Sequence[Action]) -> None:
        del actions
        who = self._of_peer(event.peer)
        if event.ok:
            self._say(What.SUSPENDED, f"{who.name} is suspended: its memory is on the host", who)
        else:
            text = f"{who.name} could not be suspended: {event.detail}"
            self._say(What.SUSPEND_FAILED, text, who, level=Level.WARNING)

    def _tenant_restored(self, event: TenantRestored, actions: Sequence[Action]) -> None:
        del actions
        who = self._of_peer(event.peer)
        if event.ok:
            self._say(What.RESTORED, f"{who.name} runs again: its memory is back on the device", who)
        else:
            text = f"{who.name} could not be brought back: {event.detail}"
            self._say(What.RESTORE_FAILED, text, who, level=Level.WARNING)

    def _wanted(self, event: MemoryWanted, actions: Sequence[Action]) -> None:
        del actions
        who = self._at(event.slot, event.generation)
        text = f"{who.name} waits for {round_size(event.bytes)} of device memory: its quota allows it, others hold it"
        self._say(What.MEMORY_WANTED, text, who, level=Level.WARNING)

    def _faulted(self, event: TenantFaulted, actions: Sequence[Action]) -> None:
        del actions
        who = self._at(event.slot, event.generation)
        found = classify(event.source, event.code)
        text = f"{who.name} met {event.source} error {event.code}: {found.words}"
        self._say(What.FAULTED, text, who, why=found.name, level=Level.WARNING)

    def _hangs(self, event: TenantHangs, actions: Sequence[Action]) -> None:
        del actions
        who = self._at(event.slot, event.generation)
        known = f", expected {round_duration(event.expected_ns)}" if event.expected_ns else ""
        text = f"{who.name} hangs: kernel {event.kernel or 'unknown'} has run {round_duration(event.waited_ns)}{known}"
        self._say(What.HANGS, text, who, level=Level.WARNING)

    # -- devices -----------------------------------------------------------------------------------------------

    def _found(self, event: GpusFound, actions: Sequence[Action]) -> None:
        del actions
        for gpu in event.gpus:
            self._say(What.GPU_FOUND, f"GPU {gpu.name} was found")

    def _watched(self, action: Watch, event: Event) -> None:
        del event
        watch = action.watch
        because = f": {watch.why}" if watch.why else ""
        level = _HEALTH_LEVELS.get(watch.health, Level.INFO)
        text = f"GPU {action.gpu} is {watch.health.value}{because}"
        self._say(What.GPU_STATE, text, gpu=action.gpu, why=watch.health.value, level=level)

    def _gpu_faulted(self, event: GpuFaulted, actions: Sequence[Action]) -> None:
        del actions
        who = _NOBODY if event.slot < 0 else self._at(event.slot, event.generation)
        whose = f" of {who.name}" if who.name else ""
        found = classify("xid", event.xid)
        text = f"GPU {event.gpu} reported Xid {event.xid}{whose}: {found.words}"
        self._say(What.GPU_FAULTED, text, who, event.gpu, found.name, Level.WARNING)

    def _gpu_lost(self, event: GpuLost, actions: Sequence[Action]) -> None:
        del actions
        because = f": {event.detail}" if event.detail else ""
        self._say(What.GPU_LOST, f"GPU {event.gpu} does not answer{because}", gpu=event.gpu, level=Level.ERROR)

    def _gpu_back(self, event: GpuBack, actions: Sequence[Action]) -> None:
        del actions
        self._say(What.GPU_BACK, f"GPU {event.gpu} answers again", gpu=event.gpu)

    def _mps_seen(self, event: MpsSeen, actions: Sequence[Action]) -> None:
        del actions
        because = f": {event.detail}" if event.detail else ""
        if event.is_ready:
            self._say(What.MPS_READY, f"MPS serves GPU {event.gpu}", gpu=event.gpu)
        else:
            text = f"the MPS server of GPU {event.gpu} is gone{because}"
            self._say(What.MPS_GONE, text, gpu=event.gpu, level=Level.ERROR)

    def _mps_restarted(self, action: MpsRestart, event: Event) -> None:
        del event
        self._say(What.MPS_RESTART, f"the MPS server of GPU {action.gpu} is started again", gpu=action.gpu)


def _resident(tenant: Tenant) -> Resident:
    return Resident(tenant.name, tenant.terms)


def _called(spec: TenantSpec) -> str:
    """What a newcomer is called before it has a name."""
    return spec.name or "unnamed"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _confirmed(actions: Sequence[Action]) -> tuple[str, ...] | None:
    """The tenants for which a wish was granted; None where it was not."""
    return next((action.tenants for action in actions if isinstance(action, Confirm)), None)
