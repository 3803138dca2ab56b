"""The workers of one model: processes by width, wanted numbers and waiting runs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from cotenant.runner.clock import monotonic_ns
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.runtime.gpu.worker_handle import WorkerHandle
from cotenant.serve.runtime.threads import Job
from cotenant.units.instant import Duration, Instant


class WorkerModel(Protocol):
    """A model that runs in worker processes."""

    spec: ModelSpec

    def start_worker(self, width: int) -> WorkerHandle:
        """Start a worker that is limited to this percentage."""
        ...

    def terminate(self, worker: WorkerHandle) -> None:
        """Terminate a hung worker without affecting others; takes a while, may be called on any thread."""
        ...


class WorkerStatistics(NamedTuple):
    """Counters of the worker pool since its start."""

    workers: int
    """Current workers, ready or not."""
    waits: int
    """Runs that found no worker ready."""
    waited_ns: Duration
    narrower: int
    """Runs on a narrower worker than requested."""
    ended: int
    """Workers that ended unexpectedly or could not start."""


class WorkerTask:
    """A run that waits or is active; it may be retried."""

    __slots__ = ("began", "job", "tries", "width")

    def __init__(self, job: Job, width: int) -> None:
        """The time of creation counts as its start until it starts."""
        self.job = job
        self.width = width
        self.tries = 0
        self.began: Instant = monotonic_ns()


class WidthState:
    """State of one model's workers at one width."""

    __slots__ = ("failed_starts", "failing_since", "failures", "last_error", "not_before", "wanted", "was_ready")

    def __init__(self) -> None:
        """Start with no workers wanted."""
        self.wanted = 0
        self.failures = 0
        self.failed_starts = 0
        """Consecutive starts after which no worker was ready."""
        self.failing_since: Instant = 0
        """When the first of them failed."""
        self.was_ready = False
        """Whether a worker of this width has ever been ready, so that failed starts do not mean a broken model."""
        self.not_before: Instant = 0
        self.last_error = ""

    def start_failed(self, now: Instant) -> None:
        """Count a start after which the worker was not ready."""
        if not self.failed_starts:
            self.failing_since = now
        self.failed_starts += 1


class ModelWorkers:
    """The workers of one model at all widths, and the runs that wait for one."""

    __slots__ = ("by_width", "handles", "model", "names", "waiting")

    def __init__(self, model: WorkerModel) -> None:
        """Start without workers."""
        self.model = model
        spec = model.spec
        self.names = (
            tuple(tensor.name for tensor in spec.inputs),
            tuple(tensor.name for tensor in spec.outputs),
        )
        """Input and output names in the order of the spec, by which workers bind tensors."""
        self.by_width: dict[int, WidthState] = {}
        self.handles: list[WorkerHandle] = []
        self.waiting: deque[WorkerTask] = deque()

    def width_state(self, width: int) -> WidthState:
        """Return the state of one width."""
        return self.by_width.setdefault(width, WidthState())

    def handles_at(self, width: int) -> list[WorkerHandle]:
        """Return the workers of that width, ready or not."""
        return [handle for handle in self.handles if handle.width == width]
