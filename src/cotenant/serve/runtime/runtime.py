"""Interface of a runtime, and the runtime for the cores of this machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from cotenant.runner.clock import monotonic_ns
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.model.scheduling import Widths
from cotenant.serve.model_config_format import ModelConfig
from cotenant.serve.policy import policy_class
from cotenant.serve.protocol.triton.pbtxt import TritonConfig
from cotenant.serve.replay_model_format import SUFFIX
from cotenant.serve.runtime.gpu.model_workers import WorkerStatistics
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError, ModelSource
from cotenant.serve.runtime.onnx import OnnxModel
from cotenant.serve.runtime.profiles import cpu_identity
from cotenant.serve.runtime.threads import CoreThreads, Job, ReportResponse, ReportResult, RunResult
from cotenant.serve.state.server import ServerSettings
from cotenant.units.instant import SECOND_NS, Duration

ONNX_CPU: Final = "onnx-cpu"
ONNX_CUDA: Final = "onnx-cuda"
REPLAY: Final = "replay"
RUNTIMES: Final = (ONNX_CPU, ONNX_CUDA, REPLAY)
RUN_LIMIT_NS: Final = 300 * SECOND_NS
"""Default time after which a run on cores is abandoned. Our choice: far more than any request waits."""
_CHECK_INTERVAL_S: Final = 0.5


class ModelRuntime(Protocol):
    """Runs the models of one device."""

    name: str
    all_units: int
    """Number of cores, or 100 (percent of a GPU)."""
    pinned: bool
    """Whether a unit is a core, so that a run is assigned to specific cores."""

    interference: float
    """Slowdown of a run on a part of the device while others run, beyond what profiles contain."""

    @property
    def identity(self) -> str:
        """Description of the device; measurements hold for this device only."""
        ...

    def begin(
        self, loop: asyncio.AbstractEventLoop, report_result: ReportResult, report_response: ReportResponse
    ) -> None:
        """Get ready for runs; both callbacks are called on the loop's thread."""
        ...

    def load(self, source: ModelSource, config: ModelConfig, triton: TritonConfig | None) -> LoadedModel | None:
        """Load a model; raise `ModelLoadError` if that fails. Return None if the repository should load it.

        Not on the loop's thread.
        """
        ...

    def widths(self, model: LoadedModel) -> tuple[int, ...]:
        """Return the numbers of units that its runs may have, ascending."""
        ...

    def prepare(self, model: LoadedModel, widths: Sequence[int]) -> None:
        """Announce the numbers of units that runs will have; return without waiting."""
        ...

    async def settled(self) -> None:
        """Wait until everything that was announced is ready or has failed."""
        ...

    def can_run(self, model: LoadedModel) -> bool:
        """Return whether a run of this model could start now or after others."""
        ...

    def retry_after_ns(self, model: LoadedModel) -> Duration:
        """Return after which time to send requests for a model whose workers are restarted with back-off; 0: now."""
        ...

    def submit(self, job: Job) -> None:
        """Start a run, on the loop's thread; its result is reported in any case."""
        ...

    def worker_statistics(self) -> WorkerStatistics | None:
        """Return statistics of the worker processes, or None."""
        ...

    def close(self, *, patient: bool = True) -> None:
        """Stop after the last run, or at once if not `patient`."""
        ...


class CpuRuntime:
    """The cores of this machine: threads of this process."""

    name = ONNX_CPU
    pinned = True
    interference = 1.0
    """Profiles are measured while all cores are in use."""

    def __init__(self, cores: Sequence[int], run_limit_ns: Duration = RUN_LIMIT_NS) -> None:
        """`cores` are the machine's core numbers; runs that take longer than the limit are abandoned."""
        self.all_units = len(cores)
        self._run_limit_ns = run_limit_ns
        self._loop: asyncio.AbstractEventLoop | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._cores = cores
        self._workers: CoreThreads | None = None
        self._opening: list[threading.Thread] = []

    @property
    def identity(self) -> str:
        """Processor, number of cores and version of ONNX Runtime."""
        return cpu_identity(self.all_units)

    def begin(
        self, loop: asyncio.AbstractEventLoop, report_result: ReportResult, report_response: ReportResponse
    ) -> None:
        """Start the threads."""

        def report(outcome: RunResult) -> None:
            loop.call_soon_threadsafe(report_result, outcome)

        def send_response(number: int, answer: Sequence[Any]) -> None:
            loop.call_soon_threadsafe(report_response, number, answer)

        self._workers = CoreThreads(self._cores, report, send_response)
        self._loop = loop
        self._check_runs()

    def _check_runs(self) -> None:
        """Abandon runs that hang, periodically."""
        assert self._workers is not None
        assert self._loop is not None
        self._workers.abandon_hung(monotonic_ns(), self._run_limit_ns)
        self._check_timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check_runs)

    def load(self, source: ModelSource, config: ModelConfig, triton: TritonConfig | None) -> LoadedModel | None:
        """Return None: the repository loads the model in this process."""
        del config, triton
        if source.path.name.endswith(SUFFIX):
            raise ModelLoadError("a replay model needs a GPU: use --runtime replay")
        return None

    def widths(self, model: LoadedModel) -> tuple[int, ...]:
        """Return every number of cores."""
        del model
        return tuple(range(1, self.all_units + 1))

    def prepare(self, model: LoadedModel, widths: Sequence[int]) -> None:
        """Open the sessions in a thread; every core's thread runs every model."""
        if isinstance(model, OnnxModel):
            thread = threading.Thread(target=model.prepare, args=(widths,), name="sessions", daemon=True)
            thread.start()
            self._opening = [*(opening for opening in self._opening if opening.is_alive()), thread]

    async def settled(self) -> None:
        """Wait until the sessions are open, so that the first requests do not wait for them."""
        for thread in self._opening:
            await asyncio.to_thread(thread.join)

    def can_run(self, model: LoadedModel) -> bool:
        """Return False for a model whose runs hang."""
        return self._workers is None or self._workers.can_run(model)

    def retry_after_ns(self, model: LoadedModel) -> Duration:
        """Return 0: there are no worker processes."""
        del model
        return 0

    def submit(self, job: Job) -> None:
        """Queue the run for the thread of its first core."""
        assert self._workers is not None
        self._workers.submit(job)

    def worker_statistics(self) -> WorkerStatistics | None:
        """Return None: there are no worker processes."""
        return None

    def close(self, *, patient: bool = True) -> None:
        """Stop the threads after their queued runs; a running thread cannot be stopped."""
        if self._check_timer is not None:
            self._check_timer.cancel()
        if self._workers is not None and patient:
            self._workers.stop()


def widths_ahead(settings: ServerSettings, spec: ModelSpec, times: RunTimes | None) -> Sequence[int]:
    """Return the numbers of units that a policy may give to the runs of a model."""
    if policy_class(settings.schedule).widths is Widths.WHOLE:
        return (settings.units,)
    if times is None or policy_class(settings.schedule).widths is not Widths.MEASURED:
        return (min(spec.share, settings.units),)
    return times.widths()


def times_at(times: RunTimes | None, widths: Sequence[int]) -> RunTimes | None:
    """Return the measurements at these numbers of units, so that a policy chooses no width that is not ready."""
    if times is None:
        return None
    matching = tuple(time for time in times.times if time.units in widths)
    return msgspec.structs.replace(times, times=matching) if matching else None
