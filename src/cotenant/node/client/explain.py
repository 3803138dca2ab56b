"""`cotenant explain`: why a tenant waits, was denied, paused, suspended, refused, evicted, restarted, or ended.

The most decisive cause comes first: for a tenant that is ending, the gate does not matter.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.node.client.events import history
from cotenant.node.client.explain_gate import gate_causes
from cotenant.node.client.explain_text import ExplanationCause, describe_phase
from cotenant.node.client.tenants import NodeSnapshot, read_node_snapshot
from cotenant.node.decision_log import describe_turn
from cotenant.node.directories import Directories
from cotenant.node.model.log_event import LogEvent, LogEventKind
from cotenant.node.model.protection import ExitPhase, Health
from cotenant.node.model.tenant import NAME_LIMIT, NAME_PATTERN, TenantView
from cotenant.runner.clock import rfc3339

_EVENTS_LIMIT: Final = 256
_UNKNOWN_TO_USER: Final = "you have no tenant of this name, and only operators of the node see those of others"
_UNKNOWN: Final = "no tenant has this name, and the journal has none; see: cotenant ps --all"
_END_CAUSES: Final = (
    *(
        LogEventKind.EVICTED,
        LogEventKind.KILLED,
        LogEventKind.FAULTED,
        LogEventKind.HUNG,
        LogEventKind.GPU_FAULTED,
        LogEventKind.SUSPEND_FAILED,
        LogEventKind.RESTORE_FAILED,
    ),
    *(LogEventKind.QUITTING, LogEventKind.EVICTING),
)
"""Kinds of events that explain an end, the surest first."""
_ENDS: Final = (LogEventKind.LEFT, LogEventKind.LOST)


class Explanation(msgspec.Struct, frozen=True):
    """The state of a tenant and its causes."""

    tenant: str
    state: str
    """"here", "gone", "refused" or "waiting to join"."""
    summary: str
    causes: list[ExplanationCause]
    is_served: bool

    def __str__(self) -> str:
        """Return the summary and the causes, as `cotenant explain` prints them."""
        causes = (f"{number}. {cause.text}" for number, cause in enumerate(self.causes, 1))
        return "\n".join((self.summary, *causes))


class _Record:
    """The latest events of one tenant name and of the devices, from the journal."""

    def __init__(self, directories: Directories, name: str, turn: int, report: Callable[[str], None]) -> None:
        """`turn` caused the tenant's present state; its events may name another tenant."""
        self.own: deque[LogEvent] = deque(maxlen=_EVENTS_LIMIT)
        self._entries: dict[int, str] = {}
        self._devices: dict[int, LogEvent] = {}
        self.adjusted: dict[int, LogEvent] = {}
        self._name = name
        self._turn = turn
        self._turn_event: LogEvent | None = None
        try:
            self._read(directories, report)
        except WorldError as error:  # a node that never ran has no journal, so the name is unknown
            if directories.tenant_socket.exists():
                report(f"the history is not shown: {error}")

    def _read(self, directories: Directories, report: Callable[[str], None]) -> None:
        for turn, log_events in history(directories, report):
            for log_event in log_events:
                if log_event.what is LogEventKind.ADJUSTED:
                    self.adjusted[log_event.gpu] = log_event
                if log_event.tenant == self._name:
                    self.own.append(log_event)
                elif log_event.what is LogEventKind.GPU_STATE:
                    self._devices[log_event.gpu] = log_event
                elif log_event.turn == self._turn:
                    self._turn_event = log_event
                elif log_event.what is LogEventKind.ADJUSTED:
                    pass
                else:
                    continue
                self._entries[log_event.turn] = describe_turn(turn.now, turn.event, turn.actions)
                if len(self._entries) > 4 * _EVENTS_LIMIT:
                    del self._entries[next(iter(self._entries))]

    def cause(self, kind: str, text: str, turn: int, details: tuple[str, ...] = ()) -> ExplanationCause:
        """Return a cause with the journal entry of its turn, if it is recorded."""
        events = (
            *self.own,
            *self._devices.values(),
            *self.adjusted.values(),
            *(() if self._turn_event is None else (self._turn_event,)),
        )
        log_event = next((event for event in events if event.turn == turn), None)
        unix_ns = 0 if log_event is None else log_event.unix_ns
        return ExplanationCause(kind, text, turn, unix_ns, self._entries.get(turn, ""), list(details))

    def latest(self, *kinds: LogEventKind, after: int = 0) -> LogEvent | None:
        """Return the latest event of these kinds after a turn."""
        matches = (event for event in reversed(self.own) if event.what in kinds and event.turn > after)
        return next(matches, None)

    def cause_of(self, log_event: LogEvent) -> ExplanationCause:
        """Return an event of the event log as a cause."""
        return self.cause(log_event.what.value, log_event.text, log_event.turn)


