"""A cluster controller that can be killed and restarted: the real state machine and its host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from cotenant.cluster.host import ClusterHost
from cotenant.cluster.model.cluster import ClusterCounts, ClusterSettings, JobReport, JobState
from cotenant.cluster.model.event import (
    ClusterAction,
    ClusterEvent,
    ClusterRestored,
    ClusterStarted,
    ClusterWoke,
    JobCancelled,
    JobSubmitted,
)
from cotenant.cluster.ports import ClusterTransport
from cotenant.runner.host import StateMachine
from cotenant.runner.sim_loop import SimDriver, SimLoop
from cotenant.units.instant import Instant

Watch = Callable[[Instant, ClusterEvent, list[ClusterAction]], None]


class ControllerMachine(StateMachine[ClusterEvent, ClusterAction], Protocol):
    """State machine of a controller, as the simulation uses it."""

    def jobs(self) -> Iterable[JobReport]:
        """Return every remembered job."""
        ...

    def counts(self) -> ClusterCounts:
        """Return counts of nodes, GPUs and jobs."""
        ...

    def snapshot(self) -> ClusterRestored:
        """Return the whole state as the event that restores it."""
        ...


class SimController:
    """Passes events to the state machine while it is up. While it is down, reports are lost and users retry."""

    def __init__(
        self,
        loop: SimLoop,
        new_machine: Callable[[], ControllerMachine],
        settings: ClusterSettings,
        watch: Watch,
    ) -> None:
        """Begin stopped."""
        self._loop, self._new_machine, self._settings, self._watch = loop, new_machine, settings, watch
        self._stored: ClusterRestored | None = None
        """What the API server stores of a controller that was killed."""
        self._transport: ClusterTransport | None = None
        self._driver: SimDriver[ClusterEvent] | None = None
        self._waiting: list[ClusterEvent] = []
        self.machine = new_machine()

    def bind(self, transport: ClusterTransport) -> None:
        """Set the transport."""
        self._transport = transport

    def start(self, _: Any, now: Instant) -> None:
        """Start the process: restore what is stored, then deliver the requests that users retried."""
        assert self._transport is not None
        machine = self.machine = self._new_machine()
        if self._stored is not None:
            machine.handle(self._stored, now=now)
        self._driver = SimDriver(self._loop, ClusterHost(machine, self._transport, self._watch), ClusterWoke())
        self._driver.deliver(ClusterStarted(self._settings), now)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._driver.deliver(event, now)

    def waiting(self) -> int:
        """Return the number of waiting jobs, as the state machine last knew."""
        return dict(self.machine.counts().jobs).get(JobState.WAITING, 0)

    def kill(self, _: Any, now: Instant) -> None:
        """Kill the process; its memory is lost, and what the API server stores of its decisions stays."""
        del now
        if self._driver is not None:
            self._driver.end()
            self._stored = self.machine.snapshot()
        self._driver = None

    def deliver(self, event: ClusterEvent, now: Instant) -> bool:
        """Deliver an event and return whether the controller is up; requests of users are kept for a retry."""
        if self._driver is None:
            if isinstance(event, JobSubmitted | JobCancelled):
                self._waiting.append(event)
            return False
        self._driver.deliver(event, now)
        return True
