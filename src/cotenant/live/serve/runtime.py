"""What runs models? A Protocol behind which cores and GPUs look alike, and the runtime of this machine's cores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from cotenant.domain.runtimes import RunTimes
from cotenant.domain.serving import ModelSpec
from cotenant.format.models import ModelConfig
from cotenant.format.pbtxt import TritonConfig
from cotenant.format.replay import SUFFIX
from cotenant.live.serve.found import Found
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.onnx import OnnxModel
from cotenant.live.serve.profiles import cpu_identity
from cotenant.live.serve.team import CrewFigures
from cotenant.live.serve.work import Job, Outcome, Tell, TellPart, Workers
from cotenant.machine.server import ServerSettings
from cotenant.policy.schedule import SPATIAL, UNDIVIDED

ONNX_CPU: Final = "onnx-cpu"
ONNX_CUDA: Final = "onnx-cuda"
REPLAY: Final = "replay"
RUNTIMES: Final = (ONNX_CPU, ONNX_CUDA, REPLAY)


class ModelRuntime(Protocol):
    """What runs the models of one device."""

    name: str
    all_units: int
    """Cores, or 100 for the percent of a GPU."""
    pinned: bool
    """Whether a unit is a core, of which a run is given certain ones."""

    @property
    def identity(self) -> str:
        """Which device it is, in words: what was measured on one says nothing of another."""
        ...

    def begin(self, loop: asyncio.AbstractEventLoop, tell: Tell, part: TellPart) -> None:
        """Be ready for runs; both are called on the loop's thread."""
        ...

    def load(self, found: Found, config: ModelConfig, triton: TritonConfig | None) -> Runnable | None:
        """Load a model, on a thread other than the loop's; `LoadFailed` says why not. None: it runs in this process."""
        ...

    def widths(self, model: Runnable) -> tuple[int, ...]:
        """The numbers of units that runs of it may have, ascending."""
        ...

    def prepare(self, model: Runnable, widths: Sequence[int]) -> None:
        """Runs will have these numbers of units; returns at once."""
        ...

    async def settled(self) -> None:
        """Until all that was prepared is ready, as far as it can be."""
        ...

    def give(self, job: Job) -> None:
        """Have a run done, on the loop's thread; its end is told, whatever becomes of it."""
        ...

    def figures(self) -> CrewFigures | None:
        """Of worker processes, where there are any."""
        ...

    def close(self, *, patient: bool = True) -> None:
        """After the last run, or whatever runs if we are not patient."""
        ...


class CpuRuntime:
    """This machine's cores: threads of this process."""

    name = ONNX_CPU
    pinned = True

    def __init__(self, cores: Sequence[int]) -> None:
        """The numbers of the cores are the machine's own."""
        self.all_units = len(cores)
        self._cores = cores
        self._workers: Workers | None = None
        self._opening: list[threading.Thread] = []

    @property
    def identity(self) -> str:
        """The kind of processor, how many cores of it, and what runs models on them."""
        return cpu_identity(self.all_units)

    def begin(self, loop: asyncio.AbstractEventLoop, tell: Tell, part: TellPart) -> None:
        """Start the threads."""

        def told(outcome: Outcome) -> None:
            loop.call_soon_threadsafe(tell, outcome)

        def told_part(number: int, answer: Sequence[Any]) -> None:
            loop.call_soon_threadsafe(part, number, answer)

        self._workers = Workers(self._cores, told, told_part)

    def load(self, found: Found, config: ModelConfig, triton: TritonConfig | None) -> Runnable | None:
        """What has no other runtime is loaded by the repository itself."""
        del config, triton
        if found.path.name.endswith(SUFFIX):
            raise LoadFailed("a replay model is played on a GPU: serve it with --runtime replay")
        return None

    def widths(self, model: Runnable) -> tuple[int, ...]:
        """Any number of cores."""
        del model
        return tuple(range(1, self.all_units + 1))

    def prepare(self, model: Runnable, widths: Sequence[int]) -> None:
        """Have the sessions for them opened: every thread runs every model."""
        if isinstance(model, OnnxModel):
            thread = threading.Thread(target=model.prepare, args=(widths,), name="sessions", daemon=True)
            thread.start()
            self._opening = [*(one for one in self._opening if one.is_alive()), thread]

    async def settled(self) -> None:
        """Until the sessions are open: the first request on several cores would else wait for them."""
        for thread in self._opening:
            await asyncio.to_thread(thread.join)

    def give(self, job: Job) -> None:
        """On the thread of its first core."""
        assert self._workers is not None
        self._workers.give(job)

    def figures(self) -> CrewFigures | None:
        """There are none."""
        return None

    def close(self, *, patient: bool = True) -> None:
        """End the threads, after what they have; a thread cannot be ended before."""
        if self._workers is not None and patient:
            self._workers.stop()


def widths_ahead(settings: ServerSettings, spec: ModelSpec, times: RunTimes | None) -> Sequence[int]:
    """The numbers of units that a server's policy may give the runs of a model."""
    if settings.schedule in UNDIVIDED:
        return (settings.units,)
    if times is None or settings.schedule not in SPATIAL:
        return (min(spec.share, settings.units),)
    return times.widths()


def times_at(times: RunTimes | None, widths: Sequence[int]) -> RunTimes | None:
    """What was measured at these numbers of units: a policy must not choose others, for which nothing is ready."""
    if times is None:
        return None
    kept = tuple(one for one in times.times if one.units in widths)
    return msgspec.structs.replace(times, times=kept) if kept else None
