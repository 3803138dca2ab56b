"""How does a GPU run models? By worker processes, each held to its part of the SMs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from cotenant.domain.instant import Duration
from cotenant.domain.serving import ModelSpec
from cotenant.errors import ConfigError
from cotenant.format.models import ModelConfig, configured
from cotenant.format.pbtxt import TritonConfig
from cotenant.format.replay import SUFFIX, decode_replay
from cotenant.format.tensor import Array
from cotenant.live.serve.crew import Crew, Limits
from cotenant.live.serve.found import Found
from cotenant.live.serve.launch import WHOLE, Launcher, Wish
from cotenant.live.serve.member import Member, Start
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.onnx import PLATFORM as ONNX_PLATFORM
from cotenant.live.serve.parcel import Hello, Setup
from cotenant.live.serve.runtime import REPLAY
from cotenant.live.serve.team import CrewFigures
from cotenant.live.serve.triton import as_in_triton, batch_limit
from cotenant.live.serve.work import Job, Tell, TellPart

WIDTHS: Final = (10, 20, 40, 60, 100)
"""Percents that runs may have. Our choice: few, because each takes processes, yet such that they fill a device."""
_MOST_AT_ONCE: Final = 3
"""Runs of one model at one time, where a policy chooses their widths. Our choice: what it takes to use a device."""
_SLACK_BYTES: Final = 128 << 20
"""Of a replay worker's quota, for its context and code."""


def copies(width: int, at_once: int) -> int:
    """Workers of a width, so that every run of it finds one: as many as fit beside each other, or may be at once."""
    beside = WHOLE // width
    return max(1, min(at_once, beside) if at_once else (beside if width < WHOLE else 1))


def runs_at_once(workers: int) -> int:
    """Of a model that may have so many workers: with one for each that fits, at every width; 1 at least."""
    for at_once in range(_MOST_AT_ONCE, 1, -1):
        if sum(copies(width, at_once) for width in WIDTHS) <= workers:
            return at_once
    return 1


