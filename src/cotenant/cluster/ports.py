"""Port through which the cluster controller reaches nodes and users."""

from __future__ import annotations

from typing import Protocol

from cotenant.cluster.model.event import AckEnd, Answer, StartJob, StopJob


class ClusterTransport(Protocol):
    """Sends orders and answers. Messages may be lost: the state machine repeats orders."""

    def start(self, order: StartJob) -> None:
        """Order a node to start an attempt."""
        ...

    def stop(self, order: StopJob) -> None:
        """Order a node to stop an attempt."""
        ...

    def acknowledge(self, order: AckEnd) -> None:
        """Acknowledge the end of an attempt to its node."""
        ...

    def answer(self, answer: Answer) -> None:
        """Answer the request of a peer."""
        ...
