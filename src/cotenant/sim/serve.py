"""A server of models on a device that only reckons when runs end: its runtime, its desk, what drives its machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import Finished, Run, ServerEvent, Tick, TurnAway
from cotenant.host import ServerDecides, ServerHost
from cotenant.sim.loop import SimLoop

RunEnds: TypeAlias = Callable[[Run, Instant], None]


class Device(Protocol):
    """What runs take their time on; the machine does not know it."""

    def begin(self, run: Run, ends: RunEnds) -> None:
        """Run it from now on; `ends` is called once, by the loop, when it is over."""
        ...


class AsTold:
    """A device on which runs do not feel each other: each takes as long as somebody says."""

    def __init__(self, loop: SimLoop, took_ns: Callable[[Run], Duration]) -> None:
        """`took_ns` is asked when a run begins."""
        self._loop = loop
        self._took_ns = took_ns

    def begin(self, run: Run, ends: RunEnds) -> None:
        """Its end is known at once."""
        self._loop.at(self._loop.now() + self._took_ns(run), ends, run)


class SimServing:
    """Runs end by the heap; answers and refusals are kept, each with its instant."""

    def __init__(self, loop: SimLoop, machine: ServerDecides, device: Device) -> None:
        """Nothing has come yet, and nothing runs."""
        self._loop = loop
        self._device = device
        self._began: dict[int, Instant] = {}
        self._followers: dict[int, Run] = {}
        self._host = ServerHost(machine, self, self)
        self._wake: Instant | None = None
        self.answered: dict[int, Instant] = {}
        self.refused: dict[int, TurnAway] = {}
        self.refused_at: dict[int, Instant] = {}
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
        """Begin a run, or have it begin after another."""
        if run.after in self._began:
            self._followers[run.after] = run
            return
        self._began[run.run] = self._loop.now()
        self._device.begin(run, self._end)

    def _end(self, run: Run, now: Instant) -> None:
        for request in run.requests:
            self.answered[request] = now
        took_ns = now - self._began.pop(run.run)
        follower = self._followers.pop(run.run, None)
        if follower is not None:
            self.start(follower)
        self._deliver(Finished(run.run, took_ns), now)

    def release(self, model: str, key: int) -> None:
        """Note it."""
        self.released.append((model, key))

    def turn_away(self, refusal: TurnAway) -> None:
        """Note it."""
        self.refused[refusal.request] = refusal
        self.refused_at[refusal.request] = self._loop.now()

    def drained(self) -> None:
        """Note when."""
        self.drained_at = self._loop.now()
