"""Carry out the decisions of an inference server through its ports, under any clock."""

from __future__ import annotations

from typing import Protocol

from cotenant.serve.model.event import RejectRequest, ReleaseModel, ReportDrained, Run, ServerAction, ServerEvent
from cotenant.serve.ports import Responder, Runtime
from cotenant.units.instant import Instant


class ServerDecider(Protocol):
    """A pure state machine that a `ServerHost` can run."""

    def handle(self, event: ServerEvent, *, now: Instant) -> list[ServerAction]:
        """Apply an event and return the actions that follow from it."""
        ...

    def next_wakeup(self) -> Instant | None:
        """Return the instant at which the machine needs a `Tick`, or None."""
        ...


class ServerHost:
    """Feeds events to a server's state machine and carries out its actions, under any clock.

    Nothing is journaled: a request lives as long as its connection, and both end with the process.
    """

    __slots__ = ("_responder", "_runtime", "machine")

    def __init__(self, machine: ServerDecider, runtime: Runtime, responder: Responder) -> None:
        """Connect the machine to its ports."""
        self.machine = machine
        self._runtime = runtime
        self._responder = responder

    def turn(self, event: ServerEvent, now: Instant) -> Instant | None:
        """Handle one event; return the instant at which the machine needs a `Tick`."""
        for action in self.machine.handle(event, now=now):
            if isinstance(action, Run):
                self._runtime.start(action)
            elif isinstance(action, RejectRequest):
                self._responder.reject(action)
            elif isinstance(action, ReleaseModel):
                self._runtime.release(action.model, action.key)
            else:
                assert isinstance(action, ReportDrained)
                self._responder.drained()
        return self.machine.next_wakeup()
