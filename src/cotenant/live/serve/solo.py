"""How is a model run outside of a server, alone and one run at a time? By any runtime, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cotenant.domain.serving import Run
from cotenant.format.tensor import Array
from cotenant.live.serve.found import Found
from cotenant.live.serve.model import Runnable
from cotenant.live.serve.repository import Repository
from cotenant.live.serve.runtime import ModelRuntime
from cotenant.live.serve.work import Job, Outcome


class Solo:
    """A runtime without a server: what is asked is done before the answer."""

    def __init__(self, runtime: ModelRuntime, paths: Sequence[Path], cores: Sequence[int]) -> None:
        """The models below these paths; the numbers of the cores are the machine's own."""
        self.runtime = runtime
        self.repository = Repository(paths, cores, runtime)
        self._loop = asyncio.new_event_loop()
        self._told: asyncio.Future[Outcome] | None = None
        self._runs = 0
        runtime.begin(self._loop, self._tell, _no_part)

    def load(self, found: Found) -> Runnable:
        """Load a model; `LoadFailed` says why not."""
        return self.repository.load(found)

    def prepare(self, model: Runnable, widths: Sequence[int]) -> None:
        """Runs will have these numbers of units; those that are not ready are waited for by the first run."""
        self.runtime.prepare(model, widths)

    def run(self, model: Runnable, inputs: Sequence[Array], rows: int, units: int) -> Outcome:
        """One run on so many units, 0 being unshared, of cores the first; what it took is in the outcome."""
        self._runs += 1
        cores = tuple(range(units)) if self.runtime.pinned else ()
        run = Run(0, self._runs, model.spec.name, 0, (self._runs,), rows, units, cores)
        told = self._told = self._loop.create_future()
        self._loop.call_soon(self.runtime.give, Job(run, model, [inputs], [rows]))
        outcome: Outcome = self._loop.run_until_complete(told)
        return outcome

    def close(self) -> None:
        """Models should be closed before."""
        self.runtime.close()
        self._loop.close()

    def _tell(self, outcome: Outcome) -> None:
        assert self._told is not None
        self._told.set_result(outcome)


def _no_part(number: int, answer: Sequence[Array]) -> None:
    """Decoupled models have no batches, so nothing is measured of them."""
