"""Who remembers what a server of models owes? Requests wait in lanes, runs hold cores, everything ends in an answer.

Pure: `handle` is the only way state moves, the instant is an argument, waiting is `next_wakeup`. What a request
contains is not known here, only its rows and whether its rows look like those of others.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush
from typing import Final

from cotenant.domain.instant import NEVER, Duration, Instant
from cotenant.domain.lane import Ended, Foreseen, Foresees, GiveUp, Launch, UnderWay, View
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import (
    Arrived,
    Cancelled,
    Drained,
    Finished,
    ModelLeaving,
    ModelReady,
    Refusal,
    Release,
    Run,
    ServerAction,
    ServerEvent,
    Tick,
    TurnAway,
    Waiting,
)
from cotenant.domain.value import Value
from cotenant.format.quantity import round_duration
from cotenant.machine.lanes import QueueLane
from cotenant.machine.runs import Runs
from cotenant.policy.admit import REQUEST_POLICIES
from cotenant.policy.predict.service import Drift
from cotenant.policy.schedule import SERVE_POLICIES

_RETRY_UNKNOWN_NS: Final = 1_000_000_000
"""What is said where nothing better is known: come again in a second."""
_LAG_UP: Final = 4
_LAG_DOWN: Final = 32
"""A quarter of the way up, a 32nd down: settles near what one run in ten exceeds. Our choice."""
_LAG_STEP_NS: Final = 1_000_000
"""One stall is no habit: a lag counts as no more than twice what is believed, and this."""
_LAG_HALVES_NS: Final = 100_000_000
"""Without a run for so long, half of it is forgotten: what keeps all runs away must not be believed for ever."""


class ServerSettings(Value, frozen=True):
    """How a server is set up, as far as its decisions depend on it."""

    units: int
    """Of the device: cores of this machine, or 100 for the percent of a GPU."""
    pinned: bool = True
    """Whether a unit is a core, of which a run is given certain ones."""
    schedule: str = "dstack"
    admit: str = "deadline"
    requests_limit: int = 8192
    """That may wait, over all models."""
    ahead: bool = False
    """Whether runs may be given to units whose run is about to end: the runtime begins them right after it."""


class _Lag:
    """What passes between a run's end and word of it: quick to rise, slow to fall, and forgotten without runs."""

    __slots__ = ("_at", "_high_ns")

    def __init__(self) -> None:
        self._high_ns: Duration = 0
        self._at: Instant = 0

    def add(self, lag_ns: Duration, now: Instant) -> None:
        before = self.high_ns(now)
        self._at = now
        lag_ns = min(lag_ns, 2 * before + _LAG_STEP_NS)
        self._high_ns = before + (lag_ns - before) // (_LAG_UP if lag_ns > before else _LAG_DOWN)

    def high_ns(self, now: Instant) -> Duration:
        halvings = max(now - self._at, 0) // _LAG_HALVES_NS
        return self._high_ns >> halvings if halvings < 32 else 0


