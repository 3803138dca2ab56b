"""Pool of all worker processes of one GPU: started in advance, restarted after failures, limited in number.

A run of width w is done by a worker that is limited to w percent of the SMs; while none is ready, by the widest
narrower one of at least half of that, or it waits. If a worker dies, its run is tried again, because the death of one
client of MPS may end others whose runs are well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.runner.clock import monotonic_ns
from cotenant.serve.runtime.gpu.model_workers import (
    ModelWorkers,
    WidthState,
    WorkerModel,
    WorkerStatistics,
    WorkerTask,
)
from cotenant.serve.runtime.gpu.shared_tensors import (
    BatchFailure,
    BatchResult,
    CheckDevice,
    RunBatch,
    WorkerFailure,
    WorkerReady,
    send,
    write_tensors,
)
from cotenant.serve.runtime.gpu.worker_handle import WorkerHandle
from cotenant.serve.runtime.threads import Job, ReportResult, RunResult, split
from cotenant.units.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant

_CHECK_INTERVAL_S: Final = 0.25
_BACKOFF_NS: Final = 200 * MILLISECOND_NS
_BACKOFF_CAP_NS: Final = 30 * SECOND_NS
_STABLE_NS: Final = 30 * SECOND_NS
"""A worker that ran this long resets the failure count."""
_FAILURES_LIMIT: Final = 3
"""Consecutive failed starts after which waiting runs fail of a width that was never ready.

