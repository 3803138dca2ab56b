"""Runtime for one GPU: models run in worker processes, each limited to a part of the SMs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model_config_format import ModelConfig, with_config
from cotenant.serve.protocol.oip.tensor import Array
from cotenant.serve.protocol.triton.pbtxt import TritonConfig
from cotenant.serve.replay_model_format import SUFFIX, decode_replay
from cotenant.serve.runtime.gpu.launch import WHOLE, Launcher, WorkerOptions
from cotenant.serve.runtime.gpu.model_workers import WorkerStatistics
from cotenant.serve.runtime.gpu.shared_tensors import WorkerReady, WorkerSetup
from cotenant.serve.runtime.gpu.worker_handle import WorkerHandle, WorkerStart
from cotenant.serve.runtime.gpu.worker_pool import WorkerLimits, WorkerPool
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError, ModelSource, read_file
from cotenant.serve.runtime.onnx import PLATFORM as ONNX_PLATFORM
from cotenant.serve.runtime.runtime import REPLAY
from cotenant.serve.runtime.threads import Job, ReportResponse, ReportResult
from cotenant.serve.runtime.triton_config import batch_limit, with_triton_config
from cotenant.units.instant import Duration

WIDTHS: Final = (10, 20, 40, 60, 100)
"""Percentages that runs may have. Our choice: few, because each one needs processes, but enough to fill a device."""
_MAX_CONCURRENT_RUNS: Final = 3
"""Maximum concurrent runs of one model if a policy chooses widths. Our choice: enough to use a device."""
_SLACK_BYTES: Final = 128 << 20
"""Part of a replay worker's quota for its context and code."""


def workers_for(width: int, at_once: int) -> int:
    """Return the number of workers of a width: as many as fit on the device, or as may run concurrently."""
    fitting = WHOLE // width
    return max(1, min(at_once, fitting) if at_once else (fitting if width < WHOLE else 1))


def runs_at_once(workers: int) -> int:
    """Return the concurrent runs that this number of workers per model allows, with one for each run at every width.

    At least 1.
    """
    for at_once in range(_MAX_CONCURRENT_RUNS, 1, -1):
        if sum(workers_for(width, at_once) for width in WIDTHS) <= workers:
            return at_once
    return 1


