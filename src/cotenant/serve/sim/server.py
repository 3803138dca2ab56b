"""Simulated server: runtime, responder and event delivery under the simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from cotenant.runner.sim_loop import SimLoop
from cotenant.serve.host import ServerDecider, ServerHost
from cotenant.serve.model.event import RejectRequest, Run, RunFinished, ServerEvent, Tick
from cotenant.units.instant import Duration, Instant

RunEnded: TypeAlias = Callable[[Run, Instant], None]


class RunDevice(Protocol):
    """The device that determines when runs end; the state machine does not see it."""

    def begin(self, run: Run, ends: RunEnded) -> None:
        """Start a run; the loop calls `ends` once, when it ends."""
        ...


class FixedTimeDevice:
    """A device without contention: a function gives the time of each run."""

    def __init__(self, loop: SimLoop, run_ns: Callable[[Run], Duration]) -> None:
        """`run_ns` is called when a run starts."""
        self._loop = loop
        self._run_ns = run_ns

    def begin(self, run: Run, ends: RunEnded) -> None:
        """Schedule the end of the run."""
        self._loop.at(self._loop.now() + self._run_ns(run), ends, run)


class SimServer:
    """Runs a server's state machine on a simulated device and records answers and rejections with their instants."""

    def __init__(self, loop: SimLoop, machine: ServerDecider, device: RunDevice) -> None:
        """Start without requests and runs."""
        self._loop = loop
        self._device = device
        self._began: dict[int, Instant] = {}
        self._followers: dict[int, Run] = {}
        self._host = ServerHost(machine, self, self)
        self._wake: Instant | None = None
        self.answered: dict[int, Instant] = {}
        self.refused: dict[int, RejectRequest] = {}
        self.refused_at: dict[int, Instant] = {}
        self.released: list[tuple[str, int]] = []
        self.drained_at: Instant | None = None

    def at(self, instant: Instant, event: ServerEvent) -> None:
        """Deliver an event at an instant."""
        self._loop.at(instant, self._deliver, event)

    def _deliver(self, event: ServerEvent, now: Instant) -> None:
        wake = self._host.turn(event, now)
        if wake is not None and wake != self._wake:
            self._wake = wake
            self._loop.at(wake, self._wake_up, wake)

    def _wake_up(self, armed: Instant, now: Instant) -> None:
        if self._wake == armed:  # otherwise the wakeup was moved
            self._wake = None
            self._deliver(Tick(), now)

    def start(self, run: Run) -> None:
        """Start a run, or queue it behind the run that it follows."""
        if run.after in self._began:
            self._followers[run.after] = run
            return
        self._began[run.run] = self._loop.now()
        self._device.begin(run, self._run_ended)

    def _run_ended(self, run: Run, now: Instant) -> None:
        for request in run.requests:
            self.answered[request] = now
        run_ns = now - self._began.pop(run.run)
        follower = self._followers.pop(run.run, None)
        if follower is not None:
            self.start(follower)
        self._deliver(RunFinished(run.run, run_ns), now)

    def release(self, model: str, key: int) -> None:
        """Record the release."""
        self.released.append((model, key))

    def reject(self, refusal: RejectRequest) -> None:
        """Record the rejection."""
        self.refused[refusal.request] = refusal
        self.refused_at[refusal.request] = self._loop.now()

    def drained(self) -> None:
        """Record the instant."""
        self.drained_at = self._loop.now()
