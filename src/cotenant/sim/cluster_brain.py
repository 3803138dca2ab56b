"""A brain of a cluster that can die and come back: the real machine and host, over a journal in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from cotenant.domain.cluster import ClusterCounts, ClusterSettings, JobState, JobTold
from cotenant.domain.clusters import (
    ClusterAction,
    ClusterEvent,
    ClusterStarted,
    ClusterWoke,
    JobCancelled,
    JobSubmitted,
)
from cotenant.domain.instant import Instant
from cotenant.format.journal import ClusterReader
from cotenant.host import ClusterHost, Decides, replay
from cotenant.port import ClusterDoor
from cotenant.sim.journal import NoJournal, SimJournal
from cotenant.sim.loop import SimDriver, SimLoop

Watch = Callable[[Instant, ClusterEvent, list[ClusterAction]], None]


class Mind(Decides[ClusterEvent, ClusterAction], Protocol):
    """A cluster's machine, as far as a world asks it."""

    def jobs(self) -> Iterable[JobTold]:
        """Every job that is remembered."""
        ...

    def counts(self) -> ClusterCounts:
        """How the cluster stands."""
        ...


class SimBrain:
    """While it is up, events reach its machine; while it is down nodes speak to nobody, and users try again."""

    def __init__(
        self,
        loop: SimLoop,
        new_machine: Callable[[], Mind],
        settings: ClusterSettings,
        watch: Watch,
        journal: SimJournal | None,
    ) -> None:
        """Down at first; without a journal it cannot come back."""
        self._loop, self._new_machine, self._settings = loop, new_machine, settings
        self._journal, self._watch = journal, watch
        self._door: ClusterDoor | None = None
        self._driver: SimDriver[ClusterEvent] | None = None
        self._waiting: list[ClusterEvent] = []
        self.machine = new_machine()
        self.starts = 0

    def bind(self, door: ClusterDoor) -> None:
        """Through which door it speaks."""
        self._door = door

    def start(self, _: Any, now: Instant) -> None:
        """The process starts: recover from the journal, then go on, and hear those who waited."""
        assert self._door is not None
        machine = self.machine = self._new_machine()
        if self._journal is not None:
            replay(machine, ClusterReader(io.BytesIO(self._journal.content()).read))
        host = ClusterHost(machine, self._door, self._journal or NoJournal(), self._watch)
        self._driver = SimDriver(self._loop, host, ClusterWoke())
        self.starts += 1
        self._driver.deliver(ClusterStarted(self._settings, "sim", self.starts), now)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._driver.deliver(event, now)

    def waiting(self) -> int:
        """How many jobs wait, as far as the machine knows or knew."""
        return dict(self.machine.counts().jobs).get(JobState.WAITING, 0)

    def kill(self, _: Any, now: Instant) -> None:
        """SIGKILL: its memory is gone, the journal stays."""
        del now
        assert self._journal is not None
        if self._driver is not None:
            self._driver.end()
        self._driver = None

    def tell(self, event: ClusterEvent, now: Instant) -> bool:
        """Whether there is somebody to hear it; of users it is remembered."""
        if self._driver is None:
            if isinstance(event, JobSubmitted | JobCancelled):
                self._waiting.append(event)
            return False
        self._driver.deliver(event, now)
        return True