class ServerMachine:
    """The state of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        """All of the device is free, no model is known."""
        self.settings = settings
        self.turn = 0
        self._schedule = SERVE_POLICIES[settings.schedule]()
        own = self._schedule
        self._foresees = own if isinstance(own, Foresees) and settings.admit == "deadline" else None
        self._admit = REQUEST_POLICIES[settings.admit]
        self._lag = _Lag()
        self._runs = Runs(settings.units, pinned=settings.pinned)
        self._lanes: dict[int, QueueLane] = {}
        self._everyone: tuple[QueueLane, ...] = ()
        self._named: dict[str, QueueLane] = {}
        self._busy: dict[int, QueueLane] = {}  # those in which something waits
        self._home: dict[int, QueueLane] = {}  # of each request that waits
        self._drift = Drift()
        self._deadlines: list[tuple[Instant, int]] = []
        self._next_run = 0
        self._draining = False
        self._drained = False
        self._hold: Instant | None = None

    def handle(self, event: ServerEvent, *, now: Instant) -> list[ServerAction]:
        """The only way state moves."""
        self.turn += 1
        actions: list[ServerAction] = []
        if isinstance(event, Arrived):
            self._arrived(event, now, actions)
        elif isinstance(event, Finished):
            self._finished(event, now, actions)
        elif isinstance(event, Cancelled):
            self._cancelled(event, actions)
        elif isinstance(event, Tick):
            self._tick(now, actions)
        elif isinstance(event, ModelReady):
            self._ready(event, actions)
        elif isinstance(event, ModelLeaving):
            self._leaving(event, actions)
        else:
            self._draining = True
        self._hold = None
        if self._busy:
            self._launch(now, actions)
            if self._busy and self.settings.ahead:
                self._launch_ahead(now, actions)
        if self._draining and not self._drained and not self._home and not self._runs:
            self._drained = True
            actions.append(Drained(self.turn))
        return actions

    def next_wakeup(self) -> Instant | None:
        """When the next deadline passes, or a batch has waited long enough."""
        while self._deadlines and self._deadlines[0][1] not in self._home:
            heappop(self._deadlines)
        if self._deadlines and (self._hold is None or self._deadlines[0][0] < self._hold):
            return self._deadlines[0][0]
        return self._hold

    @property
    def waiting(self) -> int:
        """Requests in all lanes."""
        return len(self._home)

    def plan(self) -> ServePlan | None:
        """What its policy intends, where it plans at all."""
        return self._schedule.plan()

    def lanes(self) -> list[QueueLane]:
        """For those who look: every loading that is not released."""
        return list(self._lanes.values())

    def _arrived(self, event: Arrived, now: Instant, actions: list[ServerAction]) -> None:
        lane = self._named.get(event.model)
        if lane is None:
            self._refuse(actions, event.request, Refusal.UNKNOWN_MODEL, f"no model {event.model!r} is ready")
            return
        spec = lane.spec
        priority = event.priority or spec.priority
        lane.came(event.rows, priority, now)
        patience_ns = event.timeout_ns or spec.slo_ns
        deadline = now + patience_ns if patience_ns else NEVER
        asked = Waiting(event.request, event.rows, event.shapes, priority, now, deadline)
        no = self._no_room(event, lane)
        if no is not None:
            why, detail = no
            wait_ns = self._foreseen(lane, asked, now).wait_ns or _RETRY_UNKNOWN_NS
            self._refuse(actions, event.request, why, detail, wait_ns)
            return
        if patience_ns:
            foreseen = self._foreseen(lane, asked, now)
            late_ns = foreseen.wait_ns - patience_ns
            if foreseen.detail:
                self._refuse(actions, event.request, Refusal.OVER_SHARE, foreseen.detail, max(late_ns, patience_ns))
                return
            if late_ns > 0:
                detail = f"an answer is expected in {round_duration(foreseen.wait_ns)}, it is wanted within "
                detail += round_duration(patience_ns)
                self._refuse(actions, event.request, Refusal.TOO_LATE, detail, late_ns)
                return
            heappush(self._deadlines, (deadline, event.request))
        lane.add(asked)
        self._home[event.request] = lane
        self._busy[lane.key] = lane

    def _no_room(self, event: Arrived, lane: QueueLane) -> tuple[Refusal, str] | None:
        spec = lane.spec
        if self._draining:
            return Refusal.DRAINING, "the server is about to stop"
        if spec.max_batch and event.rows > spec.max_batch:
            detail = f"a batch of {event.rows} rows is more than the {spec.max_batch} that {spec.name!r} takes"
            return Refusal.TOO_MANY_ROWS, detail
        if len(lane.waiting) >= spec.queue_limit:
            return Refusal.QUEUE_FULL, f"{len(lane.waiting)} requests for {spec.name!r} wait, which is the limit"
        if len(self._home) >= self.settings.requests_limit:
            return Refusal.QUEUE_FULL, f"{len(self._home)} requests wait, which is the limit"
        return None

    def _foreseen(self, lane: QueueLane, asked: Waiting, now: Instant) -> Foreseen:
        view = self._view(now)
        if self._foresees is not None:
            return self._foresees.foresee(asked, lane, view)
        return Foreseen(self._admit(view, lane, asked.rows))

    def _view(self, now: Instant) -> View:
        """Made for every decision, so nothing in it is counted or copied."""
        return self._view_of(self._runs.free_units, self._runs.under_way, now)

    def _view_of(self, free: int, runs: Collection[UnderWay], now: Instant) -> View:
        free_at = now if free else min((run.expected_end for run in runs), default=now)
        all_units = self.settings.units
        return View(self._busy.values(), free, all_units, free_at, now, self._everyone, runs, self._lag.high_ns(now))

    def _refuse(
        self, actions: list[ServerAction], request: int, why: Refusal, detail: str, retry_after_ns: Duration = 0
    ) -> None:
        actions.append(TurnAway(self.turn, request, why, detail, retry_after_ns))

    def _cancelled(self, event: Cancelled, actions: list[ServerAction]) -> None:
        """One that runs already goes on to its end: what it shares a run with must not suffer."""
        lane = self._home.pop(event.request, None)
        if lane is not None:
            lane.drop(event.request)
            self._left(lane, actions)

    def _finished(self, event: Finished, now: Instant, actions: list[ServerAction]) -> None:
        lane, run, deadlines, followed = self._runs.end(event.run, now)
        lane.running -= 1
        # Of one that began right after another, nobody knows when that was; what is believed is not forgotten by it.
        self._lag.add(self._lag.high_ns(now) if followed else max(now - run.began - event.took_ns, 0), now)
        if not event.failed and (run.units or not lane.measured):  # how much an unshared one had is not known
            lane.learn(run.rows, run.units or self.settings.units, event.took_ns)
        late = sum(NEVER != deadline < now for deadline in deadlines)
        in_time = len(deadlines) - late
        told = (lane.key, lane.spec.name, run.rows, run.units, run.began, event.took_ns, in_time, late, event.failed)
        self._schedule.ended(Ended(*told), self._view(now))
        self._left(lane, actions)

    def _ready(self, event: ModelReady, actions: list[ServerAction]) -> None:
        before = self._named.get(event.spec.name)
        lane = QueueLane(event.key, event.spec, event.times, self._drift)
        self._lanes[event.key] = lane
        self._everyone = tuple(self._lanes.values())
        self._named[event.spec.name] = lane
        if before is not None:
            before.leaving = True
            self._left(before, actions)

    def _leaving(self, event: ModelLeaving, actions: list[ServerAction]) -> None:
        lane = self._named.pop(event.model, None)
        if lane is not None:
            lane.leaving = True
            self._left(lane, actions)

    def _tick(self, now: Instant, actions: list[ServerAction]) -> None:
        """What passed its deadline while it waited is refused; the rest of the turn sees to batches."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request = heappop(self._deadlines)
            lane = self._home.pop(request, None)
            if lane is not None:
                late = lane.drop(request)
                again_ns = _RETRY_UNKNOWN_NS if late is None else _again_ns(late, now)
                self._refuse(actions, request, Refusal.TOO_LATE, "its deadline passed while it waited", again_ns)
                self._left(lane, actions)

    def _left(self, lane: QueueLane, actions: list[ServerAction]) -> None:
        """Something left a lane: it may be empty now, and one that was to go may be gone."""
        if not lane.waiting:
            self._busy.pop(lane.key, None)
            if lane.leaving and lane.idle and lane.key in self._lanes:
                del self._lanes[lane.key]
                self._everyone = tuple(self._lanes.values())
                actions.append(Release(self.turn, lane.spec.name, lane.key))

    def _launch(self, now: Instant, actions: list[ServerAction]) -> None:
        while self._busy:
            choice = self._schedule.next(self._view(now))
            if isinstance(choice, Launch):
                self._run(choice, now, actions)
            elif isinstance(choice, GiveUp):
                self._give_up(choice, now, actions)
            else:
                self._hold = None if choice is None else choice.until
                return

    def _launch_ahead(self, now: Instant, actions: list[ServerAction]) -> None:
        """Choose what follows the run that is about to end, or be woken when it is; none that is overdue: who knows."""
        lead_ns = self._lag.high_ns(now)
        while self._busy and (soonest := self._runs.soonest()) is not None:
            after, end = soonest
            if end - lead_ns > now:
                self._hold = end - lead_ns if self._hold is None else min(self._hold, end - lead_ns)
                return
            if end + lead_ns < now:
                return
            choice = self._schedule.next(self._view_of(*self._runs.but_for(after), now))
            if isinstance(choice, Launch):
                self._run(choice, now, actions, after)
            elif isinstance(choice, GiveUp):
                self._give_up(choice, now, actions)
            else:
                return

    def _run(self, choice: Launch, now: Instant, actions: list[ServerAction], after: int = 0) -> None:
        lane = self._lanes[choice.key]
        taken = lane.take(choice.requests)
        units = choice.units
        for one in taken:
            del self._home[one.request]
        lane.running += 1
        self._next_run += 1
        number = self._next_run
        lasts_ns = lane.expected_ns(choice.rows, units or self.settings.units)
        deadlines = tuple(one.deadline for one in taken)
        cores = self._runs.begin(number, lane, choice, lasts_ns, deadlines, now, after)
        requests = tuple(one.request for one in taken)
        actions.append(Run(self.turn, number, lane.spec.name, lane.key, requests, choice.rows, units, cores, after))
        self._left(lane, actions)

    def _give_up(self, choice: GiveUp, now: Instant, actions: list[ServerAction]) -> None:
        lane = self._lanes[choice.key]
        for one in lane.take(choice.requests):
            del self._home[one.request]
            detail = "it waited too long to be answered in time"
            self._refuse(actions, one.request, Refusal.TOO_LATE, detail, _again_ns(one, now))
        self._left(lane, actions)


def _again_ns(late: Waiting, now: Instant) -> Duration:
    """When to come again: what waits is at least as long as this one waited in vain."""
    return max(now - late.since, 0) or _RETRY_UNKNOWN_NS
