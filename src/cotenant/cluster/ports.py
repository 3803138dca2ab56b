"""Port through which the cluster controller reaches nodes."""

from __future__ import annotations

from typing import Protocol

from cotenant.cluster.model.event import StartJob, StopJob


class ClusterTransport(Protocol):
    """Sends orders. An order may be lost: the state machine repeats it after the next report of the node."""

    def start(self, order: StartJob) -> None:
        """Order a node to start an attempt."""
        ...

    def stop(self, order: StopJob) -> None:
        """Order a node to stop an attempt."""
        ...