def explain(directories: Directories, name: str, report: Callable[[str], None]) -> Explanation:
    """Return the state of a tenant and its causes; raise `ConfigError` for an unknown name."""
    if not name or len(name) > NAME_LIMIT or not re.match(NAME_PATTERN, name):
        raise ConfigError("NAME", name, "is not a valid tenant name; see: cotenant ps")
    snapshot = read_node_snapshot(directories)
    view = next((view for view in snapshot.tenants if view.tenant.name == name), None)
    record = _Record(directories, name, 0 if view is None else view.tenant.lifecycle.turn, report)
    if view is not None:
        causes = list(_causes_of_present_tenant(directories, snapshot, view, record))
        return Explanation(name, "here", _summary_of(snapshot, view), causes, snapshot.is_served)
    refused = record.latest(LogEventKind.REFUSED)
    ended = record.latest(*_ENDS)
    awaited = record.latest(LogEventKind.JOIN_WAITING)
    if refused is None and ended is None and awaited is None:
        raise ConfigError("NAME", name, _UNKNOWN_TO_USER if snapshot.is_restricted else _UNKNOWN)
    last = max((event for event in (refused, ended, awaited) if event is not None), key=lambda event: event.turn)
    if last is awaited:
        return Explanation(
            name, "waiting to join", f"{name} is not here yet", [record.cause_of(last)], snapshot.is_served
        )
    if last is refused:
        causes = [record.cause_of(last), *(() if ended is None else _causes_of_end(record, ended))]
        return Explanation(name, "refused", f"{name} is not here: it was refused", causes, snapshot.is_served)
    return Explanation(name, "gone", f"{name} is gone", list(_causes_of_end(record, last)), snapshot.is_served)


def _causes_of_end(record: _Record, ended: LogEvent) -> Iterator[ExplanationCause]:
    """Yield the causes of an end: first what the node did to the tenant, then the tenant's own exit."""
    joined = record.latest(LogEventKind.JOINED)
    since = 0 if joined is None else joined.turn - 1
    for kind in _END_CAUSES:
        if (event := record.latest(kind, after=since)) is not None:
            yield record.cause_of(event)
    if (restarted := record.latest(LogEventKind.RESTARTED, after=since)) is not None:
        yield record.cause_of(restarted)
    yield record.cause_of(ended)


def _summary_of(snapshot: NodeSnapshot, view: TenantView) -> str:
    tenant, grant = view.tenant, view.tenant.grant
    gpu = f" on GPU {grant.gpu} ({snapshot.gpus[grant.gpu].name})" if 0 <= grant.gpu < len(snapshot.gpus) else ""
    position = f"slot {grant.slot}/{grant.generation}{gpu}, {grant.kind.value} at priority {grant.priority}"
    down = "" if snapshot.is_served else "; the node is down; this is its last recorded state"
    return f"{tenant.name} is here: {position}{down}"


def _causes_of_present_tenant(
    directories: Directories, snapshot: NodeSnapshot, view: TenantView, record: _Record
) -> Iterator[ExplanationCause]:
    tenant = view.tenant
    lifecycle = tenant.lifecycle
    if lifecycle.phase is not ExitPhase.RUNNING:
        yield record.cause(lifecycle.phase.value, describe_phase(lifecycle, snapshot.now_ns), lifecycle.turn)
    if not view.connected:
        text = "it is disconnected: the node restarted, and `cotenant run` has not reconnected yet"
        yield record.cause("away", text, _turn_of(record.latest(LogEventKind.JOINED, LogEventKind.RESUMED)))
    if tenant.paused:
        paused = record.latest(LogEventKind.PAUSED)
        text = f"it is paused and launches nothing; resume it with: cotenant resume {tenant.name}"
        yield record.cause("paused", text, _turn_of(paused))
    joined = record.latest(LogEventKind.JOINED)
    if (placed := record.latest(LogEventKind.PLACED, after=_turn_of(joined) - 1)) is not None:
        yield record.cause_of(placed)
    for cause, text, details in gate_causes(directories, snapshot, tenant):
        yield record.cause(cause, text, _turn_of(joined), details)
    gpu = tenant.grant.gpu
    if any(setpoint.gpu == gpu for setpoint in snapshot.setpoints) and gpu in record.adjusted:
        yield record.cause_of(record.adjusted[gpu])
    watch = snapshot.devices[gpu] if 0 <= gpu < len(snapshot.devices) else None
    if watch is not None and watch.health not in (Health.INIT, Health.HEALTHY):
        because = f": {watch.why}" if watch.why else ""
        yield record.cause("device", f"GPU {gpu} is {watch.health.value}{because}", watch.turn)
    since = _turn_of(joined) - 1
    for kind in (
        LogEventKind.FAULTED,
        LogEventKind.HUNG,
        LogEventKind.RESTARTED,
        LogEventKind.MEMORY_REQUESTED,
        LogEventKind.SUSPEND_FAILED,
    ):
        if (event := record.latest(kind, after=since)) is not None:
            yield record.cause_of(event)


def _turn_of(log_event: LogEvent | None) -> int:
    return 0 if log_event is None else log_event.turn


def explanation_json(explanation: Explanation) -> Any:
    """Return the output of `cotenant explain --json`."""
    causes = [{**msgspec.structs.asdict(cause), "ts": rfc3339(cause.unix_ns)} for cause in explanation.causes]
    return {**msgspec.structs.asdict(explanation), "causes": causes}
