"""Worker pool in simulated time: what waiting runs and new requests get while workers are killed.

The clock, the event loop and the worker processes are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from cotenant.serve.model.event import ModelSpec, Run
from cotenant.serve.runtime.gpu import model_workers, worker_pool
from cotenant.serve.runtime.gpu.model_workers import WorkerModel
from cotenant.serve.runtime.gpu.shared_tensors import (
    BatchResult,
    CheckDevice,
    RunBatch,
    TensorMemory,
    WorkerFailure,
    WorkerReady,
)
from cotenant.serve.runtime.gpu.worker_handle import WorkerHandle
from cotenant.serve.runtime.gpu.worker_pool import WorkerLimits, WorkerPool
from cotenant.serve.runtime.model import LoadedModel
from cotenant.serve.runtime.threads import Job, RunResult
from cotenant.units.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant

READY = WorkerReady(1, 80, True, "V100", (), (), False)
LIMITS = WorkerLimits(workers=4, run_ns=30 * SECOND_NS, start_ns=120 * SECOND_NS)


class Loop:
    """An event loop in simulated time: timers, and a callback for each descriptor."""

    def __init__(self) -> None:
        self.now: Instant = 1000 * SECOND_NS
        self.timers: list[tuple[Instant, Callable[[], None]]] = []
        self.readers: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now + int(delay_s * SECOND_NS), callback))

    def add_reader(self, descriptor: int, callback: Callable[..., None], *arguments: object) -> None:
        self.readers[descriptor] = (callback, arguments)

    def remove_reader(self, descriptor: int) -> None:
        self.readers.pop(descriptor, None)

    def advance(self, duration_ns: Duration) -> None:
        """Call the timers of this duration in order."""
        end = self.now + duration_ns
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda entry: entry[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end


class Worker:
    """A worker process; it is its own channel and its own process."""

    def __init__(self, loop: Loop, number: int, width: int) -> None:
        self.loop = loop
        self.number = number
        self.width = width
        self.ready: WorkerReady | None = None
        self.pidfd = -1
        self.idle_since = loop.now
        self.inputs_memory = TensorMemory()
        self.messages: list[object] = []
        self.batches: list[RunBatch] = []
        self.is_gone = False
        self.channel = self.process = self

    def fileno(self) -> int:
        return self.number

    def setblocking(self, flag: bool) -> None:
        del flag

    def poll(self) -> int | None:
        return 0 if self.is_gone else None

    def receive(self) -> object:
        message = self.messages.pop(0)
        if isinstance(message, WorkerReady):
            self.ready = message
        return message

    def send_batch(self, batch: RunBatch, descriptor: int) -> None:
        del descriptor
        self.batches.append(batch)

    def describe_end(self) -> str:
        return "killed by SIGKILL"

    def disconnect(self) -> None:
        self.is_gone = True

    def kill(self) -> None:
        self.is_gone = True

    def close(self) -> None:
        assert self.is_gone

    def send(self, message: object) -> None:
        """Pass a message to the pool; None: the end of the connection."""
        self.messages.append(message)
        callback, arguments = self.loop.readers[self.number]
        callback(*arguments)


class Model:
    """A model whose workers are simulated."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.spec = ModelSpec("m", "1", "replay", (), ())
        self.started: list[Worker] = []

    def start_worker(self, width: int) -> WorkerHandle:
        self.started.append(Worker(self.loop, len(self.started) + 1, width))
        return cast("WorkerHandle", self.started[-1])

    def terminate(self, worker: WorkerHandle) -> None:
        raise NotImplementedError


