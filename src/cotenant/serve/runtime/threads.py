"""Threads that run models on cores, and the conversion between requests and batches."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.runner.clock import monotonic_ns, thread_ns
from cotenant.serve.model.event import Run
from cotenant.serve.protocol.oip.tensor import Array, size_of
from cotenant.serve.runtime.model import LoadedModel
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.units.text import round_duration

_STOP: Final = None
_RESPONSES_IN_FLIGHT: Final = 64
UNSHARED_LIMIT: Final = 64
"""Maximum concurrent unshared runs. Our choice: far more than any number of cores benefits from."""
ABANDONED_LIMIT: Final = 4
"""Abandoned runs of a model, each with its thread, at which no further one is started. Our choice."""
HUNG_RETRY_NS: Final = 60 * SECOND_NS
"""Time after which clients may send requests again that a model with too many abandoned runs has not run."""


class ResponseFlow:
    """Flow control between a decoupled run and its receiver: bounds the responses in flight, and ends the run."""

    __slots__ = ("_credits", "is_over")

    def __init__(self) -> None:
        """Start with a receiver."""
        self.is_over = False
        self._credits = threading.Semaphore(_RESPONSES_IN_FLIGHT)

    def wait(self) -> bool:
        """Wait until another response may be sent; return False if there is no receiver."""
        self._credits.acquire()
        return not self.is_over

    def response_sent(self) -> None:
        """Note that a response was sent."""
        self._credits.release()

    def end(self) -> None:
        """Note that the receiver is gone."""
        self.is_over = True
        self._credits.release()


class Job(NamedTuple):
    """A run with its model and inputs."""

    run: Run
    model: LoadedModel
    parts: Sequence[Sequence[Array]]
    """The inputs of each request, in the order of the model's inputs."""
    rows: Sequence[int]
    response_flow: ResponseFlow | None = None
    """Set for a decoupled model."""
    deadline: Instant = NEVER
    """When it is too late for all of its requests, by CLOCK_MONOTONIC."""


class RunResult(NamedTuple):
    """The outputs of each request, or the failure."""

    run: Run
    answers: Sequence[Sequence[Array]]
    failure: str
    took_ns: Duration
    ended: Instant
    """By CLOCK_MONOTONIC."""
    retry_after_ns: Duration = 0
    """Set if the run failed for want of a worker: the request may be sent again after this time."""


ReportResult: TypeAlias = Callable[[RunResult], None]
ReportResponse: TypeAlias = Callable[[int, Sequence[Array]], None]


def execute(job: Job, report_response: ReportResponse, cores: Sequence[int] | None = None) -> RunResult:
    """Run on the calling thread; report every response of a decoupled model.

    `cores` are the machine's cores to use; the calling thread is on the first one. Empty: all cores; None: this thread
    only.
    """
    began = monotonic_ns()
    cpu_began_ns = thread_ns()
    model = job.model
    size = sum(map(size_of, job.parts))
    answers: Sequence[Sequence[Array]] = ()
    failure = ""
    try:
        if model.spec.decoupled:
            for answer in model.stream(job.parts[0]):
                if job.response_flow is not None and not job.response_flow.wait():
                    break
                report_response(job.run.requests[0], answer)
        elif len(job.parts) == 1:
            answers = [model.run(job.parts[0], cores)]
        else:
            inputs = [np.concatenate(column) for column in zip(*job.parts, strict=True)]
            answers = split(model, model.run(inputs, cores), job.rows)
    except Exception as error:  # noqa: BLE001  any exception counts as the model's failure
        failure = failure_of(model, error)
    model.record_run(size, thread_ns() - cpu_began_ns)
    ended = monotonic_ns()
    return RunResult(job.run, answers, failure, ended - began, ended)


def failure_of(model: LoadedModel, error: Exception) -> str:
    """Return the message for clients about a model's failure."""
    return f"model {model.spec.name!r} failed: {str(error)[:500] or type(error).__name__}"


def split(model: LoadedModel, outputs: Sequence[Array], rows: Sequence[int]) -> list[list[Array]]:
    """Split the outputs of a batch by request."""
    total = sum(rows)
    for spec, array in zip(model.spec.outputs, outputs, strict=True):
        if array.shape[:1] != (total,):
            raise ValueError(f"output {spec.name!r} has shape {list(array.shape)} for a batch of {total} rows")
    answers = []
    begin = 0
    for count in rows:
        answers.append([array[begin : begin + count] for array in outputs])
        begin += count
    return answers


