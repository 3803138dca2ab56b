"""Engine: connects the protocols with the state machine, starts runs and sends responses.

Everything happens on the event loop's thread, including the reports of the runtime. An event that arises while another
one is handled is handled after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotenant.runner.clock import LiveClock, unix_ns
from cotenant.serve.frontend.pending import REFUSED_AS, PendingRequest, Reply, ServedModel, ShapeNumbers
from cotenant.serve.frontend.plan_report import plan_report
from cotenant.serve.frontend.shared_memory import SharedMemoryRegions
from cotenant.serve.frontend.spans import SpanWriter
from cotenant.serve.frontend.statistics import ModelStatistics
from cotenant.serve.host import ServerHost
from cotenant.serve.model.event import (
    DrainRequested,
    ModelReady,
    ModelWithdrawn,
    RejectRequest,
    RequestArrived,
    RequestCancelled,
    Run,
    RunFinished,
    ServerEvent,
    Tick,
)
from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, check, quoted, signature_of
from cotenant.serve.protocol.oip.response import requested_outputs
from cotenant.serve.protocol.oip.tensor import Array, size_of
from cotenant.serve.runtime.gpu.model_workers import WorkerStatistics
from cotenant.serve.runtime.model import LoadedModel
from cotenant.serve.runtime.runtime import ModelRuntime, times_at, widths_ahead
from cotenant.serve.runtime.threads import Job, ResponseFlow, RunResult, execute, failure_of
from cotenant.serve.state.server import ServerMachine, ServerSettings
from cotenant.trace.recording import RequestEnd
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant


class Engine:
    """One server: its models, its pending requests and its state machine."""

    def __init__(
        self,
        settings: ServerSettings,
        runtime: ModelRuntime,
        loop: asyncio.AbstractEventLoop,
        held_limit_bytes: int = 1 << 30,
        spans: Path | None = None,
        *,
        regions: SharedMemoryRegions | None = None,
        always: bool = False,
    ) -> None:
        """Start without models; spans are written to a file of the directory while a reader is active, or always."""
        self._held_limit_bytes = held_limit_bytes
        self._held_bytes = 0
        self._clock = LiveClock()
        self._loop = loop
        self._machine = ServerMachine(settings)
        self._host = ServerHost(self._machine, self, self)
        self._runtime = runtime
        runtime.begin(loop, self._run_ended, self._send_response)
        self._models: dict[int, LoadedModel] = {}
        self._served: dict[str, ServedModel] = {}
        self._pending: dict[int, PendingRequest] = {}
        self._events: deque[ServerEvent] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant = 0
        self._next_request = 0
        self._next_key = 0
        self._drain_callbacks: list[Callable[[], None]] = []
        self.regions = regions or SharedMemoryRegions(held_limit_bytes)
        self.spans = SpanWriter(spans, self._clock.offset_ns, always=always)
        self.statistics: dict[str, ModelStatistics] = {}
        self.active_runs: dict[int, Run] = {}
        self.all_units = settings.units
        self.loop_lag_ns: Duration = 0
        """Recent maximum delay of the event loop."""
        self.draining = False

    # Models.

    def serve(self, model: LoadedModel, times: RunTimes | None = None) -> None:
        """Serve this loaded instance with its profile; an instance of the same name ends with the requests it has."""
        self._next_key += 1
        self._models[self._next_key] = model
        statistics = self.statistics.setdefault(model.spec.name, ModelStatistics())
        times = times_at(times, self._runtime.widths(model))
        self._runtime.prepare(model, widths_ahead(self._machine.settings, model.spec, times))
        self._served[model.spec.name] = ServedModel(model, signature_of(model.spec), statistics, ShapeNumbers())
        self.post(ModelReady(model.spec, self._next_key, times))

    def withdraw(self, name: str) -> None:
        """Accept no more requests for a model."""
        if self._served.pop(name, None) is not None:
            self.post(ModelWithdrawn(name))

    def model(self, name: str, version: str = "") -> LoadedModel:
        """Return a served model; raise `InferError` if there is none of that name."""
        return self._find(name, version).model

    def _find(self, name: str, version: str) -> ServedModel:
        served = self._served.get(name)
        if served is None:
            raise InferError(
                f"Request for unknown model: {quoted(name)} is not served", "not-found"
            )  # clients compare it
        if version and version != served.signature.spec.version:
            current = f"model {name!r} is served in version {served.signature.spec.version}"
            raise InferError(f"{current}, not in {quoted(version)}", "not-found")
        return served

    def can_serve(self, name: str) -> bool:
        """Return whether a request for this model would be run."""
        served = self._served.get(name)
        return served is not None and not self.draining and self._runtime.can_run(served.model)

    def unix_ms(self, instant: Instant) -> int:
        """Convert an instant of the engine to wall-clock time; zero stays zero."""
        return (unix_ns() - (self._clock.now() - instant)) // 1_000_000 if instant else 0

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return sorted(self._served)

    # Requests.

    def submit(self, request: InferRequest, reply: Reply, timeout_ns: Duration = 0) -> int:
        """Submit a request; return its number, or 0 if it was answered already.

        Raise `InferError` if it does not match its model.
        """
        model, signature, statistics, shape_numbers = self._find(request.model, request.version)
        spec = signature.spec
        if spec.decoupled and not reply.streams:
            raise InferError(f"model {spec.name!r} is decoupled: use ModelStreamInfer over gRPC", "unsupported")
        checked = self.regions.filled(spec.inputs, request, check(signature, request))
        pending = PendingRequest(request, model, checked, statistics, reply)
        size = pending.size_bytes = size_of(checked.arrays)
        limit_ns = min(request.timeout_ns or timeout_ns, timeout_ns or request.timeout_ns)
        objective_ns = pending.limit_ns = limit_ns or spec.slo_ns
        if objective_ns:
            statistics.offered += 1
        must_queue = spec.decoupled or self._machine.waiting or self.draining or self._busy
        if not must_queue and model.is_quick(size):
            self._answer_inline(pending)
            return 0
        if retry_after_ns := self._runtime.retry_after_ns(model):
            text = f"the workers of model {spec.name!r} ended and are being restarted"
            raise InferError(text, "unavailable", retry_after_ns)
        if self._held_bytes + size > self._held_limit_bytes:
            text = f"pending requests hold {self._held_bytes} bytes of tensors; the limit is {self._held_limit_bytes}"
            raise InferError(text, "exhausted", SECOND_NS)
        self._held_bytes += size
        pending.request = request._replace(inputs=())  # drop lists from JSON, which were converted to arrays
        self._next_request += 1
        number = pending.number = self._next_request
        pending.arrived = self._clock.now()
        self._pending[number] = pending
        shape_number = shape_numbers.number(checked.shapes)
        pending.admitted = True
        try:
            self.post(RequestArrived(number, request.model, checked.rows, shape_number, request.priority, limit_ns))
        except Exception:
            pending.reply = None  # the caller reports this error, and no other response follows
            raise
        if objective_ns and pending.admitted:
            statistics.admitted += 1
        return number

    def _answer_inline(self, pending: PendingRequest) -> None:
        """Run a very short request without a scheduling decision: no request is queued, so none is overtaken."""
        began = pending.arrived = self._clock.now()
        pending.statistics.admitted += pending.limit_ns > 0
        try:
            arrays = pending.model.run(pending.checked.arrays)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  any exception counts as the model's failure
            self._fail(pending, InferError(failure_of(pending.model, error), "fault"))
            return
        ended = self._clock.now()
        took_ns = ended - began
        statistics = pending.statistics
        statistics.queue.count += 1
        statistics.compute.add(took_ns)
        statistics.record_run(pending.checked.rows, took_ns)
        pending.model.record_inline_run(took_ns)
        if self._answer(pending, arrays):
            self._succeed(pending, began, ended)

    def cancel(self, number: int) -> None:
        """Cancel a request: it is not run, or its response is dropped."""
        pending = self._pending.get(number)
        if pending is None or pending.reply is None:
            return
        if self._busy:  # the event that is being handled may start its run
            self._loop.call_soon(self.cancel, number)
            return
        pending.reply = None
        pending.statistics.cancelled += 1
        if pending.response_flow is not None:
            pending.response_flow.end()
        if not pending.started:
            self._trace(pending, RequestEnd.CANCELLED, self._clock.now())
            self._forget(number)
            self.post(RequestCancelled(number))

    def _forget(self, number: int) -> PendingRequest:
        pending = self._pending.pop(number)
        self._held_bytes -= pending.size_bytes
        return pending

    # Events.

    def post(self, event: ServerEvent) -> None:
        """Handle an event now, or right after the one that is being handled."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        wake = None
        try:
            while self._events:
                wake = self._host.turn(self._events.popleft(), self._clock.now())
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

    def drain(self, callback: Callable[[], None]) -> None:
        """Accept no more requests; call back when all admitted ones are answered."""
        self.draining = True
        self._drain_callbacks.append(callback)
        self.post(DrainRequested())

    def workers(self) -> WorkerStatistics | None:
        """Return statistics of the worker processes, or None."""
        return self._runtime.worker_statistics()

    async def settled(self) -> None:
        """Wait until everything that was announced to the runtime is ready or has failed."""
        await self._runtime.settled()

    def close(self, *, patient: bool = True) -> None:
        """Stop the runtime, after its active runs if `patient`."""
        if self._timer is not None:
            self._timer.cancel()
        self._runtime.close(patient=patient)
        self.spans.close()

    # Actions of the state machine: the ports `Runtime` and `Responder`.

    def start(self, run: Run) -> None:
        """Start a run: on this thread if it is very short, otherwise in the runtime."""
        now = self._clock.now()
        parts: list[Sequence[Any]] = []
        rows = []
        size_bytes = 0
        deadlines: list[Instant] = []
        for number in run.requests:
            pending = self._pending[number]
            pending.started = now
            pending.statistics.queue.add(now - pending.arrived)
            parts.append(pending.checked.arrays)
            rows.append(pending.checked.rows)
            size_bytes += pending.size_bytes
            if pending.limit_ns:
                deadlines.append(pending.arrived + pending.limit_ns - self._clock.offset_ns)
        model = self._models[run.key]
        deadline = max(deadlines) if len(deadlines) == len(parts) else NEVER
        job = Job(run, model, parts, rows, deadline=deadline)
        if model.spec.decoupled:
            response_flow = self._pending[run.requests[0]].response_flow = ResponseFlow()
            job = job._replace(response_flow=response_flow)
        self.active_runs[run.run] = run
        if model.is_quick(size_bytes):
            self._run_ended(execute(job, self._send_response))
        else:
            self._runtime.submit(job)

    def release(self, model: str, key: int) -> None:
        """Release a loaded instance."""
        del model
        self._models.pop(key).close()

    def reject(self, refusal: RejectRequest) -> None:
        """Send a rejection to the client."""
        pending = self._forget(refusal.request)
        pending.admitted = False
        refused = pending.statistics.refused
        refused[refusal.why.value] = refused.get(refusal.why.value, 0) + 1
        self._fail(pending, InferError(refusal.detail, REFUSED_AS[refusal.why], refusal.retry_after_ns))

    def drained(self) -> None:
        """Call the callbacks of `drain`."""
        for callback in self._drain_callbacks:
            callback()

    # Results of runs.

    def _send_response(self, number: int, answer: Sequence[Array]) -> None:
        pending = self._pending[number]
        if pending.reply is not None:
            self._answer(pending, answer)
        if pending.response_flow is not None:
            pending.response_flow.response_sent()

    def _run_ended(self, result: RunResult) -> None:
        """Report to the state machine first, so that the next run starts before responses are written."""
        run = result.run
        self.active_runs.pop(run.run, None)
        self.post(RunFinished(run.run, result.took_ns, bool(result.failure)))
        statistics = self.statistics[run.model]
        if not result.failure:
            statistics.record_run(run.rows, result.took_ns)
        for index, number in enumerate(run.requests):
            pending = self._forget(number)
            statistics.compute.add(result.took_ns)
            pending.result = result
            if pending.reply is None:
                self._trace(pending, RequestEnd.CANCELLED, self._clock.now())
                continue
            if result.failure:
                kind = "unavailable" if result.retry_after_ns else "fault"
                self._fail(pending, InferError(result.failure, kind, result.retry_after_ns))
            elif pending.model.spec.decoupled:
                self._succeed(pending)
                pending.reply.end()
            elif self._answer(pending, result.answers[index]):
                self._succeed(pending)

    def _answer(self, pending: PendingRequest, arrays: Sequence[Array]) -> bool:
        spec = pending.model.spec
        reply = pending.reply
        assert reply is not None
        try:
            outputs = requested_outputs(spec, pending.request, arrays)
            for index, output in enumerate(outputs):
                if output.location is not None:
                    outputs[index] = self.regions.put(output)
            reply.send_response(pending.request, spec, outputs)
        except InferError as error:
            self._fail(pending, error)
            return False
        except Exception as error:  # noqa: BLE001  an output that cannot be written counts as the model's failure
            self._fail(pending, InferError(failure_of(pending.model, error), "fault"))
            return False
        return True

    def _succeed(self, pending: PendingRequest, began: Instant = 0, ended: Instant = 0) -> None:
        now = self._clock.now()
        took_ns = now - pending.arrived
        statistics = pending.statistics
        statistics.last_answer = now
        statistics.succeeded.add(took_ns)
        statistics.latencies.record(took_ns)
        if pending.limit_ns:
            statistics.in_time += took_ns <= pending.limit_ns
        if pending.result is not None:
            statistics.lag.add(now - self._clock.offset_ns - pending.result.ended)
        self._trace(pending, RequestEnd.ANSWERED, now, began, ended)

    def _trace(
        self, pending: PendingRequest, end: RequestEnd, now: Instant, began: Instant = 0, ended: Instant = 0
    ) -> None:
        if self.spans.is_read(now):
            self.spans.write(pending, end, now, began, ended)

    def _fail(self, pending: PendingRequest, error: InferError) -> None:
        now = self._clock.now()
        pending.statistics.failed.add(now - pending.arrived)
        self._trace(pending, RequestEnd.FAILED if error.kind == "fault" else RequestEnd.REFUSED, now)
        if pending.response_flow is not None:
            pending.response_flow.end()
        if pending.reply is not None:
            pending.reply.send_error(error)
            pending.reply = None

    def plan(self) -> ServePlan | None:
        """Return the policy's plan, or None if it does not plan."""
        return self._machine.plan()

    def plan_report(self) -> dict[str, Any]:
        """Return the policy's plan and its estimates for each model."""
        return plan_report(self._machine)

    @property
    def waiting(self) -> dict[str, int]:
        """Return the number of queued requests by model."""
        counts = dict.fromkeys(self._served, 0)
        for queue in self._machine.queues():
            counts[queue.spec.name] = counts.get(queue.spec.name, 0) + len(queue.waiting)
        return counts