class Scenario:
    """A pool with a model that one worker of the whole device has loaded."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.results: list[RunResult] = []
        self.pool = WorkerPool(
            cast("asyncio.AbstractEventLoop", loop), LIMITS, self.results.append, lambda report: None
        )
        self.model = Model(loop)
        first = self.model.start_worker(100)
        first.ready = READY
        self.pool.add_model(cast("WorkerModel", self.model), first)

    def submit(self, number: int, width: int = 100, deadline: Instant = NEVER) -> None:
        run = Run(0, number, "m", 1, (number,), 1, width, ())
        self.pool.submit(Job(run, cast("LoadedModel", self.model), [[]], [1], deadline=deadline), width)

    @property
    def retry_after_ns(self) -> Duration:
        return self.pool.retry_after_ns(cast("WorkerModel", self.model))

    def fail_starts(self, count: int, reason: str = "") -> None:
        """Kill all starting workers, this many times; with a reason, they report it themselves."""
        for _ in range(count):
            for worker in self.until_started():
                worker.send(WorkerFailure(reason) if reason else None)

    def until_started(self) -> list[Worker]:
        """Advance until workers are starting, and return them."""
        for _ in range(200):
            starting = [worker for worker in self.model.started if not worker.is_gone and worker.ready is None]
            if starting:
                return starting
            self.loop.advance(250 * MILLISECOND_NS)
        raise AssertionError("no worker was started")


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    loop = Loop()
    for module in (worker_pool, model_workers):
        monkeypatch.setattr(module, "monotonic_ns", lambda: loop.now)
    return Scenario(loop)


@pytest.mark.parametrize("killed", [1, 3, 4, 6])
def test_run_waits_while_the_starts_of_a_model_that_was_ready_are_killed(scenario: Scenario, killed: int) -> None:
    """The worker dies with a run, its successors before they are ready; the run and a waiting one are done at last."""
    scenario.submit(1)
    first = scenario.model.started[0]
    assert [batch.run for batch in first.batches] == [1]
    first.send(None)
    scenario.submit(2)
    scenario.fail_starts(killed)
    scenario.until_started()
    assert not scenario.results
    last = scenario.model.started[-1]
    last.send(READY)
    for number in (1, 2):
        last.send(BatchResult(number, 1, ()))
    assert [(result.run.run, result.failure) for result in scenario.results] == [(1, ""), (2, "")]


def test_run_whose_deadline_passes_while_starts_fail_ends_with_the_reason(scenario: Scenario) -> None:
    """A run without a deadline waits on."""
    scenario.submit(1)
    scenario.model.started[0].send(None)
    scenario.submit(2, deadline=scenario.loop.now + 5 * SECOND_NS)
    scenario.fail_starts(3)
    scenario.loop.advance(250 * MILLISECOND_NS)
    assert not scenario.results
    scenario.fail_starts(2)
    scenario.loop.advance(3 * SECOND_NS)
    (result,) = scenario.results
    assert result.run.run == 2
    assert "no worker of 100 % is ready: killed by SIGKILL" in result.failure
    assert result.retry_after_ns > 0


def test_runs_are_not_held_for_longer_than_a_run_may_take(scenario: Scenario) -> None:
    """Starts fail for ever: also a run that was submitted late fails when they have failed for as long as `run_ns`."""
    scenario.submit(1)
    scenario.model.started[0].send(None)
    began = scenario.loop.now
    scenario.fail_starts(6)
    scenario.submit(2)
    while len(scenario.results) < 2:
        assert scenario.loop.now - began < 2 * LIMITS.run_ns
        scenario.fail_starts(1, "its file is gone")
        scenario.loop.advance(SECOND_NS)
    assert all(result.failure and result.retry_after_ns for result in scenario.results)
    assert scenario.results[-1].ended - began < LIMITS.run_ns + SECOND_NS


def test_run_of_a_width_that_was_never_ready_fails_after_three_starts(scenario: Scenario) -> None:
    """The model cannot run on so few SMs: the error names the cause at once, and wider runs go on."""
    scenario.submit(1, width=10)
    scenario.fail_starts(2, "out of memory")
    scenario.until_started()
    assert not scenario.results
    scenario.fail_starts(1, "out of memory")
    scenario.loop.advance(250 * MILLISECOND_NS)
    assert ["no worker of 10 % is ready: out of memory" in result.failure for result in scenario.results] == [True]
    assert not scenario.retry_after_ns  # the worker of the whole device is ready


def test_new_requests_are_refused_while_workers_are_restarted_with_backoff(scenario: Scenario) -> None:
    """After one death the worker is restarted at once and requests wait; after a failed start they are refused."""
    assert not scenario.retry_after_ns
    scenario.model.started[0].send(None)
    assert not scenario.retry_after_ns
    scenario.fail_starts(1)
    assert scenario.retry_after_ns > 0  # until the next start
    scenario.until_started()
    assert scenario.retry_after_ns > 0  # until it is ready
    scenario.fail_starts(5)
    assert scenario.retry_after_ns > SECOND_NS  # the back-off
    scenario.until_started()
    scenario.model.started[-1].send(READY)
    assert not scenario.retry_after_ns


def test_idle_workers_are_checked_after_every_failed_start(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under MPS, an idle worker that lost its device keeps others from starting until it ends."""
    checked: list[object] = []
    monkeypatch.setattr(worker_pool, "send", lambda channel, message: checked.append((channel, message)))
    other = Model(scenario.loop)
    idle = Worker(scenario.loop, 100, 100)
    idle.ready = READY
    scenario.pool.add_model(cast("WorkerModel", other), cast("WorkerHandle", idle))
    scenario.model.started[0].send(None)
    scenario.fail_starts(2, "the driver could not create a context")
    assert checked == [(idle, CheckDevice())] * 3
