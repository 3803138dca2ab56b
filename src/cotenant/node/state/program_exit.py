"""How a tenant's parent ends its program: in steps that the node requests, or by itself without a node."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.node.model.action import SignalKind
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant

AT_ONCE_NS: Final = 1
"""Stands for no grace at all: on the wire, 0 means the default grace."""
PATIENCE_NS: Final = 5 * SECOND_NS
"""How long the parent waits for the node's next step beyond its due time before it continues alone."""
HURRY_NS: Final = 3 * SECOND_NS
"""After a second request to end, how long the node may take to drain the program's work."""


class ExitStep(enum.Enum):
    """What the parent must do next."""

    ASK_NODE = "ask the node to end it gracefully"
    HURRY_NODE = "ask the node to end it at once"
    SIGNAL = "send the program the signal"
    SIGNAL_REST = "send SIGTERM to what the program left behind"
    KILL = "kill all that is left"


class ProgramExit:
    """The exit of one program. Each call returns the steps to take now."""

    def __init__(self, grace_ns: Duration) -> None:
        """Set the time between the signal and the kill."""
        self.is_begun = False
        self.is_own = False
        """Whether the parent itself was asked to end the program, rather than by the node."""
        self.is_killed = False
        self._grace_ns = grace_ns
        self._is_signalled = False
        self._is_rest_signalled = False
        self._signal_ns = NEVER
        self._kill_ns = NEVER

    def exit_requested(self, *, already_signalled: bool, with_node: bool, now: Instant) -> list[ExitStep]:
        """Handle a request to end the program, which may have received the signal already; a second one hurries."""
        if self.is_own:
            self._kill_by(now + (HURRY_NS if with_node else 0))
            return ([ExitStep.HURRY_NODE] if with_node else []) + self._signal()
        self.is_begun = self.is_own = True
        self._is_signalled |= already_signalled
        if with_node:
            self._signal_ns = now + PATIENCE_NS
            self._kill_by(now + 2 * PATIENCE_NS + self._grace_ns)
            return [ExitStep.ASK_NODE]
        return self._signal_now(now)

    def node_requests(self, kind: SignalKind) -> list[ExitStep]:
        """Handle the next step that the node requests."""
        self.is_begun = True
        if kind == "kill":
            return self._kill()
        return self._signal()

    def node_lost(self, *, now: Instant) -> None:
        """Continue without the node after its connection broke."""
        if self.is_begun and not self._is_signalled:
            self._signal_ns = now
        elif self.is_begun:
            self._kill_by(now + self._grace_ns)

    def program_ended(self, *, now: Instant) -> list[ExitStep]:
        """Handle the end of the main program while processes that it started remain."""
        self._is_signalled = True
        if self._is_rest_signalled or self.is_killed:
            return []
        self._is_rest_signalled = True
        if self._kill_ns == NEVER and not self.is_begun:
            self._kill_by(now + self._grace_ns)
        return [ExitStep.SIGNAL_REST]

    def next_wakeup(self) -> Instant | None:
        """Return when `wake` has something to do."""
        waits = [] if self._is_signalled else [self._signal_ns]
        waits += [] if self.is_killed else [self._kill_ns]
        return min((instant for instant in waits if instant != NEVER), default=None)

    def wake(self, *, now: Instant) -> list[ExitStep]:
        """Return the steps that are due because the node did not request them in time."""
        if not self.is_killed and self._kill_ns != NEVER and now >= self._kill_ns:
            return self._kill()
        if not self._is_signalled and self._signal_ns != NEVER and now >= self._signal_ns:
            return self._signal_now(now)
        return []

    def _signal_now(self, now: Instant) -> list[ExitStep]:
        self._kill_by(now + self._grace_ns)
        return self._signal()

    def _signal(self) -> list[ExitStep]:
        if self._is_signalled:
            return []
        self._is_signalled = True
        return [ExitStep.SIGNAL]

    def _kill(self) -> list[ExitStep]:
        if self.is_killed:
            return []
        self.is_killed = self._is_signalled = True
        return [ExitStep.KILL]

    def _kill_by(self, instant: Instant) -> None:
        self._kill_ns = instant if self._kill_ns == NEVER else min(self._kill_ns, instant)
