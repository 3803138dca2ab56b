"""The host of a live node: it survives a journal that cannot be written, and limits what peers can make it write.

While the journal fails, nothing takes effect that must be in it first: joins, and commands that change tenants or
rules, are refused with the reason. Everything else goes on, because tenants run and end whatever the disk does. Those
turns are kept in memory and written once there is space. If they exceed `PENDING_LIMIT_BYTES`, a snapshot of the state
replaces them, so that the memory is bounded and no state is lost; only the record of single turns is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.node.daemon.request_limit import DroppedRequests, RequestLimiter, too_many, user_of
from cotenant.node.host import Observer
from cotenant.node.model.action import Action
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import (
    Event,
    NodeReported,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    ShareChanged,
    TenantJoined,
    TenantRestarted,
    TenantRestored,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.node.model.log_event import LogEventKind, LogLevel
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import Effects
from cotenant.runner.journal import encode_turn
from cotenant.runner.journal_file import FileJournal, JournalUnavailableError
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.text import counted, round_duration

PROBE_NS: Final = SECOND_NS
"""The period at which the node checks its files, and tries to write again after a failure."""
PENDING_LIMIT_BYTES: Final = 4 << 20
"""Turns of more bytes than this are not kept while the journal fails; a snapshot takes their place."""
_SPARE_BYTES: Final = 64 << 10
"""The space that must be writable before the journal is used again, so that it does not fail at the next turn."""
_SEGMENT_RETRY_NS: Final = 60 * SECOND_NS
_MUST_BE_JOURNALED: Final = (
    TenantJoined,
    TenantsPaused,
    PriorityChanged,
    ShareChanged,
    ObjectiveChanged,
    RulesChanged,
)
"""Events whose consequences a peer relies on: they take effect only if the journal holds them."""
_WITHOUT_ANSWER: Final = (TenantSuspended, TenantRestored, TenantRestarted, QuitRequested)
_DELETED: Final = "it was deleted or replaced"


def try_to_write(directory: Path) -> None:
    """Raise `OSError` unless the directory has space for a few turns; statvfs knows neither quotas nor a bad disk."""
    with tempfile.TemporaryFile(dir=directory) as file:
        view = memoryview(bytes(_SPARE_BYTES))
        while view:
            view = view[os.write(file.fileno(), view) :]


class HostGuards(NamedTuple):
    """What the host needs besides the machine, its effects and its journal."""

    refuse: Callable[[int, Reject], None]
    """Sends a refusal to a peer."""
    problem: Callable[[], str]
    """Returns why the node can accept no joins and changes now, such as a deleted directory; empty: it can."""
    post: Callable[[Event], None]
    """Delivers an event after the present turn."""
    limiter: RequestLimiter
    dropped: DroppedRequests
    try_to_write: Callable[[Path], None] = try_to_write
    """Raises `OSError` unless a directory has space."""


class PendingTurns:
    """The turns that are not in the journal yet; bounded, since a snapshot can take their place."""

    def __init__(self, limit_bytes: int = PENDING_LIMIT_BYTES) -> None:
        """Keep at most `limit_bytes` of turns."""
        self._limit_bytes = limit_bytes
        self._turns: list[bytes] = []
        self._size_bytes = 0
        self.has_snapshot = False
        """Whether they begin with a snapshot, so that they must begin a new segment."""

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self._turns)

    @property
    def is_full(self) -> bool:
        """Return whether a snapshot must take the place of the turns."""
        return self._size_bytes > self._limit_bytes and len(self._turns) > 1

    def append(self, turn: bytes) -> None:
        """Keep a turn."""
        self._turns.append(turn)
        self._size_bytes += len(turn)

    def replace_by_snapshot(self, turn: bytes) -> None:
        """Drop the turns and keep this snapshot of the state after them."""
        self._turns, self._size_bytes, self.has_snapshot = [turn], len(turn), True

    def encoded(self) -> bytes:
        """Return all turns as the journal holds them."""
        return b"".join(self._turns)

    def clear(self) -> None:
        """Drop the turns, which the journal now holds."""
        self._turns, self._size_bytes, self.has_snapshot = [], 0, False


class GuardedHost:
    """Runs the turns of a live node as `TurnHost` does, and also while the journal cannot be written."""

    def __init__(
        self,
        machine: NodeMachine,
        effects: Effects,
        journal: FileJournal,
        directory: Path,
        observe: Observer | None,
        guards: HostGuards,
    ) -> None:
        """`directory` is that of the journal, in which the host tries to write after a failure."""
        self.machine = machine
        self._effects = effects
        self._journal = journal
        self._directory = directory
        self._observe = observe
        self._guards = guards
        self._pending = PendingTurns()
        self._failed_ns: Instant = 0
        self._refused = 0
        self._segment_retry_ns: Instant = 0
        self._probe_ns: Instant = 0
        self.problem = ""
        """Why the journal cannot be written now; empty: it can."""

    @property
    def kept_turns(self) -> int:
        """Return the number of turns that are kept in memory until the journal can be written."""
        return len(self._pending)

    # -- turns ------------------------------------------------------------------------------------------------

    def turn(self, event: Event, now: Instant) -> Instant | None:
        """Run one turn, or refuse the request without a turn; return when the machine needs a wake-up event."""
        if self._is_dropped(event, now):
            return self.machine.next_wakeup()
        must_be_journaled = isinstance(event, _MUST_BE_JOURNALED)
        # A turn of another peer may admit a join that waits for memory; then it must be possible to undo it as well.
        before = self.machine.snapshot() if must_be_journaled or self.machine.waiting_peers() else None
        actions = self.machine.handle(event, now=now)
        if self.problem:
            self._keep(now, event, actions)
            return self.machine.next_wakeup()
        try:
            is_full = self._journal.append(now, event, actions)
        except JournalUnavailableError as error:
            self._fail(error.reason, now)
            if before is None:
                self._keep(now, event, actions)
            else:
                self.machine.handle(before, now=now)
                self._drop_waiting_joins(now)
                if must_be_journaled:
                    self._refuse(event, self._unwritable(self.problem), now)
                else:
                    self._keep(now, event, self.machine.handle(event, now=now))
            return self.machine.next_wakeup()
        self._carry_out(now, event, actions)
        if is_full and now >= self._segment_retry_ns:
            self._begin_segment(now)
        return self.machine.next_wakeup()

    def _is_dropped(self, event: Event, now: Instant) -> bool:
        """Return whether the event is refused or dropped without a turn."""
        wait_ns = self._guards.limiter.wait_ns(event, now)
        if wait_ns:
            if isinstance(event, _WITHOUT_ANSWER):
                self._guards.dropped.count(user_of(event), "messages above the permitted rate", now)
            else:
                self._refuse(event, too_many(wait_ns), now)
            return True
        if isinstance(event, _MUST_BE_JOURNALED):
            self._check_presence(now)
            problem = self.problem or self._guards.problem()
            if problem:
                self._refuse(event, self._unwritable(problem), now)
            return bool(problem)
        return False

    def _refuse(self, event: Event, reject: Reject, now: Instant) -> None:
        peer = getattr(event, "peer", -1)
        self._refused += 1
        what = (
            "requests above the permitted rate" if reject.reason is Reason.TOO_MANY else "requests while storing fails"
        )
        self._guards.dropped.count(user_of(event), what, now)
        self._guards.refuse(peer, reject)

    def _unwritable(self, problem: str) -> Reject:
        detail = f"the node cannot record it now: {problem}; running tenants continue"
        return Reject(Reason.NOT_WRITABLE, detail, 5 * PROBE_NS)

    def _carry_out(self, now: Instant, event: Event, actions: list[Action]) -> None:
        for action in actions:
            self._effects[type(action)](action)
        if self._observe is not None:
            self._observe(now, event, actions)

    # -- failures ---------------------------------------------------------------------------------------------

    def _fail(self, reason: str, now: Instant) -> None:
        """Begin to keep turns in memory."""
        self.problem = f"the journal in {self._directory} cannot be written: {reason}"
        self._failed_ns, self._refused = now, 0
        text = f"{self.problem}; joins and changes are refused until it can be, and running tenants continue"
        self._guards.post(NodeReported(LogEventKind.JOURNAL_FAILED, text, LogLevel.ERROR))

    def _check_presence(self, now: Instant) -> None:
        """Notice that the journal was deleted: the open file could still be written, and nobody would find it."""
        if not self.problem and not self._journal.is_present:
            self._fail(_DELETED, now)
            self._drop_waiting_joins(now)

    def _drop_waiting_joins(self, now: Instant) -> None:
        """Refuse the joins that wait for memory: their grants could not be journaled."""
        for peer in self.machine.waiting_peers():
            event = PeerLost(peer)
            self._keep(now, event, self.machine.handle(event, now=now))
            self._refuse(event, self._unwritable(self.problem), now)

    def _keep(self, now: Instant, event: Event, actions: list[Action]) -> None:
        """Keep a turn in memory and carry out its actions."""
        self._pending.append(encode_turn(now, event, actions))
        if self._pending.is_full:
            self._pending.replace_by_snapshot(encode_turn(now, self.machine.snapshot(), []))
        self._carry_out(now, event, actions)

    def _begin_segment(self, now: Instant) -> None:
        try:
            self._journal.begin_segment(now, self.machine.snapshot())
        except (
            JournalUnavailableError
        ) as error:  # the present segment grows; a disk without space fails at the next turn
            self._segment_retry_ns = now + _SEGMENT_RETRY_NS
            self._guards.post(NodeReported(LogEventKind.JOURNAL_FAILED, f"{error}; the present segment stays in use"))

    # -- time -------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """Return when to check the journal again."""
        return self._probe_ns

    def wake(self, now: Instant) -> None:
        """Notice a deleted journal, and try to write again after a failure."""
        self._probe_ns = now + PROBE_NS
        self._check_presence(now)
        if self.problem and not self._guards.problem():
            self.write_pending(now)

    def write_pending(self, now: Instant) -> bool:
        """Write the turns that were kept; return whether the journal holds everything now."""
        if not self.problem:
            return True
        try:
            self._guards.try_to_write(self._directory)
            if not self._journal.is_present and not self._pending.has_snapshot:
                self._pending.replace_by_snapshot(encode_turn(now, self.machine.snapshot(), []))
            if self._pending.has_snapshot:
                self._journal.replace(self._pending.encoded())
            else:
                self._journal.append_encoded(self._pending.encoded())
        except (JournalUnavailableError, OSError) as error:
            reason = error.reason if isinstance(error, JournalUnavailableError) else error.strerror
            self.problem = f"the journal in {self._directory} cannot be written: {reason}"
            return False
        kept = "a snapshot of the state" if self._pending.has_snapshot else counted(len(self._pending), "turn")
        failed_ns = now - self._failed_ns
        after = f" after {round_duration(failed_ns)}" if failed_ns >= SECOND_NS else ""
        text = f"the journal is written again{after}, with {kept} that the node had kept in memory"
        text += f"; {counted(self._refused, 'request')} had been refused"
        self._pending.clear()
        self.problem = ""
        self._guards.post(NodeReported(LogEventKind.JOURNAL_RESTORED, text, LogLevel.INFO))
        return True
