"""The observability of a node: the observer of its turns, and its metrics endpoint if configured."""

from __future__ import annotations

from typing import TypeAlias

from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.node.config.file import NodeConfig
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics.families import page_of
from cotenant.node.daemon.metrics.http import CONNECTIONS, MetricsListener
from cotenant.node.daemon.metrics.snapshot import MetricsCollector
from cotenant.node.daemon.observer import TurnObserver
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.node.model.event import Event
from cotenant.node.state.node import NodeMachine
from cotenant.runner.address import listen_at
from cotenant.runner.journal_file import FileJournal
from cotenant.runner.live_loop import LiveLoop
from cotenant.runner.ports import Clock

DevicePages: TypeAlias = tuple[TenantPages, LiveLedgers]
"""The gate pages of tenants and the ledgers."""


class Observability:
    """Creates the observer and the metrics endpoint; created first, so that a bad address is reported early."""

    def __init__(self, config: NodeConfig, log: NodeLog) -> None:
        """Open the listening socket of the metrics, if configured."""
        self.log = log
        self._socket = listen_at(config.metrics, "node.metrics", CONNECTIONS) if config.metrics else None
        self._metrics: MetricsListener | None = None

    def open(
        self, machine: NodeMachine, loop: LiveLoop[Event], clock: Clock, journal: FileJournal, pages: DevicePages
    ) -> TurnObserver:
        """Return the observer of the node's turns, and start to serve metrics."""
        observer = TurnObserver(self.log, *pages, machine.turn)
        if self._socket is not None:
            collect = MetricsCollector(
                machine, observer, lambda: (loop.turn_ns.histogram(), journal.size_bytes, self.log.dropped)
            )
            self._metrics = MetricsListener(loop, clock, self._socket, lambda: page_of(collect))
            self.log.report(f"metrics for Prometheus: {self._metrics.address}")
        return observer

    def close(self) -> None:
        """Close the metrics endpoint."""
        if self._metrics is not None:
            self._metrics.close()
