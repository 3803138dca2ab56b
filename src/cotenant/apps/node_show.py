"""Wires how a node shows itself: who sees its turns, and the figures that it serves if it was asked to."""

from __future__ import annotations

from typing import TypeAlias

from cotenant.format.config import NodeConfig
from cotenant.live.address import listen_at
from cotenant.live.gate import LiveGates
from cotenant.live.journal import FileJournal
from cotenant.live.ledger import LiveLedgers
from cotenant.live.loop import LiveLoop
from cotenant.live.observe.collect import page_of
from cotenant.live.observe.http import CONNECTIONS, MetricsDoor
from cotenant.live.observe.log import NodeLog
from cotenant.live.observe.look import NodeLook
from cotenant.live.observe.witness import Witness
from cotenant.machine.node import NodeMachine
from cotenant.port import Clock

DeviceFiles: TypeAlias = tuple[LiveGates, LiveLedgers]
"""What tenants of the devices write: the gates' pages and the ledgers."""


class Showcase:
    """Made before the node is: an address that cannot be served at is said before anything else happens."""

    def __init__(self, config: NodeConfig, log: NodeLog) -> None:
        """Take the address."""
        self.log = log
        self._listener = listen_at(config.metrics, "node.metrics", CONNECTIONS) if config.metrics else None
        self._door: MetricsDoor | None = None

    def open(
        self, machine: NodeMachine, loop: LiveLoop, clock: Clock, journal: FileJournal, files: DeviceFiles
    ) -> Witness:
        """Show this node from now on; returns who is to see its turns."""
        witness = Witness(self.log, *files, machine.turn)
        if self._listener is not None:
            look = NodeLook(machine, witness, lambda: (loop.turn_ns.histogram(), journal.size_bytes, self.log.dropped))
            self._door = MetricsDoor(loop, clock, self._listener, lambda: page_of(look))
            self.log.say(f"figures for Prometheus: {self._door.address}")
        return witness

    def close(self) -> None:
        """Hang up on whoever asks."""
        if self._door is not None:
            self._door.close()
