"""A simulated node that can crash and restart: the real state machine and host with simulated ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotenant.gate.sim import SimGrantPages, SimLedgers, SimTenantTables
from cotenant.node.host import Machine, NodeEffects, NodeHost, NodePorts
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.action import Action
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, TimerFired
from cotenant.node.sim.listener import SimListener
from cotenant.runner.host import replay
from cotenant.runner.journal_memory import SimJournal
from cotenant.runner.ports import Journal
from cotenant.runner.sim_loop import SimDriver, SimLoop
from cotenant.units.instant import Instant


class SimEnforcer:
    """Records the requests of the node, in order."""

    __slots__ = ("killed", "mps_restarts")

    def __init__(self) -> None:
        """Begin with an empty record."""
        self.killed: list[tuple[int, int, int]] = []
        self.mps_restarts: list[int] = []

    def kill(self, gpu: int, slot: int, pid: int, *, keep_parent: bool = False) -> None:
        """Record the tenant."""
        del keep_parent
        self.killed.append((gpu, slot, pid))

    def restart_mps(self, gpu: int) -> None:
        """Record the device."""
        self.mps_restarts.append(gpu)


class SimNode:
    """Delivers events to the state machine while it runs; while it is down they are lost, as with a dead process."""

    def __init__(
        self,
        loop: SimLoop,
        new_machine: Callable[[], Machine],
        settings: NodeSettings,
        watch: Callable[[Instant, Event, list[Action]], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Begin stopped; `watch` is called with every turn."""
        self._loop = loop
        self._new_machine = new_machine
        self._settings = settings
        self._watch = watch
        self.journal = SimJournal() if journal is None else journal
        self.listener = SimListener()
        self.pages = SimGrantPages()
        self.gates = SimTenantTables()
        self.ledgers = SimLedgers()
        self.enforcer = SimEnforcer()
        self.driver: SimDriver[Event] | None = None
        self.stopped_because = ""
        self.starts = 0

    @property
    def up(self) -> bool:
        """Whether the process runs."""
        return self.driver is not None

    def start(self, _: Any, now: Instant) -> None:
        """Start the process: recover from the journal and continue."""
        machine = self._new_machine()
        if isinstance(self.journal, SimJournal):
            replay(machine, self.journal.turns(NodeJournalReader))
        ports = NodePorts(self.listener, self.pages, self.gates, self.ledgers, self.enforcer)
        effects = NodeEffects(ports, self._stop)
        observed: Machine = machine if self._watch is None else _ObservedMachine(machine, self._watch)
        self.driver = SimDriver(self._loop, NodeHost(observed, effects.effects(), self.journal), TimerFired())
        self.starts += 1
        self.driver.deliver(NodeStarted(self._settings, "sim", self.starts), now)

    def kill(self) -> None:
        """Kill the process: connections close and memory is lost; journal and pages remain."""
        if self.driver is not None:
            self.driver.end()
        self.driver = None
        self.listener.disconnect_all()

    def deliver(self, event: Event, now: Instant) -> None:
        """Deliver an event if the process runs."""
        if self.driver is not None:
            self.driver.deliver(event, now)

    def _stop(self, reason: str) -> None:
        self.stopped_because = reason
        self.kill()


class _ObservedMachine:
    """A state machine that reports every turn to an observer."""

    def __init__(self, machine: Machine, watch: Callable[[Instant, Event, list[Action]], None]) -> None:
        self._machine = machine
        self._watch = watch
        self.next_wakeup = machine.next_wakeup
        self.snapshot = machine.snapshot

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        """Handle the event and report the turn."""
        actions = self._machine.handle(event, now=now)
        self._watch(now, event, actions)
        return actions
