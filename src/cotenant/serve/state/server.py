"""State machine of the inference server: queues, active runs and admission.

Pure: `handle` is the only method that changes state, the instant is an argument, and waiting is `next_wakeup`. The
contents of requests are not known here, only their rows and the number of their shapes.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush
from typing import Final

from cotenant.predict.run_time import Drift
from cotenant.serve.model.event import (
    ModelReady,
    ModelWithdrawn,
    QueuedRequest,
    RejectReason,
    RejectRequest,
    ReleaseModel,
    ReportDrained,
    RequestArrived,
    RequestCancelled,
    Run,
    RunFinished,
    ServerAction,
    ServerEvent,
    Tick,
)
from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.run_times import next_to_others
from cotenant.serve.model.scheduling import (
    ActiveRun,
    Forecaster,
    RejectQueued,
    RequestForecast,
    RunReport,
    StartRun,
    View,
)
from cotenant.serve.policy import policy_class
from cotenant.serve.policy.admit import ADMISSION_POLICIES
from cotenant.serve.state.model_queue import ModelQueueState
from cotenant.serve.state.runs import RunTable
from cotenant.units.instant import NEVER, Duration, Instant
from cotenant.units.text import round_duration
from cotenant.units.value import Value

_RETRY_UNKNOWN_NS: Final = 1_000_000_000
"""Retry delay if no better estimate exists: one second."""
_LAG_UP: Final = 4
_LAG_DOWN: Final = 32
"""The estimate moves a quarter of the way up and 1/32 down: it settles near the 90th percentile. Our choice."""
_LAG_STEP_NS: Final = 1_000_000
"""Limits the effect of a single stall: a sample counts as at most twice the estimate plus this."""
_LAG_HALVES_NS: Final = 100_000_000
"""The estimate halves after each such period without a run, so that it cannot block all runs for ever."""


class ServerSettings(Value, frozen=True):
    """Settings that the decisions of a server depend on."""

    units: int
    """Units of the device: the number of cores, or 100 (percent of a GPU)."""
    pinned: bool = True
    """Whether a unit is a core, so that a run is assigned to specific cores."""
    schedule: str = "dstack"
    admit: str = "deadline"
    requests_limit: int = 8192
    """Maximum number of queued requests over all models."""
    interference: float = 1.0
    """Slowdown of a run on a part of the device while others run, beyond what profiles contain; runs correct it."""
    ahead: bool = False
    """Whether a run may be assigned to units whose run is about to end; the runtime starts it right after."""


class _Lag:
    """Estimate of the delay between a run's end and its report: rises fast, falls slowly, decays without runs."""

    __slots__ = ("_high_ns", "_updated_at")

    def __init__(self) -> None:
        self._high_ns: Duration = 0
        self._updated_at: Instant = 0

    def add(self, lag_ns: Duration, now: Instant) -> None:
        previous = self.high_ns(now)
        self._updated_at = now
        lag_ns = min(lag_ns, 2 * previous + _LAG_STEP_NS)
        self._high_ns = previous + (lag_ns - previous) // (_LAG_UP if lag_ns > previous else _LAG_DOWN)

    def high_ns(self, now: Instant) -> Duration:
        halvings = max(now - self._updated_at, 0) // _LAG_HALVES_NS
        return self._high_ns >> halvings if halvings < 32 else 0


