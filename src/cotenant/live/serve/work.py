"""On which thread does a run happen, and how do requests become a batch and a batch answers?"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import Run
from cotenant.format.tensor import Array, size_of
from cotenant.live.clock import monotonic_ns, thread_ns
from cotenant.live.serve.model import Runnable

_STOP: Final = None
_PARTS_LIMIT: Final = 64
UNSHARED_LIMIT: Final = 64
"""Unshared runs at once; more wait for one to end. Our choice: far above what any number of cores gains by."""


class Flow:
    """Between a run of many answers and who takes them: few may be on their way, and nobody there ends the run."""

    __slots__ = ("_room", "is_over")

    def __init__(self) -> None:
        """Somebody is there."""
        self.is_over = False
        self._room = threading.Semaphore(_PARTS_LIMIT)

    def wait(self) -> bool:
        """Until there is room for one more; False: nobody wants it."""
        self._room.acquire()
        return not self.is_over

    def taken(self) -> None:
        """One of them has gone on."""
        self._room.release()

    def end(self) -> None:
        """Nobody wants more."""
        self.is_over = True
        self._room.release()


class Job(NamedTuple):
    """A run with what it needs."""

    run: Run
    model: Runnable
    parts: Sequence[Sequence[Array]]
    """Of each request, its inputs in the order of the model's."""
    rows: Sequence[int]
    flow: Flow | None = None
    """Of a decoupled model."""


class Outcome(NamedTuple):
    """How a run ended: the outputs of each request, or what went wrong."""

    run: Run
    answers: Sequence[Sequence[Array]]
    failure: str
    took_ns: Duration
    ended: Instant
    """By the system's own clock."""


Tell: TypeAlias = Callable[[Outcome], None]
TellPart: TypeAlias = Callable[[int, Sequence[Array]], None]


def carry_out(job: Job, part: TellPart, cores: Sequence[int] | None = None) -> Outcome:
    """Run it here and now; of a decoupled model every answer is told as it comes.

    On these cores of the machine, of which the calling thread has the first; none at all: on any; not said: here.
    """
    began = monotonic_ns()
    own = thread_ns()
    model = job.model
    size = sum(map(size_of, job.parts))
    answers: Sequence[Sequence[Array]] = ()
    failure = ""
    try:
        if model.spec.decoupled:
            for answer in model.stream(job.parts[0]):
                if job.flow is not None and not job.flow.wait():
                    break
                part(job.run.requests[0], answer)
        elif len(job.parts) == 1:
            answers = [model.run(job.parts[0], cores)]
        else:
            inputs = [np.concatenate(column) for column in zip(*job.parts, strict=True)]
            answers = split(model, model.run(inputs, cores), job.rows)
    except Exception as error:  # noqa: BLE001  whatever a model does, it is the model's failure
        failure = failure_of(model, error)
    model.took(size, thread_ns() - own)
    ended = monotonic_ns()
    return Outcome(job.run, answers, failure, ended - began, ended)


def failure_of(model: Runnable, error: Exception) -> str:
    """What a client is told of a model's failure."""
    return f"model {model.spec.name!r} failed: {str(error)[:500] or type(error).__name__}"


def split(model: Runnable, outputs: Sequence[Array], rows: Sequence[int]) -> list[list[Array]]:
    """The outputs of a batch as those of its requests, in their order."""
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


class Workers:
    """One thread per core, pinned to it; a run on several cores is led by the thread of its first.

    Runs that share all cores have threads of their own, which are made when there is none to spare.
    """

    def __init__(self, cores: Sequence[int], tell: Tell, part: TellPart) -> None:
        """The numbers of the cores are the machine's own; `tell` and `part` are called on the worker's thread."""
        self._tell = tell
        self._part = part
        self._cores = tuple(cores)
        self._queues: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in cores]
        self._unshared: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = 0  # threads of unshared runs that have nothing to do, less the runs on their way to them
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._anywhere = 0
        for core, queue in zip(cores, self._queues, strict=True):
            self._start({core}, queue, f"core-{core}")

    def give(self, job: Job) -> None:
        """Have it carried out."""
        if job.run.cores:
            self._queues[job.run.cores[0]].put(job)
            return
        with self._lock:
            self._idle -= 1
            short = self._idle < 0 and self._anywhere < UNSHARED_LIMIT
            if short:
                self._anywhere += 1
                self._idle += 1
        if short:
            self._start(set(self._cores), self._unshared, f"any-{self._anywhere}")
        self._unshared.put(job)

    def stop(self) -> None:
        """End the threads once they have done what they were given."""
        for queue in self._queues:
            queue.put(_STOP)
        for _ in range(self._anywhere):
            self._unshared.put(_STOP)
        for thread in self._threads:
            thread.join()

    def _start(self, cores: set[int], queue: SimpleQueue[Job | None], name: str) -> None:
        thread = threading.Thread(target=self._work, args=(cores, queue), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, cores: set[int], queue: SimpleQueue[Job | None]) -> None:
        os.sched_setaffinity(0, cores)
        while (job := queue.get()) is not _STOP:
            told = carry_out(job, self._part, [self._cores[one] for one in job.run.cores])
            if queue is self._unshared:
                with self._lock:
                    self._idle += 1
            self._tell(told)
