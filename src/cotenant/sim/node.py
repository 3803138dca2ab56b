"""A node that can die and come back: the real machine and host over doubles of everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotenant.domain.action import Action
from cotenant.domain.event import Event, NodeSettings, NodeStarted, Woke
from cotenant.domain.instant import Instant
from cotenant.host import Host, Machine, NodePorts, NodeWorld, replay
from cotenant.port import Journal
from cotenant.sim.door import SimDoor
from cotenant.sim.gate import SimGates
from cotenant.sim.journal import SimJournal
from cotenant.sim.ledger import SimLedgers
from cotenant.sim.loop import SimDriver, SimLoop
from cotenant.sim.page import SimPages
from cotenant.sim.warden import SimWardens


class SimNode:
    """While it is up, events reach its machine; while it is down they are lost, as with a dead process."""

    def __init__(
        self,
        loop: SimLoop,
        new_machine: Callable[[], Machine],
        settings: NodeSettings,
        watch: Callable[[Instant, Event, list[Action]], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Down at first; `watch` sees every turn."""
        self._loop = loop
        self._new_machine = new_machine
        self._settings = settings
        self._watch = watch
        self.journal = SimJournal() if journal is None else journal
        self.door = SimDoor()
        self.pages = SimPages()
        self.gates = SimGates()
        self.ledgers = SimLedgers()
        self.wardens = SimWardens()
        self.driver: SimDriver[Event] | None = None
        self.stopped_because = ""
        self.starts = 0

    @property
    def up(self) -> bool:
        """Whether the process lives."""
        return self.driver is not None

    def start(self, _: Any, now: Instant) -> None:
        """The process starts: recover from the journal, then go on."""
        machine = self._new_machine()
        if isinstance(self.journal, SimJournal):
            replay(machine, self.journal.turns())
        ports = NodePorts(self.door, self.pages, self.gates, self.ledgers, self.wardens)
        world = NodeWorld(ports, self._stop)
        watched: Machine = machine if self._watch is None else _Watched(machine, self._watch)
        self.driver = SimDriver(self._loop, Host(watched, world.deeds(), self.journal), Woke())
        self.starts += 1
        self.driver.deliver(NodeStarted(self._settings, "sim", self.starts), now)

    def kill(self) -> None:
        """SIGKILL: connections close, memory is gone, the journal and the pages stay."""
        if self.driver is not None:
            self.driver.end()
        self.driver = None
        self.door.disconnect_all()

    def deliver(self, event: Event, now: Instant) -> None:
        """Tell the node something, if there is a node."""
        if self.driver is not None:
            self.driver.deliver(event, now)

    def _stop(self, reason: str) -> None:
        self.stopped_because = reason
        self.kill()


class _Watched:
    """The machine, with somebody looking over its shoulder."""

    def __init__(self, machine: Machine, watch: Callable[[Instant, Event, list[Action]], None]) -> None:
        self._machine = machine
        self._watch = watch
        self.next_wakeup = machine.next_wakeup
        self.snapshot = machine.snapshot

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        """Handle, and let it be seen."""
        actions = self._machine.handle(event, now=now)
        self._watch(now, event, actions)
        return actions