class ServerMachine:
    """The state of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        """Start with all units free and no model."""
        self.settings = settings
        self.turn = 0
        self._schedule = policy_class(settings.schedule)()
        policy = self._schedule
        self._forecaster = policy if isinstance(policy, Forecaster) and settings.admit == "deadline" else None
        self._admit = ADMISSION_POLICIES[settings.admit]
        self._lag = _Lag()
        self._runs = RunTable(settings.units, pinned=settings.pinned)
        self._queues: dict[int, ModelQueueState] = {}
        self._all_queues: tuple[ModelQueueState, ...] = ()
        self._by_name: dict[str, ModelQueueState] = {}
        self._busy: dict[int, ModelQueueState] = {}  # queues that have requests
        self._queue_of: dict[int, ModelQueueState] = {}  # the queue of each queued request
        self._drift = Drift()
        self._deadlines: list[tuple[Instant, int]] = []
        self._next_run = 0
        self._draining = False
        self._drained = False
        self._hold: Instant | None = None

    def handle(self, event: ServerEvent, *, now: Instant) -> list[ServerAction]:
        """Apply an event and return the actions that follow from it."""
        self.turn += 1
        actions: list[ServerAction] = []
        if isinstance(event, RequestArrived):
            self._arrived(event, now, actions)
        elif isinstance(event, RunFinished):
            self._finished(event, now, actions)
        elif isinstance(event, RequestCancelled):
            self._cancelled(event, actions)
        elif isinstance(event, Tick):
            self._tick(now, actions)
        elif isinstance(event, ModelReady):
            self._ready(event, actions)
        elif isinstance(event, ModelWithdrawn):
            self._withdrawn(event, actions)
        else:
            self._draining = True
        self._hold = None
        if self._busy:
            self._launch(now, actions)
            if self._busy and self.settings.ahead:
                self._launch_ahead(now, actions)
        if self._draining and not self._drained and not self._queue_of and not self._runs:
            self._drained = True
            actions.append(ReportDrained(self.turn))
        return actions

    def next_wakeup(self) -> Instant | None:
        """Return the next deadline, or the instant at which an incomplete batch is due."""
        while self._deadlines and self._deadlines[0][1] not in self._queue_of:
            heappop(self._deadlines)
        if self._deadlines and (self._hold is None or self._deadlines[0][0] < self._hold):
            return self._deadlines[0][0]
        return self._hold

    @property
    def waiting(self) -> int:
        """Return the number of queued requests."""
        return len(self._queue_of)

    def plan(self) -> ServePlan | None:
        """Return the policy's plan, or None if it does not plan."""
        return self._schedule.plan()

    def queues(self) -> list[ModelQueueState]:
        """Return the queues of all loaded instances that are not released."""
        return list(self._queues.values())

    def _arrived(self, event: RequestArrived, now: Instant, actions: list[ServerAction]) -> None:
        queue = self._by_name.get(event.model)
        if queue is None:
            self._refuse(actions, event.request, RejectReason.UNKNOWN_MODEL, f"no model {event.model!r} is ready")
            return
        spec = queue.spec
        priority = event.priority or spec.priority
        queue.record_arrival(event.rows, priority, now)
        patience_ns = event.timeout_ns or spec.slo_ns
        deadline = now + patience_ns if patience_ns else NEVER
        request = QueuedRequest(event.request, event.rows, event.shapes, priority, now, deadline)
        error = self._capacity_error(event, queue)
        if error is not None:
            reason, detail = error
            wait_ns = self._forecast(queue, request, now).wait_ns or _RETRY_UNKNOWN_NS
            self._refuse(actions, event.request, reason, detail, wait_ns)
            return
        if patience_ns:
            forecast = self._forecast(queue, request, now)
            late_ns = forecast.wait_ns - patience_ns
            if forecast.detail:
                self._refuse(
                    actions, event.request, RejectReason.OVER_SHARE, forecast.detail, max(late_ns, patience_ns)
                )
                return
            if late_ns > 0:
                detail = f"an answer is expected in {round_duration(forecast.wait_ns)}, but the limit is "
                detail += round_duration(patience_ns)
                self._refuse(actions, event.request, RejectReason.TOO_LATE, detail, late_ns)
                return
            heappush(self._deadlines, (deadline, event.request))
        queue.add(request)
        self._queue_of[event.request] = queue
        self._busy[queue.key] = queue

    def _capacity_error(self, event: RequestArrived, queue: ModelQueueState) -> tuple[RejectReason, str] | None:
        spec = queue.spec
        if self._draining:
            return RejectReason.DRAINING, "the server is shutting down"
        if spec.max_batch and event.rows > spec.max_batch:
            detail = f"a batch of {event.rows} rows exceeds the {spec.max_batch} rows that {spec.name!r} accepts"
            return RejectReason.TOO_MANY_ROWS, detail
        if len(queue.waiting) >= spec.queue_limit:
            return (
                RejectReason.QUEUE_FULL,
                f"{len(queue.waiting)} requests for {spec.name!r} are queued, which is the limit",
            )
        if len(self._queue_of) >= self.settings.requests_limit:
            return RejectReason.QUEUE_FULL, f"{len(self._queue_of)} requests are queued, which is the limit"
        return None

    def _forecast(self, queue: ModelQueueState, request: QueuedRequest, now: Instant) -> RequestForecast:
        view = self._view(now)
        if self._forecaster is not None:
            return self._forecaster.forecast(request, queue, view)
        return RequestForecast(self._admit(view, queue, request.rows))

    def _view(self, now: Instant) -> View:
        """Build the policy's input. This runs for every decision, so nothing is counted or copied."""
        return self._view_of(self._runs.free_units, self._runs.active_runs, now)

    def _view_of(self, free: int, runs: Collection[ActiveRun], now: Instant) -> View:
        free_at = now if free else min((run.expected_end for run in runs), default=now)
        all_units = self.settings.units
        return View(self._busy.values(), free, all_units, free_at, now, self._all_queues, runs, self._lag.high_ns(now))

    def _refuse(
        self, actions: list[ServerAction], request: int, reason: RejectReason, detail: str, retry_after_ns: Duration = 0
    ) -> None:
        actions.append(RejectRequest(self.turn, request, reason, detail, retry_after_ns))

    def _cancelled(self, event: RequestCancelled, actions: list[ServerAction]) -> None:
        """Remove a queued request.

        A request that is already in a run stays in it, because it shares the run with others.
        """
        queue = self._queue_of.pop(event.request, None)
        if queue is not None:
            queue.drop(event.request)
            self._update_tables(queue, actions)

    def _finished(self, event: RunFinished, now: Instant, actions: list[ServerAction]) -> None:
        queue, run, deadlines, followed = self._runs.end(event.run, now)
        queue.running -= 1
        # The start of a run that followed another one is unknown; the estimate is refreshed with its own value.
        self._lag.add(self._lag.high_ns(now) if followed else max(now - run.began - event.took_ns, 0), now)
        if not event.failed and (run.units or not queue.measured):  # the units of an unshared run are unknown
            queue.learn(run.rows, run.units or self.settings.units, event.took_ns)
        late = sum(NEVER != deadline < now for deadline in deadlines)
        in_time = len(deadlines) - late
        fields = (
            queue.key,
            queue.spec.name,
            run.rows,
            run.units,
            run.began,
            event.took_ns,
            in_time,
            late,
            event.failed,
        )
        self._schedule.run_ended(RunReport(*fields), self._view(now))
        self._update_tables(queue, actions)

    def _ready(self, event: ModelReady, actions: list[ServerAction]) -> None:
        previous = self._by_name.get(event.spec.name)
        times = event.times and next_to_others(event.times, self.settings.interference)
        queue = ModelQueueState(event.key, event.spec, times, self._drift)
        self._queues[event.key] = queue
        self._all_queues = tuple(self._queues.values())
        self._by_name[event.spec.name] = queue
        if previous is not None:
            previous.withdrawn = True
            self._update_tables(previous, actions)

    def _withdrawn(self, event: ModelWithdrawn, actions: list[ServerAction]) -> None:
        queue = self._by_name.pop(event.model, None)
        if queue is not None:
            queue.withdrawn = True
            self._update_tables(queue, actions)

    def _tick(self, now: Instant, actions: list[ServerAction]) -> None:
        """Reject requests whose deadline passed in the queue; the rest of the event handles incomplete batches."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request = heappop(self._deadlines)
            queue = self._queue_of.pop(request, None)
            if queue is not None:
                late = queue.drop(request)
                retry_after_ns = _RETRY_UNKNOWN_NS if late is None else _retry_after_ns(late, now)
                self._refuse(
                    actions, request, RejectReason.TOO_LATE, "its deadline passed in the queue", retry_after_ns
                )
                self._update_tables(queue, actions)

    def _update_tables(self, queue: ModelQueueState, actions: list[ServerAction]) -> None:
        """Update the tables after requests left a queue: it may be empty, and a withdrawn model may be released."""
        if not queue.waiting:
            self._busy.pop(queue.key, None)
            if queue.withdrawn and queue.idle and queue.key in self._queues:
                del self._queues[queue.key]
                self._all_queues = tuple(self._queues.values())
                actions.append(ReleaseModel(self.turn, queue.spec.name, queue.key))

    def _launch(self, now: Instant, actions: list[ServerAction]) -> None:
        while self._busy:
            choice = self._schedule.next(self._view(now))
            if isinstance(choice, StartRun):
                self._run(choice, now, actions)
            elif isinstance(choice, RejectQueued):
                self._reject_queued(choice, now, actions)
            else:
                self._hold = None if choice is None else choice.until
                return

    def _launch_ahead(self, now: Instant, actions: list[ServerAction]) -> None:
        """Choose the run that follows the next run to end, or set the wakeup for it; skip runs that are overdue."""
        lead_ns = self._lag.high_ns(now)
        while self._busy and (soonest := self._runs.soonest()) is not None:
            after, end = soonest
            if end - lead_ns > now:
                self._hold = end - lead_ns if self._hold is None else min(self._hold, end - lead_ns)
                return
            if end + lead_ns < now:
                return
            choice = self._schedule.next(self._view_of(*self._runs.without(after), now))
            if isinstance(choice, StartRun):
                self._run(choice, now, actions, after)
            elif isinstance(choice, RejectQueued):
                self._reject_queued(choice, now, actions)
            else:
                return

    def _run(self, choice: StartRun, now: Instant, actions: list[ServerAction], after: int = 0) -> None:
        queue = self._queues[choice.key]
        requests = queue.take(choice.requests)
        units = choice.units
        for queued in requests:
            del self._queue_of[queued.request]
        queue.running += 1
        self._next_run += 1
        number = self._next_run
        lasts_ns = queue.expected_ns(choice.rows, units or self.settings.units)
        deadlines = tuple(queued.deadline for queued in requests)
        cores = self._runs.begin(number, queue, choice, lasts_ns, deadlines, now, after)
        request_numbers = tuple(queued.request for queued in requests)
        actions.append(
            Run(self.turn, number, queue.spec.name, queue.key, request_numbers, choice.rows, units, cores, after)
        )
        self._update_tables(queue, actions)

    def _reject_queued(self, choice: RejectQueued, now: Instant, actions: list[ServerAction]) -> None:
        queue = self._queues[choice.key]
        for queued in queue.take(choice.requests):
            del self._queue_of[queued.request]
            reason, detail = RejectReason.TOO_LATE, "it can no longer be answered in time"
            if not choice.is_late:
                reason, detail = (
                    RejectReason.OVER_SHARE,
                    "the device is overloaded: a run of later requests answers more",
                )
            self._refuse(actions, queued.request, reason, detail, _retry_after_ns(queued, now))
        self._update_tables(queue, actions)


def _retry_after_ns(late: QueuedRequest, now: Instant) -> Duration:
    """Return a retry delay: at least the time that this request waited."""
    return max(now - late.since, 0) or _RETRY_UNKNOWN_NS
