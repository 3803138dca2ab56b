"""Who stands between the protocols and the machine? Takes requests in, has them run, gives answers out.

All of it on the loop's own thread, to which a runtime comes back with what it ran. An event that arises inside a
turn is handled after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import (
    Arrived,
    Cancelled,
    Draining,
    Finished,
    ModelLeaving,
    ModelReady,
    Run,
    ServerEvent,
    Tick,
    TurnAway,
)
from cotenant.domain.trace import End
from cotenant.format.answer import output_of
from cotenant.format.infer import InferError, InferRequest, check, plan_of, shown
from cotenant.format.tensor import Array, size_of
from cotenant.host import ServerHost
from cotenant.live.clock import LiveClock, unix_ns
from cotenant.live.serve.beliefs import beliefs_of
from cotenant.live.serve.figures import ModelFigures
from cotenant.live.serve.model import Runnable
from cotenant.live.serve.pending import REFUSED_AS, Looks, Pending, Reply, Served
from cotenant.live.serve.regions import Regions
from cotenant.live.serve.runtime import ModelRuntime, times_at, widths_ahead
from cotenant.live.serve.spans import Spans
from cotenant.live.serve.team import CrewFigures
from cotenant.live.serve.work import Flow, Job, Outcome, carry_out, failure_of
from cotenant.machine.server import ServerMachine, ServerSettings


class Engine:
    """One server: its models, its requests, its machine."""

    def __init__(
        self,
        settings: ServerSettings,
        runtime: ModelRuntime,
        loop: asyncio.AbstractEventLoop,
        held_limit_bytes: int = 1 << 30,
        spans: Path | None = None,
        *,
        regions: Regions | None = None,
        always: bool = False,
    ) -> None:
        """Nothing is served yet; spans are written in a file of that directory while somebody looks, or always."""
        self._held_limit_bytes = held_limit_bytes
        self._held_bytes = 0
        self._clock = LiveClock()
        self._loop = loop
        self._machine = ServerMachine(settings)
        self._host = ServerHost(self._machine, self, self)
        self._runtime = runtime
        runtime.begin(loop, self._ended, self._part)
        self._models: dict[int, Runnable] = {}
        self._serving: dict[str, Served] = {}
        self._pending: dict[int, Pending] = {}
        self._queue: deque[ServerEvent] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant = 0
        self._next_request = 0
        self._next_key = 0
        self._when_drained: list[Callable[[], None]] = []
        self.regions = regions or Regions(held_limit_bytes)
        self.spans = Spans(spans, self._clock.offset_ns, always=always)
        self.figures: dict[str, ModelFigures] = {}
        self.under_way: dict[int, Run] = {}
        self.all_units = settings.units
        self.loop_lag_ns: Duration = 0
        """How late the loop was of late."""
        self.draining = False

    # Models.

    def serve(self, model: Runnable, times: RunTimes | None = None) -> None:
        """Serve this loading from now on, with its profile; one of the same name ends with the requests it has."""
        self._next_key += 1
        self._models[self._next_key] = model
        figures = self.figures.setdefault(model.spec.name, ModelFigures())
        times = times_at(times, self._runtime.widths(model))
        self._runtime.prepare(model, widths_ahead(self._machine.settings, model.spec, times))
        self._serving[model.spec.name] = Served(model, plan_of(model.spec), figures, Looks())
        self.post(ModelReady(model.spec, self._next_key, times))

    def withdraw(self, name: str) -> None:
        """Take no more requests for a model."""
        if self._serving.pop(name, None) is not None:
            self.post(ModelLeaving(name))

    def model(self, name: str, version: str = "") -> Runnable:
        """The model of that name, if it is served."""
        return self._find(name, version).model

    def _find(self, name: str, version: str) -> Served:
        found = self._serving.get(name)
        if found is None:
            raise InferError(f"no model {shown(name)} is served here", "not-found")
        if version and version != found.plan.spec.version:
            said = f"model {name!r} is served in version {found.plan.spec.version}"
            raise InferError(f"{said}, not in {shown(version)}", "not-found")
        return found

    def unix_ms(self, instant: Instant) -> int:
        """An instant of the engine by the wall clock; zero for one that never was."""
        return (unix_ns() - (self._clock.now() - instant)) // 1_000_000 if instant else 0

    def names(self) -> list[str]:
        """Of the models that are served."""
        return sorted(self._serving)

    # Requests.

    def submit(self, request: InferRequest, reply: Reply, timeout_ns: Duration = 0) -> int:
        """Take a request in; returns its number, 0 if it is answered already.

        One that does not fit its model is an `InferError`.
        """
        model, plan, figures, looks = self._find(request.model, request.version)
        spec = plan.spec
        if spec.decoupled and not reply.streams:
            raise InferError(f"model {spec.name!r} is decoupled: ask it by ModelStreamInfer, over gRPC", "unsupported")
        checked = self.regions.filled(spec.inputs, request, check(plan, request))
        pending = Pending(request, model, checked, figures, reply)
        size = pending.size_bytes = size_of(checked.arrays)
        patience_ns = min(request.timeout_ns or timeout_ns, timeout_ns or request.timeout_ns)
        objective_ns = pending.patience_ns = patience_ns or spec.slo_ns
        if objective_ns:
            figures.offered += 1
        held_up = spec.decoupled or self._machine.waiting or self.draining or self._busy
        if not held_up and model.is_quick(size):
            self._answer_at_once(pending)
            return 0
        if self._held_bytes + size > self._held_limit_bytes:
            text = f"tensors of {self._held_bytes} bytes are held for requests, {self._held_limit_bytes} are the limit"
            raise InferError(text, "exhausted", SECOND_NS)
        self._held_bytes += size
        pending.request = request._replace(inputs=())  # lists of JSON would be held beside the arrays made of them
        self._next_request += 1
        number = pending.number = self._next_request
        pending.arrived = self._clock.now()
        self._pending[number] = pending
        look = looks.number(checked.shapes)
        pending.admitted = True
        try:
            self.post(Arrived(number, request.model, checked.rows, look, request.priority, patience_ns))
        except Exception:
            pending.reply = None  # the sender hears of this, and of nothing else
            raise
        if objective_ns and pending.admitted:
            figures.admitted += 1
        return number

    def _answer_at_once(self, pending: Pending) -> None:
        """A run that is shorter than a decision about it: nobody waits, so nobody is overtaken, and no core is held."""
        began = pending.arrived = self._clock.now()
        pending.figures.admitted += pending.patience_ns > 0
        try:
            arrays = pending.model.run(pending.checked.arrays)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  whatever a model does, it is the model's failure
            self._fail(pending, InferError(failure_of(pending.model, error), "fault"))
            return
        ended = self._clock.now()
        took_ns = ended - began
        figures = pending.figures
        figures.queue.count += 1
        figures.compute.add(took_ns)
        figures.ran(pending.checked.rows, took_ns)
        pending.model.took_at_once(took_ns)
        if self._answer(pending, arrays):
            self._succeed(pending, began, ended)

    def cancel(self, number: int) -> None:
        """Nobody waits for it any more: it is not run, or its answer is dropped."""
        pending = self._pending.get(number)
        if pending is None or pending.reply is None:
            return
        if self._busy:  # a turn may be about to run it
            self._loop.call_soon(self.cancel, number)
            return
        pending.reply = None
        pending.figures.cancelled += 1
        if pending.flow is not None:
            pending.flow.end()
        if not pending.started:
            self._trace(pending, End.CANCELLED, self._clock.now())
            self._forget(number)
            self.post(Cancelled(number))

    def _forget(self, number: int) -> Pending:
        pending = self._pending.pop(number)
        self._held_bytes -= pending.size_bytes
        return pending

    # Turns.

    def post(self, event: ServerEvent) -> None:
        """Handle an event now, or right after the turn that is going on."""
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        wake = None
        try:
            while self._queue:
                wake = self._host.turn(self._queue.popleft(), self._clock.now())
        finally:
            self._busy = False
        if wake is not None and (self._timer is None or wake < self._timer_at):
            self._arm(wake)

    def _arm(self, wake: Instant) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        self._timer = self._loop.call_later(max(wake - self._clock.now(), 0) / SECOND_NS, self._woke)

    def _woke(self) -> None:
        self._timer = None
        self.post(Tick())
        wake = self._machine.next_wakeup()
        if wake is not None and self._timer is None:
            self._arm(wake)

    def drain(self, then: Callable[[], None]) -> None:
        """Take nothing more, and say when all that was taken is answered."""
        self.draining = True
        self._when_drained.append(then)
        self.post(Draining())

    def workers(self) -> CrewFigures | None:
        """What became of worker processes, where there are any."""
        return self._runtime.figures()

    async def settled(self) -> None:
        """Until all that was prepared is ready, as far as it can be."""
        await self._runtime.settled()

    def close(self, *, patient: bool = True) -> None:
        """End the workers, after what they have, if we are patient."""
        if self._timer is not None:
            self._timer.cancel()
        self._runtime.close(patient=patient)
        self.spans.close()

    # What the machine decides: the ports `Runtime` and `Desk`.

    def start(self, run: Run) -> None:
        """Have a batch run, here if it is quick and where the runtime has it otherwise."""
        now = self._clock.now()
        parts: list[Sequence[Any]] = []
        rows = []
        size_bytes = 0
        for number in run.requests:
            pending = self._pending[number]
            pending.started = now
            pending.figures.queue.add(now - pending.arrived)
            parts.append(pending.checked.arrays)
            rows.append(pending.checked.rows)
            size_bytes += pending.size_bytes
        model = self._models[run.key]
        job = Job(run, model, parts, rows)
        if model.spec.decoupled:
            flow = self._pending[run.requests[0]].flow = Flow()
            job = job._replace(flow=flow)
        self.under_way[run.run] = run
        if model.is_quick(size_bytes):
            self._ended(carry_out(job, self._part))
        else:
            self._runtime.give(job)

    def release(self, model: str, key: int) -> None:
        """Let go of a loading."""
        del model
        self._models.pop(key).close()

    def turn_away(self, refusal: TurnAway) -> None:
        """Tell a request's sender no."""
        pending = self._forget(refusal.request)
        pending.admitted = False
        refused = pending.figures.refused
        refused[refusal.why.value] = refused.get(refusal.why.value, 0) + 1
        self._fail(pending, InferError(refusal.detail, REFUSED_AS[refusal.why], refusal.retry_after_ns))

    def drained(self) -> None:
        """Say so to whoever waits for it."""
        for then in self._when_drained:
            then()

    # What comes back.

    def _part(self, number: int, answer: Sequence[Array]) -> None:
        pending = self._pending[number]
        if pending.reply is not None:
            self._answer(pending, answer)
        if pending.flow is not None:
            pending.flow.taken()

    def _ended(self, outcome: Outcome) -> None:
        """The machine hears of it first, so that the next run begins before answers are written."""
        run = outcome.run
        self.under_way.pop(run.run, None)
        self.post(Finished(run.run, outcome.took_ns, bool(outcome.failure)))
        figures = self.figures[run.model]
        if not outcome.failure:
            figures.ran(run.rows, outcome.took_ns)
        for place, number in enumerate(run.requests):
            pending = self._forget(number)
            figures.compute.add(outcome.took_ns)
            pending.outcome = outcome
            if pending.reply is None:
                self._trace(pending, End.CANCELLED, self._clock.now())
                continue
            if outcome.failure:
                self._fail(pending, InferError(outcome.failure, "fault"))
            elif pending.model.spec.decoupled:
                self._succeed(pending)
                pending.reply.over()
            elif self._answer(pending, outcome.answers[place]):
                self._succeed(pending)

    def _answer(self, pending: Pending, arrays: Sequence[Array]) -> bool:
        spec = pending.model.spec
        reply = pending.reply
        assert reply is not None
        try:
            outputs = output_of(spec, pending.request, arrays)
            for place, output in enumerate(outputs):
                if output.place is not None:
                    outputs[place] = self.regions.put(output)
            reply.done(pending.request, spec, outputs)
        except InferError as error:
            self._fail(pending, error)
            return False
        except Exception as error:  # noqa: BLE001  an output that cannot be written is the model's failure, too
            self._fail(pending, InferError(failure_of(pending.model, error), "fault"))
            return False
        return True

    def _succeed(self, pending: Pending, began: Instant = 0, ended: Instant = 0) -> None:
        now = self._clock.now()
        took_ns = now - pending.arrived
        figures = pending.figures
        figures.last = now
        figures.succeeded.add(took_ns)
        figures.took.record(took_ns)
        if pending.patience_ns:
            figures.in_time += took_ns <= pending.patience_ns
        if pending.outcome is not None:
            figures.lag.add(now - self._clock.offset_ns - pending.outcome.ended)
        self._trace(pending, End.ANSWERED, now, began, ended)

    def _trace(self, pending: Pending, end: End, now: Instant, began: Instant = 0, ended: Instant = 0) -> None:
        if self.spans.wanted(now):
            self.spans.write(pending, end, now, began, ended)

    def _fail(self, pending: Pending, error: InferError) -> None:
        now = self._clock.now()
        pending.figures.failed.add(now - pending.arrived)
        self._trace(pending, End.FAILED if error.kind == "fault" else End.REFUSED, now)
        if pending.flow is not None:
            pending.flow.end()
        if pending.reply is not None:
            pending.reply.failed(error)
            pending.reply = None

    def plan(self) -> ServePlan | None:
        """What the policy intends, where it plans at all."""
        return self._machine.plan()

    def beliefs(self) -> dict[str, Any]:
        """What the policy intends, and what it believes of each model."""
        return beliefs_of(self._machine)

    @property
    def waiting(self) -> dict[str, int]:
        """Requests in the queues, by model."""
        found = dict.fromkeys(self._serving, 0)
        for lane in self._machine.lanes():
            found[lane.spec.name] = found.get(lane.spec.name, 0) + len(lane.waiting)
        return found
