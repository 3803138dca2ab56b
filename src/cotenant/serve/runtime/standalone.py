"""A runtime without a server, for one run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cotenant.serve.model.event import Run
from cotenant.serve.protocol.oip.tensor import Array
from cotenant.serve.runtime.model import LoadedModel, ModelSource
from cotenant.serve.runtime.repository import Repository
from cotenant.serve.runtime.runtime import ModelRuntime
from cotenant.serve.runtime.threads import Job, RunResult


class StandaloneRuntime:
    """Runs models synchronously on a runtime, with its own event loop."""

    def __init__(self, runtime: ModelRuntime, paths: Sequence[Path], cores: Sequence[int]) -> None:
        """Models are below these paths; `cores` are the machine's core numbers."""
        self.runtime = runtime
        self.repository = Repository(paths, cores, runtime)
        self._loop = asyncio.new_event_loop()
        self._result: asyncio.Future[RunResult] | None = None
        self._runs = 0
        runtime.begin(self._loop, self._report_result, _ignore_response)

    def load(self, source: ModelSource) -> LoadedModel:
        """Load a model; raise `ModelLoadError` if that fails."""
        return self.repository.load(source)

    def prepare(self, model: LoadedModel, widths: Sequence[int]) -> None:
        """Announce the numbers of units; the first run waits for those that are not ready."""
        self.runtime.prepare(model, widths)

    def run(self, model: LoadedModel, inputs: Sequence[Array], rows: int, units: int) -> RunResult:
        """Run on a number of units (0: unshared; cores: the first ones); the result contains the time."""
        self._runs += 1
        cores = tuple(range(units)) if self.runtime.pinned else ()
        run = Run(0, self._runs, model.spec.name, 0, (self._runs,), rows, units, cores)
        done = self._result = self._loop.create_future()
        self._loop.call_soon(self.runtime.submit, Job(run, model, [inputs], [rows]))
        outcome: RunResult = self._loop.run_until_complete(done)
        return outcome

    def close(self) -> None:
        """Stop the runtime; models should be closed before."""
        self.runtime.close()
        self._loop.close()

    def _report_result(self, outcome: RunResult) -> None:
        assert self._result is not None
        self._result.set_result(outcome)


def _ignore_response(number: int, answer: Sequence[Array]) -> None:
    """Ignore a response; decoupled models are not measured."""