class _ActiveRun:
    """A run that a thread executes."""

    __slots__ = ("began", "cores", "is_abandoned", "job", "queue", "thread")

    def __init__(self, job: Job, cores: set[int], queue: SimpleQueue[Job | None]) -> None:
        self.job = job
        self.cores = cores
        self.queue = queue
        self.began = monotonic_ns()
        self.thread = threading.current_thread()
        self.is_abandoned = False


class CoreThreads:
    """One pinned thread per core; the thread of the first core leads a run on several cores.

    Unshared runs have threads of their own, which are created on demand. A thread cannot be stopped: if a run hangs,
    its thread is abandoned and another one takes its place.
    """

    def __init__(self, cores: Sequence[int], report_result: ReportResult, report_response: ReportResponse) -> None:
        """`cores` are the machine's core numbers; the callbacks are called on the worker's thread."""
        self._report_result = report_result
        self._report_response = report_response
        self._cores = tuple(cores)
        self._queues: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in cores]
        self._unshared: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = 0  # idle threads for unshared runs, minus the runs queued for them
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unshared_threads = 0
        self._active: set[_ActiveRun] = set()
        self._abandoned: Counter[int] = Counter()  # by id() of the model, which its runs keep alive
        for core, queue in zip(cores, self._queues, strict=True):
            self._start({core}, queue, f"core-{core}")

    def can_run(self, model: LoadedModel) -> bool:
        """Return False for a model with too many abandoned runs."""
        return self._abandoned[id(model)] < ABANDONED_LIMIT

    def abandon_hung(self, now: Instant, limit_ns: Duration) -> None:
        """Abandon runs that take longer than this; those of decoupled models may take any time."""
        with self._lock:
            hung = [
                active
                for active in tuple(self._active)  # at once: other threads add their runs meanwhile
                if now - active.began > limit_ns and not active.job.model.spec.decoupled
            ]
            for active in hung:
                active.is_abandoned = True
                self._active.remove(active)
                self._abandoned[id(active.job.model)] += 1
                self._threads.remove(active.thread)
        for active in hung:
            self._start(active.cores, active.queue, active.thread.name)
            limit = round_duration(limit_ns)
            failure = (
                f"model {active.job.model.spec.name!r} failed: its run takes longer than the {limit} of --run-limit"
            )
            self._report_result(RunResult(active.job.run, (), failure, now - active.began, now))

    def submit(self, job: Job) -> None:
        """Queue a run; fail it if too many runs of its model were abandoned."""
        if not self.can_run(job.model):
            failure = f"model {job.model.spec.name!r} cannot be run: {ABANDONED_LIMIT} of its runs hang"
            self._report_result(RunResult(job.run, (), failure, 0, monotonic_ns(), HUNG_RETRY_NS))
            return
        if job.run.cores:
            self._queues[job.run.cores[0]].put(job)
            return
        with self._lock:
            self._idle -= 1
            needs_thread = self._idle < 0 and self._unshared_threads < UNSHARED_LIMIT
            if needs_thread:
                self._unshared_threads += 1
                self._idle += 1
        if needs_thread:
            self._start(set(self._cores), self._unshared, f"any-{self._unshared_threads}")
        self._unshared.put(job)

    def stop(self) -> None:
        """Stop the threads after their queued runs."""
        for queue in self._queues:
            queue.put(_STOP)
        for _ in range(self._unshared_threads):
            self._unshared.put(_STOP)
        for thread in list(self._threads):
            thread.join()

    def _start(self, cores: set[int], queue: SimpleQueue[Job | None], name: str) -> None:
        thread = threading.Thread(target=self._work, args=(cores, queue), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, cores: set[int], queue: SimpleQueue[Job | None]) -> None:
        os.sched_setaffinity(0, cores)
        while (job := queue.get()) is not _STOP:
            active = _ActiveRun(job, cores, queue)
            self._active.add(active)
            result = execute(job, self._report_response, [self._cores[core] for core in job.run.cores])
            with self._lock:
                if active.is_abandoned:
                    self._abandoned[id(job.model)] -= 1
                    return  # another thread has taken the place of this one
                self._active.remove(active)
                if queue is self._unshared:
                    self._idle += 1
            self._report_result(result)
