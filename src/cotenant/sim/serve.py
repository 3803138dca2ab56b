"""A server of models whose runs take as long as somebody says: its runtime, its desk, and what drives its machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import Finished, Run, ServerEvent, Tick, TurnAway
from cotenant.host import ServerDecides, ServerHost
from cotenant.sim.loop import SimLoop

Physics: TypeAlias = Callable[[Run], Duration]


class SimServing:
    """Runs end by the heap; answers and refusals are kept, each with its instant."""

    def __init__(self, loop: SimLoop, machine: ServerDecides, took_ns: Physics) -> None:
        """`took_ns` says how long a run takes; the machine does not know it."""
        self._loop = loop
        self._took_ns = took_ns
        self._host = ServerHost(machine, self, self)
        self._wake: Instant | None = None
        self.answered: dict[int, Instant] = {}
        self.refused: dict[int, TurnAway] = {}
        self.released: list[tuple[str, int]] = []
        self.drained_at: Instant | None = None

    def at(self, when: Instant, event: ServerEvent) -> None:
        """Let something happen then."""
        self._loop.at(when, self._deliver, event)

    def _deliver(self, event: ServerEvent, now: Instant) -> None:
        wake = self._host.turn(event, now)
        if wake is not None and wake != self._wake:
            self._wake = wake
            self._loop.at(wake, self._ring, wake)

    def _ring(self, armed: Instant, now: Instant) -> None:
        if self._wake == armed:  # otherwise it was moved meanwhile
            self._wake = None
            self._deliver(Tick(), now)

    def start(self, run: Run) -> None:
        """Begin a run."""
        self._loop.at(self._loop.now() + self._took_ns(run), self._end, run)

    def _end(self, run: Run, now: Instant) -> None:
        for request in run.requests:
            self.answered[request] = now
        self._deliver(Finished(run.run, self._took_ns(run)), now)

    def release(self, model: str, key: int) -> None:
        """Note it."""
        self.released.append((model, key))

    def turn_away(self, refusal: TurnAway) -> None:
        """Note it."""
        self.refused[refusal.request] = refusal

    def drained(self) -> None:
        """Note when."""
        self.drained_at = self._loop.now()
