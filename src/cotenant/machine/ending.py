"""How does a tenant's parent end its program? Step by step, at the node's word; without a node by itself."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.action import SignalKind
from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant

AT_ONCE_NS: Final = 1
"""In place of no grace at all: on the wire zero means as the tenant, or the node, has it."""
PATIENCE_NS: Final = 5 * SECOND_NS
"""How much longer than it should a node may take for its next word, before the parent goes on without it."""
HURRY_NS: Final = 3 * SECOND_NS
"""When somebody is in a hurry: how long the node has to let work in flight end."""


class Step(enum.Enum):
    """What the parent is to do next."""

    ASK_NODE = "ask the node to end it gracefully"
    HURRY_NODE = "ask the node to end it at once"
    SIGNAL = "send the program the signal"
    SIGNAL_REST = "send SIGTERM to what the program left behind"
    KILL = "kill all that is left"


class Ending:
    """One program's way out. Nothing happens before its first call; each call returns what is to be done at once."""

    def __init__(self, grace_ns: Duration) -> None:
        """Between the signal and the kill, a program has this long."""
        self.is_begun = False
        self.is_own = False
        """Whether we were told to end it ourselves, rather than by the node."""
        self.is_killed = False
        self._grace_ns = grace_ns
        self._is_signalled = False
        self._is_rest_signalled = False
        self._signal_ns = NEVER
        self._kill_ns = NEVER

    def wanted(self, *, has_it: bool, with_node: bool, now: Instant) -> list[Step]:
        """We were told to end the program, which may have the signal already; told twice means a hurry."""
        if self.is_own:
            self._kill_by(now + (HURRY_NS if with_node else 0))
            return ([Step.HURRY_NODE] if with_node else []) + self._signal()
        self.is_begun = self.is_own = True
        self._is_signalled |= has_it
        if with_node:
            self._signal_ns = now + PATIENCE_NS
            self._kill_by(now + 2 * PATIENCE_NS + self._grace_ns)
            return [Step.ASK_NODE]
        return self._signal_now(now)

    def told(self, kind: SignalKind) -> list[Step]:
        """The node says what is next."""
        self.is_begun = True
        if kind == "kill":
            return self._kill()
        return self._signal()

    def left_alone(self, *, now: Instant) -> None:
        """The node went away: what it began goes on without it."""
        if self.is_begun and not self._is_signalled:
            self._signal_ns = now
        elif self.is_begun:
            self._kill_by(now + self._grace_ns)

    def program_ended(self, *, now: Instant) -> list[Step]:
        """The program itself ended, and something that it started did not."""
        self._is_signalled = True
        if self._is_rest_signalled or self.is_killed:
            return []
        self._is_rest_signalled = True
        if self._kill_ns == NEVER and not self.is_begun:
            self._kill_by(now + self._grace_ns)
        return [Step.SIGNAL_REST]

    def next_wakeup(self) -> Instant | None:
        """When `wake` has something to do."""
        waits = [] if self._is_signalled else [self._signal_ns]
        waits += [] if self.is_killed else [self._kill_ns]
        return min((instant for instant in waits if instant != NEVER), default=None)

    def wake(self, *, now: Instant) -> list[Step]:
        """What is due: the node did not say it in time, or there is none."""
        if not self.is_killed and self._kill_ns != NEVER and now >= self._kill_ns:
            return self._kill()
        if not self._is_signalled and self._signal_ns != NEVER and now >= self._signal_ns:
            return self._signal_now(now)
        return []

    def _signal_now(self, now: Instant) -> list[Step]:
        self._kill_by(now + self._grace_ns)
        return self._signal()

    def _signal(self) -> list[Step]:
        if self._is_signalled:
            return []
        self._is_signalled = True
        return [Step.SIGNAL]

    def _kill(self) -> list[Step]:
        if self.is_killed:
            return []
        self.is_killed = self._is_signalled = True
        return [Step.KILL]

    def _kill_by(self, instant: Instant) -> None:
        self._kill_ns = instant if self._kill_ns == NEVER else min(self._kill_ns, instant)