class GpuModel:
    """One loading of a model whose runs happen elsewhere."""

    def __init__(
        self,
        spec: ModelSpec,
        recruit: Callable[[int], Member],
        terminate: Callable[[int], None],
        leave: Callable[[GpuModel], None],
    ) -> None:
        """Not ready until its first worker is."""
        self.spec = spec
        self.recruit = recruit
        self._terminate = terminate
        self.first: Member | None = None
        self._leave = leave

    def terminate(self, member: Member) -> None:
        """End a worker that hangs: first its work on the device, for under MPS its death would be everybody's."""
        if member.hello is not None:
            self._terminate(member.hello.pid)
        member.kill()

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """Never asked, since it is never quick."""
        raise NotImplementedError

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Nor this, since none is decoupled."""
        raise NotImplementedError

    def is_quick(self, size_bytes: int) -> bool:
        """Never: it is another process that runs it."""
        del size_bytes
        return False

    def took(self, size_bytes: int, took_ns: Duration) -> None:
        """Nothing is learned from it."""

    def took_at_once(self, took_ns: Duration) -> None:
        """Nor from this."""

    def close(self) -> None:
        """Its workers may go."""
        self._leave(self)


class GpuRuntime:
    """One GPU, or a software GPU; `kind` is what its workers are."""

    all_units = WHOLE
    pinned = False

    def __init__(
        self, kind: str, launcher: Launcher, limits: Limits, say: Callable[[str], None], at_once: int = 1
    ) -> None:
        """`at_once` bounds the runs of a model at one time, so that a worker is ready for each; 0: its spec does."""
        self.name = kind
        self._at_once = at_once
        self._launcher = launcher
        self._limits = limits
        self._say = say
        self._seen: Hello | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crew: Crew | None = None

    @property
    def identity(self) -> str:
        """By the driver's name for it, once a worker has seen it."""
        return f"{self._seen.device if self._seen else 'GPU'} {self.name}"

    def begin(self, loop: asyncio.AbstractEventLoop, tell: Tell, part: TellPart) -> None:
        """Workers answer on the loop."""
        del part
        self._loop = loop
        self._crew = Crew(loop, self._limits, tell, self._say)

    def load(self, found: Found, config: ModelConfig, triton: TritonConfig | None) -> Runnable | None:
        """See whether a worker can run it: what it takes and gives is the worker's word."""
        suffix = SUFFIX if self.name == REPLAY else ".onnx"
        if not found.path.name.endswith(suffix):
            raise LoadFailed(
                f"{found.path.name} does not run on a GPU by --runtime {self.name}, only {suffix} files do"
            )
        share = min(config.share or WHOLE, WHOLE)
        max_batch, memory_bytes = self._asked(found, config)
        setup = Setup(self.name, str(found.path.absolute()), memory_bytes)

        def recruit(width: int) -> Member:
            wish = Wish(found.name, width, memory_bytes, int(config.slo))
            command, environ = self._launcher.command(wish)
            return Member(Start(command, environ, setup), width)

        try:
            first = recruit(share)
        except OSError as error:
            raise LoadFailed(f"its worker cannot be started: {error}") from None
        hello = first.await_hello(self._limits.start_ns / 1e9)
        self._note(hello)
        spec = ModelSpec(found.name, found.version, self.name, hello.inputs, hello.outputs, max_batch, share=share)
        try:
            if self.name != REPLAY:
                spec = _as_onnx(spec, config, triton, meant=hello.means_batches)
            model = GpuModel(self._bounded(configured(spec, config)), recruit, self._launcher.terminate, self._left)
        except LoadFailed:
            first.end()
            first.forget()
            raise
        model.first = first
        return model

    def _asked(self, found: Found, config: ModelConfig) -> tuple[int, int]:
        """The batch, and the device memory of a worker, as far as the files say."""
        if self.name != REPLAY:
            return 0, int(config.memory)
        try:
            replay = decode_replay(found.path.read_text(encoding="utf-8"), found.path.name)
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise LoadFailed(str(error)) from None
        rows = max(1, replay.max_batch)
        takes = replay.weights_bytes + 2 * rows * max(replay.copy_in_bytes, replay.copy_out_bytes) + _SLACK_BYTES
        max_batch = replay.max_batch if config.max_batch is None else config.max_batch
        if max_batch > replay.max_batch:
            raise LoadFailed(
                f"a batch of {max_batch} is asked for, {found.path.name} has launches for {replay.max_batch}"
            )
        return max_batch, int(config.memory) or takes

    def _bounded(self, spec: ModelSpec) -> ModelSpec:
        """A policy must not begin runs for which there is no process, since it would take their wait for theirs."""
        if not self._at_once:
            return spec
        return msgspec.structs.replace(spec, instances=min(spec.instances or self._at_once, self._at_once))

    def _note(self, hello: Hello) -> None:
        if self._seen is None and not hello.is_mps:
            said = "workers run without MPS, so they take turns on the device and their widths do not hold"
            self._say(f"{said}: start the node with --mps on, or nvidia-cuda-mps-control -d")
        self._seen = hello

    def widths(self, model: Runnable) -> tuple[int, ...]:
        """Percents, and the model's own share among them."""
        return tuple(sorted({*WIDTHS, model.spec.share}))

    def prepare(self, model: Runnable, widths: Sequence[int]) -> None:
        """Have a worker at each, and one for each run that may be there at once, as far as the limit allows."""
        assert self._crew is not None
        assert isinstance(model, GpuModel)
        first, model.first = model.first, None
        self._crew.join(model, first)
        self._crew.want(model, {width: copies(width, model.spec.instances) for width in widths})

    async def settled(self) -> None:
        """Until every worker that was started is ready, or gone."""
        if self._crew is not None:
            await self._crew.settled()

    def figures(self) -> CrewFigures | None:
        """Of the workers."""
        return None if self._crew is None else self._crew.figures()

    def workers(self) -> list[int]:
        """The widths of all that are there, ready or not."""
        return [] if self._crew is None else self._crew.widths()

    def give(self, job: Job) -> None:
        """To a worker of its width; an unshared run to one that may use the whole device."""
        assert self._crew is not None
        self._crew.give(job, job.run.units or WHOLE)

    def close(self, *, patient: bool = True) -> None:
        """End the workers; what they still run ends with their line, patient or not."""
        del patient
        if self._crew is not None:
            self._crew.close()
        self._launcher.close()

    def _left(self, model: GpuModel) -> None:
        if model.first is not None:
            model.first.end()
            model.first.forget()
        elif self._crew is not None:
            self._crew.dismiss(model)


def _as_onnx(spec: ModelSpec, config: ModelConfig, triton: TritonConfig | None, *, meant: bool) -> ModelSpec:
    """With the batch that its owner or its shapes allow, by the rules of the CPU runtime."""
    max_batch = batch_limit(config, triton, spec.inputs, spec.outputs, meant=meant)
    spec = msgspec.structs.replace(spec, platform=ONNX_PLATFORM, max_batch=max_batch)
    return spec if triton is None else as_in_triton(spec, triton)