class GpuModel:
    """A loaded model that runs in worker processes."""

    def __init__(
        self,
        spec: ModelSpec,
        start_worker: Callable[[int], WorkerHandle],
        terminate: Callable[[int], None],
        disconnect: Callable[[GpuModel], None],
    ) -> None:
        """The model is ready when its first worker is."""
        self.spec = spec
        self.start_worker = start_worker
        self._terminate = terminate
        self.first: WorkerHandle | None = None
        self._release = disconnect

    def terminate(self, worker: WorkerHandle) -> None:
        """Terminate a hung worker: first its work on the device, since under MPS its death would affect all clients."""
        if worker.ready is not None:
            self._terminate(worker.ready.pid)
        worker.kill()

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """Not supported; the model is never quick."""
        raise NotImplementedError

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Not supported; the model is not decoupled."""
        raise NotImplementedError

    def is_quick(self, size_bytes: int) -> bool:
        """Return False: another process runs the model."""
        del size_bytes
        return False

    def record_run(self, size_bytes: int, took_ns: Duration) -> None:
        """Ignore the time."""

    def record_inline_run(self, took_ns: Duration) -> None:
        """Ignore the time."""

    def close(self) -> None:
        """Release the workers."""
        self._release(self)


class GpuRuntime:
    """One GPU or software GPU; `kind` is what its workers run."""

    all_units = WHOLE
    pinned = False

    def __init__(
        self,
        kind: str,
        launcher: Launcher,
        limits: WorkerLimits,
        report: Callable[[str], None],
        at_once: int = 1,
        interference: float = 1.0,
    ) -> None:
        """`at_once` limits the concurrent runs of a model, so that a worker is ready for each; 0: its spec does.

        `interference` is the slowdown of concurrent runs; profiles are measured one run at a time.
        """
        self.interference = interference
        self.name = kind
        self._at_once = at_once
        self._launcher = launcher
        self._limits = limits
        self._report = report
        self._device: WorkerReady | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: WorkerPool | None = None

    @property
    def identity(self) -> str:
        """The driver's name of the device, known after the first worker has started."""
        return f"{self._device.device if self._device else 'GPU'} {self.name}"

    def begin(
        self, loop: asyncio.AbstractEventLoop, report_result: ReportResult, report_response: ReportResponse
    ) -> None:
        """Create the worker pool on the loop."""
        del report_response
        self._loop = loop
        self._pool = WorkerPool(loop, self._limits, report_result, self._report)

    def load(self, source: ModelSource, config: ModelConfig, triton: TritonConfig | None) -> LoadedModel | None:
        """Start a worker, which reports the model's inputs and outputs."""
        suffix = SUFFIX if self.name == REPLAY else ".onnx"
        if not source.path.name.endswith(suffix):
            raise ModelLoadError(f"{source.path.name} does not run with --runtime {self.name}, only {suffix} files do")
        share = min(config.share or WHOLE, WHOLE)
        max_batch, memory_bytes = self._limits_of(source, config)
        setup = WorkerSetup(self.name, str(source.path.absolute()), memory_bytes)

        def start_worker(width: int) -> WorkerHandle:
            options = WorkerOptions(source.name, width, memory_bytes, int(config.slo))
            command, environ = self._launcher.command(options)
            return WorkerHandle(WorkerStart(command, environ, setup), width)

        try:
            first = start_worker(share)
        except OSError as error:
            raise ModelLoadError(f"its worker cannot be started: {error}") from None
        ready = first.await_ready(self._limits.start_ns / 1e9)
        self._record_device(ready)
        spec = ModelSpec(source.name, source.version, self.name, ready.inputs, ready.outputs, max_batch, share=share)
        try:
            if self.name != REPLAY:
                spec = _with_onnx_batch(spec, config, triton, declares_batch=ready.means_batches)
            model = GpuModel(
                self._bounded(with_config(spec, config)), start_worker, self._launcher.terminate, self._release_workers
            )
        except ModelLoadError:
            first.end()
            first.close()
            raise
        model.first = first
        return model

    def _limits_of(self, source: ModelSource, config: ModelConfig) -> tuple[int, int]:
        """Return the maximum batch and the device memory of a worker, from the files."""
        if self.name != REPLAY:
            return 0, int(config.memory)
        try:
            replay = decode_replay(read_file(source.path).decode(), source.path.name)
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(str(error)) from None
        rows = max(1, replay.max_batch)
        needed_bytes = replay.weights_bytes + 2 * rows * max(replay.copy_in_bytes, replay.copy_out_bytes) + _SLACK_BYTES
        max_batch = replay.max_batch if config.max_batch is None else config.max_batch
        if max_batch > replay.max_batch:
            raise ModelLoadError(
                f"a batch of {max_batch} is configured, but {source.path.name} has launches for {replay.max_batch}"
            )
        return max_batch, int(config.memory) or needed_bytes

    def _bounded(self, spec: ModelSpec) -> ModelSpec:
        """Limit concurrent runs to the number of processes; otherwise waiting for one would count as run time."""
        if not self._at_once:
            return spec
        return msgspec.structs.replace(spec, instances=min(spec.instances or self._at_once, self._at_once))

    def _record_device(self, ready: WorkerReady) -> None:
        if self._device is None and not ready.is_mps:
            problem = "workers run without MPS, so they time-share the device and their widths are not enforced"
            self._report(f"{problem}: start the node with --mps on, or nvidia-cuda-mps-control -d")
        self._device = ready

    def widths(self, model: LoadedModel) -> tuple[int, ...]:
        """Return the percentages, including the model's own share."""
        return tuple(sorted({*WIDTHS, model.spec.share}))

    def prepare(self, model: LoadedModel, widths: Sequence[int]) -> None:
        """Request workers for each width and concurrent run, up to the limit."""
        assert self._pool is not None
        assert isinstance(model, GpuModel)
        first, model.first = model.first, None
        self._pool.add_model(model, first)
        self._pool.request_workers(model, {width: workers_for(width, model.spec.instances) for width in widths})

    async def settled(self) -> None:
        """Wait until every started worker is ready or has failed."""
        if self._pool is not None:
            await self._pool.settled()

    def can_run(self, model: LoadedModel) -> bool:
        """Return whether a worker of this model is ready."""
        assert isinstance(model, GpuModel)
        return self._pool is not None and self._pool.can_run(model)

    def retry_after_ns(self, model: LoadedModel) -> Duration:
        """Return after which time to send requests for a model whose workers are restarted with back-off; 0: now."""
        assert isinstance(model, GpuModel)
        return 0 if self._pool is None else self._pool.retry_after_ns(model)

    def worker_statistics(self) -> WorkerStatistics | None:
        """Return the pool's counters."""
        return None if self._pool is None else self._pool.statistics()

    def workers(self) -> list[int]:
        """Return the widths of all workers, ready or not."""
        return [] if self._pool is None else self._pool.widths()

    def submit(self, job: Job) -> None:
        """Pass the run to a worker of its width; an unshared run to one that may use the whole device."""
        assert self._pool is not None
        self._pool.submit(job, job.run.units or WHOLE)

    def close(self, *, patient: bool = True) -> None:
        """Stop the workers; their active runs end with the connection, whether `patient` or not."""
        del patient
        if self._pool is not None:
            self._pool.close()
        self._launcher.close()

    def _release_workers(self, model: GpuModel) -> None:
        if model.first is not None:
            model.first.end()
            model.first.close()
        elif self._pool is not None:
            self._pool.remove_model(model)


def _with_onnx_batch(
    spec: ModelSpec, config: ModelConfig, triton: TritonConfig | None, *, declares_batch: bool
) -> ModelSpec:
    """Return the spec with the batch limit, by the rules of the CPU runtime."""
    max_batch = batch_limit(config, triton, spec.inputs, spec.outputs, declares_batch=declares_batch)
    spec = msgspec.structs.replace(spec, platform=ONNX_PLATFORM, max_batch=max_batch)
    return spec if triton is None else with_triton_config(spec, triton)