If it was ready, the starts fail because something kills the workers. Runs then wait until their deadline or until the
starts have failed for as long as a run may take; other models may wait for the units of such a run.
"""
_TRIES_LIMIT: Final = 4
"""Times that a run is started. Our choice: one death may end several workers, one after the other, of the same run."""
_RETRY_NS: Final = SECOND_NS
"""Minimum time after which clients may send a request again whose worker died."""


class WorkerLimits(NamedTuple):
    """Limits of the pool."""

    workers: int
    """Maximum workers over all models."""
    run_ns: Duration
    """Time after which a run is abandoned and its worker terminated."""
    start_ns: Duration
    """Time within which a worker must be ready."""


class WorkerPool:
    """The workers of one GPU. All methods run on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: WorkerLimits,
        report_result: ReportResult,
        report: Callable[[str], None],
    ) -> None:
        """Start without workers."""
        self._loop = loop
        self._limits = limits
        self._report_result = report_result
        self._report = report
        self._models: dict[int, ModelWorkers] = {}  # by id() of the model, which is alive while it is here
        self._tasks: dict[WorkerHandle, WorkerTask] = {}
        self._disconnected: list[WorkerHandle] = []
        self._ending: dict[
            asyncio.Future[None], WorkerHandle
        ] = {}  # a thread is terminating it, so its handle must not be closed
        self._started_at: dict[WorkerHandle, Instant] = {}
        self._waits = self._waited_ns = self._narrower = self._ended = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._check_timer: asyncio.TimerHandle | None = loop.call_later(_CHECK_INTERVAL_S, self._check_workers)

    @property
    def count(self) -> int:
        """Return the number of workers, ready or not."""
        return sum(len(workers.handles) for workers in self._models.values())

    def statistics(self) -> WorkerStatistics:
        """Return the pool's counters."""
        return WorkerStatistics(self.count, self._waits, self._waited_ns, self._narrower, self._ended)

    def widths(self) -> list[int]:
        """Return the widths of all workers, ready or not."""
        return sorted(handle.width for workers in self._models.values() for handle in workers.handles)

    # Models.

    def add_model(self, model: WorkerModel, first: WorkerHandle | None = None) -> None:
        """Add a model; `first` is the worker that was started to load it."""
        workers = self._models.setdefault(id(model), ModelWorkers(model))
        if first is not None:
            workers.width_state(first.width).wanted = 1
            self._watch(workers, first)
            self._worker_ready(workers, first)

    def request_workers(self, model: WorkerModel, workers_for: Mapping[int, int]) -> None:
        """Request this many workers at each width, up to the limit; first one of each."""
        workers = self._models[id(model)]
        for count in range(1, max(workers_for.values(), default=0) + 1):
            for width, most in workers_for.items():
                width_state = workers.width_state(width)
                width_state.wanted = max(width_state.wanted, min(count, most))
            self._start_wanted(workers)

    def remove_model(self, model: WorkerModel) -> None:
        """Remove a model without runs, and release its workers."""
        workers = self._models.pop(id(model), None)
        if workers is None:
            return
        for task in workers.waiting:
            self._fail(task, "the model is gone", _RETRY_NS)
        for worker in list(workers.handles):
            self._release_worker(workers, worker)

    def can_run(self, model: WorkerModel) -> bool:
        """Return whether a worker of this model is ready."""
        workers = self._models.get(id(model))
        return workers is not None and any(handle.ready is not None for handle in workers.handles)

    def retry_after_ns(self, model: WorkerModel) -> Duration:
        """Return after which time to send requests for a model whose workers are restarted with back-off; 0: now."""
        workers = self._models.get(id(model))
        if workers is None or self.can_run(model):
            return 0
        now = monotonic_ns()
        restarting = [
            max(width_state.not_before - now, _RETRY_NS)
            for width, width_state in workers.by_width.items()
            if now < width_state.not_before or (width_state.failed_starts and workers.handles_at(width))
        ]
        return min(restarting, default=0)

    async def settled(self) -> None:
        """Wait until no worker is starting."""
        await self._settled.wait()

    def _settle(self) -> None:
        if all(handle.ready is not None for workers in self._models.values() for handle in workers.handles):
            self._settled.set()
        else:
            self._settled.clear()

    def close(self) -> None:
        """Stop all workers."""
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        for workers in list(self._models.values()):
            self.remove_model(workers.model)
        for worker in self._disconnected:
            worker.end()
            worker.close()
        self._disconnected.clear()

    # Runs.

    def submit(self, job: Job, width: int) -> None:
        """Start a run or queue it; its result is reported in any case."""
        workers = self._models[id(job.model)]
        task = WorkerTask(job, width)
        worker = self._free(workers, width)
        if worker is None or worker.width != width:
            self._want_more(workers, width)
        if worker is None:
            self._waits += 1
            workers.waiting.append(task)
        else:
            self._begin(workers, worker, task)

    def _free(self, workers: ModelWorkers, width: int) -> WorkerHandle | None:
        widest: WorkerHandle | None = None
        for handle in workers.handles:
            if handle.ready is None or handle in self._tasks or not width <= 2 * handle.width <= 2 * width:
                continue
            if widest is None or handle.width > widest.width:
                widest = handle
        return widest

    def _want_more(self, workers: ModelWorkers, width: int) -> None:
        """Request one more worker of a width if all of them are busy."""
        width_state = workers.width_state(width)
        handles = workers.handles_at(width)
        if all(handle in self._tasks for handle in handles):
            width_state.wanted = max(width_state.wanted, len(handles) + 1)
            self._start_wanted(workers)

    def _begin(self, workers: ModelWorkers, worker: WorkerHandle, task: WorkerTask) -> None:
        job = task.job
        spec = workers.model.spec
        try:
            locations, descriptor = write_tensors(spec.inputs, list(zip(*job.parts, strict=True)), worker.inputs_memory)
        except (ValueError, OSError, MemoryError) as error:
            self._fail(task, str(error))
            return
        now = monotonic_ns()
        self._waited_ns += now - task.began
        self._narrower += worker.width < task.width
        task.began = now
        self._tasks[worker] = task
        try:
            worker.send_batch(RunBatch(job.run.run, job.run.rows, task.began, locations, *workers.names), descriptor)
        except OSError:
            self._worker_lost(workers, worker)

    def _fail(self, task: WorkerTask, reason: str, retry_after_ns: Duration = 0) -> None:
        failure = f"model {task.job.model.spec.name!r} failed: {reason}"
        now = monotonic_ns()
        self._report_result(RunResult(task.job.run, (), failure, now - task.began, now, retry_after_ns))

    def _retry_after_ns(self, width_state: WidthState) -> Duration:
        """Return the time until workers of a width are started again."""
        return max(width_state.not_before - monotonic_ns(), _RETRY_NS)

    def _start_next(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        """Start the longest waiting run that a free worker may run."""
        for index, task in enumerate(workers.waiting):
            if task.width <= 2 * worker.width <= 2 * task.width:
                del workers.waiting[index]
                self._begin(workers, worker, task)
                return

    # Messages from workers.

    def _watch(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        workers.handles.append(worker)
        self._started_at[worker] = monotonic_ns()
        worker.channel.setblocking(False)
        self._loop.add_reader(worker.channel.fileno(), self._receive, workers, worker)
        self._settle()

    def _receive(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        try:
            message = worker.receive()
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError) as error:  # not a valid message
            worker.kill()
            self._worker_lost(workers, worker, str(error))
            return
        if isinstance(message, BatchResult):
            self._batch_done(workers, worker, message)
        elif isinstance(message, BatchFailure):
            self._batch_failed(workers, worker, message)
        elif isinstance(message, WorkerReady):
            self._worker_ready(workers, worker)
        elif message is None or isinstance(message, WorkerFailure):
            self._worker_lost(workers, worker, "" if message is None else message.why)

    def _worker_ready(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        self._loop.add_reader(worker.pidfd, self._died, workers, worker)
        width_state = workers.width_state(worker.width)
        width_state.last_error = ""
        width_state.failed_starts = 0
        width_state.was_ready = True
        self._settle()
        self._start_next(workers, worker)

    def _batch_done(self, workers: ModelWorkers, worker: WorkerHandle, message: BatchResult) -> None:
        """Copy the outputs, start the worker's next run, then report the result."""
        task = self._tasks.pop(worker)
        job = task.job
        failure = ""
        answers: Sequence[Sequence[Any]] = ()
        try:
            outputs = [worker.tensor(location) for location in message.tensors]
            answers = [outputs] if len(job.parts) == 1 else split(job.model, outputs, job.rows)
        except ValueError as error:
            failure = f"model {workers.model.spec.name!r} failed: {error}"
        worker.idle_since = monotonic_ns()
        self._start_next(workers, worker)
        self._report_result(RunResult(job.run, answers, failure, message.took_ns, monotonic_ns()))

    def _batch_failed(self, workers: ModelWorkers, worker: WorkerHandle, message: BatchFailure) -> None:
        if message.is_last:
            self._worker_lost(workers, worker, message.why)
            return
        task = self._tasks.pop(worker)
        self._start_next(workers, worker)
        self._fail(task, message.why)

    def _died(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        """Handle the end of a process; read its last messages first."""
        while worker in workers.handles:
            try:
                message = worker.receive()
            except (OSError, ValueError):
                message = None
            if isinstance(message, BatchResult):
                self._batch_done(workers, worker, message)
            elif isinstance(message, BatchFailure | WorkerFailure):
                self._worker_lost(workers, worker, message.why)
            elif message is None:
                self._worker_lost(workers, worker)

    def _worker_lost(self, workers: ModelWorkers, worker: WorkerHandle, reason: str = "") -> None:
        """Replace a worker that is gone or unusable, and try its run again."""
        if worker not in workers.handles:
            return
        was_ready = worker.ready is not None
        self._ended += 1
        self._detach(workers, worker)
        reason = reason or worker.describe_end()
        width_state = workers.width_state(worker.width)
        if monotonic_ns() - self._started_at.pop(worker) > _STABLE_NS:
            width_state.failures = 0
        width_state.failures += 1
        if not was_ready:
            width_state.start_failed(monotonic_ns())
        width_state.last_error = reason
        width_state.not_before = monotonic_ns() + delay_ns(
            width_state.failures - was_ready, _BACKOFF_NS, _BACKOFF_CAP_NS
        )
        name = f"the worker of {workers.model.spec.name!r} at {worker.width} %"
        self._report(f"{name} {'ended' if was_ready else 'cannot start'}: {reason}; it will be restarted")
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.tries += 1
            if task.tries >= _TRIES_LIMIT:
                text = f"{name} ended while it ran, {task.tries} times: {reason}"
                self._fail(task, text, self._retry_after_ns(width_state))
            else:
                workers.waiting.appendleft(task)
        self._check_others()
        self._start_wanted(workers)

    def _check_others(self) -> None:
        """Check idle workers: under MPS, a fault of one client may have taken the device from others.

        MPS accepts no new client until those have ended, so that this is also done after a failed start.
        """
        for workers in list(self._models.values()):
            for worker in list(workers.handles):
                if worker.ready is not None and worker not in self._tasks:
                    try:
                        send(worker.channel, CheckDevice())
                    except OSError:
                        self._worker_lost(workers, worker)

    # Number of workers.

    def _start_wanted(self, workers: ModelWorkers) -> None:
        """Start the wanted workers; at the limit, replace the worker that was idle longest."""
        now = monotonic_ns()
        for width, width_state in workers.by_width.items():
            while len(workers.handles_at(width)) < width_state.wanted and now >= width_state.not_before:
                if self.count >= self._limits.workers and not self._evict_idle(workers, width):
                    break  # tried again when there is capacity
                try:
                    self._watch(workers, workers.model.start_worker(width))
                except OSError as error:
                    width_state.last_error = str(error)
                    width_state.failures += 1
                    width_state.start_failed(now)
                    width_state.not_before = now + delay_ns(width_state.failures, _BACKOFF_NS, _BACKOFF_CAP_NS)

    def _evict_idle(self, workers: ModelWorkers, width: int) -> bool:
        """Release the longest idle worker for a waiting run; workers started in advance displace none."""
        if not any(task.width == width for task in workers.waiting) or self._free(workers, width) is not None:
            return False
        idle = [
            (handle.idle_since, index, owner, handle)
            for index, owner in enumerate(self._models.values())
            for handle in owner.handles
            if handle not in self._tasks and handle.ready is not None
        ]
        if not idle:
            return False
        _, _, owner, worker = min(idle, key=lambda entry: entry[:2])
        owner.width_state(worker.width).wanted -= 1
        self._release_worker(owner, worker)
        return True

    def _release_worker(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        self._detach(workers, worker)
        self._started_at.pop(worker, None)

    def _detach(self, workers: ModelWorkers, worker: WorkerHandle) -> None:
        workers.handles.remove(worker)
        self._loop.remove_reader(worker.channel.fileno())
        if worker.ready is not None and worker.pidfd >= 0:
            self._loop.remove_reader(worker.pidfd)
        worker.disconnect()
        self._disconnected.append(worker)
        self._settle()

    def _check_workers(self) -> None:
        """Terminate hung workers, retry failed starts, and close the handles of ended processes."""
        self._check_timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check_workers)
        now = monotonic_ns()
        for workers in list(self._models.values()):
            for worker in list(workers.handles):
                task = self._tasks.get(worker)
                if task is not None and now - task.began > self._limits.run_ns:
                    self._abandon_run(workers, worker, task)
                elif worker.ready is None and now - self._started_at[worker] > self._limits.start_ns:
                    worker.kill()
                    self._worker_lost(workers, worker, "it was not ready in time")
            self._abandon_waiting(workers, now)
            self._start_wanted(workers)
        for worker in list(self._disconnected):
            if worker.process.poll() is not None and worker not in self._ending.values():
                worker.close()
                self._disconnected.remove(worker)

    def _abandon_run(self, workers: ModelWorkers, worker: WorkerHandle, task: WorkerTask) -> None:
        """Fail a run that takes too long; its worker is terminated in a thread, since that takes a while."""
        del self._tasks[worker]
        termination = self._loop.run_in_executor(None, workers.model.terminate, worker)
        self._ending[termination] = worker
        termination.add_done_callback(self._ending.pop)
        self._fail(task, f"a run of {task.job.run.rows} rows took longer than {self._limits.run_ns / SECOND_NS:g} s")
        self._worker_lost(workers, worker, "its run took too long")

    def _abandon_waiting(self, workers: ModelWorkers, now: Instant) -> None:
        for task in list(workers.waiting):
            width_state = workers.width_state(task.width)
            hopeless = width_state.failed_starts >= _FAILURES_LIMIT and not workers.handles_at(task.width)
            if hopeless and width_state.was_ready and now - width_state.failing_since <= self._limits.run_ns:
                hopeless = task.job.deadline != NEVER and now >= task.job.deadline
            if hopeless or now - task.began > self._limits.run_ns:
                workers.waiting.remove(task)
                reason = f"no worker of {task.width} % is ready: {width_state.last_error or 'all are busy'}"
                self._fail(task, reason, self._retry_after_ns(width_state))
