"""Live part of study `muxflow-node`: a service alone and with trainings that start, are evicted and return."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.harness.harness import PRESET, PlayerProcess
from cotenant.harness.run import Mode, Progress, SharingRun, client_of, measure_run
from cotenant.harness.scripts import Scripts, recording_arguments, task
from cotenant.runner.clock import pause
from cotenant.units.instant import SECOND_NS
from cotenant.workload.load import Workload
from cotenant_lab.bench.fill.pairs import MissingPair, read_pairs
from cotenant_lab.programs.site import CONTEXT_BYTES, NodeSite, TenantProgram
from cotenant_lab.study.muxflow_node.cases import at_level
from cotenant_lab.study.muxflow_node.run import DeviceUse, use_of

NODE_FLAGS: Final = ("--mps", "on", "--watch-period", "200ms", "--first-samples", "2", "--slots", "8")
"""The defaults, except that a device is sampled five times per second: a run takes seconds, not hours."""
RUN_NS: Final = 3 * SECOND_NS
"""Minimum duration of a run; it ends when the late tenant has ended and all trainings have returned."""
LONGEST_NS: Final = 60 * SECOND_NS
SECOND_JOINS_NS: Final = SECOND_NS // 2
NEWCOMER_JOINS_NS: Final = SECOND_NS
NEWCOMER_STAYS_NS: Final = SECOND_NS // 2
TRAINERS: Final = ("first", "second")
_SPARE_BYTES: Final = CONTEXT_BYTES + (192 << 20)
"""Part of a quota that is not the model's: context and code."""
_FORWARD: Final = 20
_SOLO_S: Final = 0.7
_SERVICE_S: Final = "120"
"""Longer than any run: the program is stopped."""
_LOOK_S: Final = 0.02
_LESSONS: Final = {True: 2, False: 8}


_GIB: Final = 1 << 30
_CHOSEN: Final = (
    ("trt resnet18 fp16", 0.10, ("train resnet50 b32", "train bert b8"), (6, 4, 5, 3)),
    ("mobilenetv2 b4", 0.25, ("train resnet50 b32", "train mobilenetv2 b64"), (7, 4, 4, 3)),
    ("vit-base /4", 0.40, ("train mobilenetv2 b64", "train resnet101 b32"), (5, 5, 5, 3)),
    ("trt resnet50 int8", 0.60, ("train transformer-xl b8", "train resnet50 b32"), (6, 5, 4, 3)),
)
"""Service, level, trainings, and in GiB the quotas of all of them and of the late tenant. The sizes are our choice:
on a device of 16 GiB the service has about the 42 % that the paper's cluster had before."""


class Quotas(msgspec.Struct, frozen=True):
    """Quotas in bytes. While the trainings run, the late tenant does not fit."""

    service: int
    first: int
    second: int
    newcomer: int


class NodeLiveCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service with its arrivals, two trainings, and the quota of each."""

    name: str
    level: float
    online: Workload
    offline: tuple[Workload, Workload]
    sizes: Quotas


def live_cases(directory: Path, *, quick: bool) -> tuple[list[NodeLiveCase], list[MissingPair]]:
    """Return a service for each level of the day; only the first if quick."""
    pairs, _ = read_pairs(directory)
    loads = {load.name: load for pair in pairs for load in (pair.online, pair.offline)}
    cases, missing = [], []
    for service, level, trainings, sizes in _CHOSEN[: 1 if quick else None]:
        name = f"{service} + {' + '.join(trainings)}"
        absent = [program for program in (service, *trainings) if program not in loads]
        online = None if absent else at_level(loads[service], level, 1)
        if online is None:
            missing.append(MissingPair(name, f"there are no measurements of {', '.join(absent)}"))
            continue
        first, second = trainings
        quotas = Quotas(*(size * _GIB for size in sizes))
        cases.append(
            NodeLiveCase(name=name, level=level, online=online, offline=(loads[first], loads[second]), sizes=quotas)
        )
    return cases, missing


class NodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    run: SharingRun
    memory: float
    """Mean fraction of the device's memory in use."""
    offline_done_ns: tuple[int, int]
    """Kernel time completed by each training, over all its processes."""
    evicted: int
    """Number of trainings that were evicted for the late tenant."""
    came_back: bool
    """Whether every training had returned at the end."""
    health: str
    """State of the device by the node after all had returned."""


class NodeLiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case: medians over rounds."""

    name: str
    level: float
    rounds: int
    before: DeviceUse
    after: DeviceUse
    memory_before: float
    memory_after: float
    offline_vs_alone: float
    """Sum of both trainings, each over its speed alone."""
    delay_ratio: float
    """Time that the service's kernels waited for others, by the device's accounting, over their device time alone."""
    p99_ratio_own_clock: float
    """By the service's own clock, including other load of this machine."""
    evicted: int
    came_back: bool
    health: list[str]
    """After each round."""


class _Watch:
    """Samples the device: memory held by each tenant, and progress of the trainings."""

    def __init__(self, site: NodeSite, progress: Sequence[Progress]) -> None:
        self._site = site
        self._progress = progress
        self._first_kernels: dict[int, int] = {}
        self._latest: dict[int, tuple[int, int]] = {}
        self._last_counters: dict[str, Any] | None = None
        self._memory_ns = 0
        self._watched_ns = 0
        self._present: set[int] = set()
        self.evicted = 0
        self.working = 0

    def sample(self) -> dict[str, Any]:
        """Take a sample."""
        counters = self._site.counters()
        present = set()
        for client in counters["clients"]:
            if client["account"] in TRAINERS:
                index, kernels = TRAINERS.index(client["account"]), client["counters"]["kernels"]
                self._first_kernels.setdefault(client["pid"], kernels if self._last_counters is None else 0)
                self._latest[client["pid"]] = index, kernels
                present.add(client["pid"])
        self.evicted += len(self._present - present)
        self._present = present
        self.working = sum(self._latest[pid][1] >= _FORWARD for pid in present)
        if self._last_counters is not None:
            passed_ns = counters["now_ns"] - self._last_counters["now_ns"]
            self._memory_ns += passed_ns * self._last_counters["counters"]["memory_bytes"]
            self._watched_ns += passed_ns
        self._last_counters = counters
        return counters

    def memory(self) -> float:
        """Return the mean fraction of the device's memory in use."""
        assert self._last_counters is not None
        return self._memory_ns / max(self._watched_ns, 1) / int(self._last_counters["memory_bytes"])

    def done_ns(self) -> tuple[int, int]:
        """Return the kernel time since the first sample, without work after a process's last sample."""
        done = [0, 0]
        for pid, (index, kernels) in self._latest.items():
            progress = self._progress[index]
            done[index] += progress.done_ns(kernels) - progress.done_ns(self._first_kernels[pid])
        return done[0], done[1]


class LiveNode(NodeSite):
    """A node with supervised MPS on a software GPU, and the programs of a case as its tenants."""

    def __init__(self, home: Path) -> None:
        """Prepare the programs without starting them."""
        super().__init__(home, PRESET, NODE_FLAGS)
        self._scripts = Scripts(home)
        self._profiled: set[str] = set()
        self._speeds_alone: dict[str, float] = {}

    def profile(self, load: Workload) -> None:
        """Time every kernel of the load once, alone."""
        if task(load) in self._profiled:
            return
        requests = _LESSONS[load.arrival.kind == "training"]
        arguments = recording_arguments(load, self._scripts, requests)
        flags = ["--offline", "--task", task(load), "--measure", "always", "--gpu", "soft:0"]
        self.run_command("run", *flags, "--", sys.executable, *arguments)
        self._profiled.add(task(load))

    def speed_alone(self, case: NodeLiveCase, index: int) -> float:
        """Return the kernel time per time of a training alone on the node."""
        load = case.offline[index]
        if load.name not in self._speeds_alone:
            program = self._trainer(case, index)
            with contextlib.ExitStack() as ends:
                self._start_trainer(program, ends)
                watch = _Watch(self, [Progress(training) for training in case.offline])
                first = watch.sample()
                pause(_SOLO_S)
                last = watch.sample()
            self._speeds_alone[load.name] = watch.done_ns()[index] / (last["now_ns"] - first["now_ns"])
        return self._speeds_alone[load.name]

    def run_players(self, case: NodeLiveCase, *, shared: bool) -> NodeRun:
        """Run the service, with a late tenant in the middle and, if shared, with the trainings."""
        mode: Mode = "cotenant mps" if shared else "through"
        trainers = [self._trainer(case, index) for index in range(len(TRAINERS))] if shared else []
        with contextlib.ExitStack() as ends:
            if trainers:
                self._start_trainer(trainers[0], ends)
            endless = [
                *self._scripts.arrival(msgspec.structs.replace(case.online, requests=0)),
                "--seconds",
                _SERVICE_S,
            ]
            service = self._online("service", case.online, case.sizes.service, endless, ends)
            service.await_ready()
            watch = _Watch(self, [Progress(load) for load in case.offline])
            begin = watch.sample()
            service.go()
            self._accompany(case, trainers, watch, ends)
            os.kill(service.pid, signal.SIGTERM)
            text = service.result()
            end = watch.sample()
            run = measure_run(mode, begin, end, (service.pid, text), None)
            health = self.health()
            service.end()
        return NodeRun(
            run=run,
            memory=watch.memory(),
            offline_done_ns=watch.done_ns(),
            evicted=watch.evicted,
            came_back=watch.working == len(trainers),
            health=health,
        )

    # -- programs ------------------------------------------------------------------------------------------------

    def _accompany(
        self, case: NodeLiveCase, trainers: Sequence[TenantProgram], watch: _Watch, ends: contextlib.ExitStack
    ) -> None:
        """Start the second training and the late tenant, and wait until evicted trainings return."""
        newcomer: PlayerProcess | None = None
        late, is_gone = list(trainers[1:]), False
        begin_ns, ready_ns = self.clock.now(), 0
        while True:
            pause(_LOOK_S)
            watch.sample()
            now_ns = self.clock.now()
            if now_ns - begin_ns >= LONGEST_NS:
                return  # a training that has not returned by now counts as not returned
            if late and now_ns - begin_ns >= SECOND_JOINS_NS:
                self._start(late.pop(), ends)
            if newcomer is None and now_ns - begin_ns >= NEWCOMER_JOINS_NS and watch.working == len(trainers):
                newcomer = self._online("newcomer", case.online, case.sizes.newcomer, ["--requests", "1"], ends)
            elif newcomer is not None and not ready_ns and newcomer.has_output():
                newcomer.await_ready()
                ready_ns = now_ns
            elif newcomer is not None and ready_ns and not is_gone and now_ns - ready_ns >= NEWCOMER_STAYS_NS:
                newcomer.end()
                is_gone = True
            elif is_gone and now_ns - begin_ns >= RUN_NS and watch.working == len(trainers):
                return

    @staticmethod
    def _start(program: TenantProgram, ends: contextlib.ExitStack) -> None:
        program.start()
        ends.callback(_stop, program)

    def _start_trainer(self, program: TenantProgram, ends: contextlib.ExitStack) -> None:
        self._start(program, ends)
        for _ in self.until(f"the training does not come forward; see {self.home / program.name}.err"):
            pid = program.pid
            with contextlib.suppress(CotenantError):
                if pid and client_of(self.counters(), pid)["counters"]["kernels"] >= _FORWARD:
                    return

    def _trainer(self, case: NodeLiveCase, index: int) -> TenantProgram:
        load = case.offline[index]
        quota = case.sizes.second if index else case.sizes.first
        flags = ["--offline", "--memory", f"{quota}B", "--task", task(load)]
        played = [
            *self._scripts.arguments(load)[1:],
            *self._scripts.arrival(load),
            "--memory",
            str(quota - _SPARE_BYTES),
        ]
        return TenantProgram(self, TRAINERS[index], flags, played)

    def _online(
        self, name: str, load: Workload, quota: int, requests: Sequence[str], ends: contextlib.ExitStack
    ) -> PlayerProcess:
        flags = ["--name", name, "--online", "--memory", f"{quota}B", "--task", task(load), "--measure", "never"]
        run = [sys.executable, "-m", "cotenant", "run", *self.directory_flags(), "--gpu", "soft:0", *flags]
        played = [*self._scripts.arguments(load), *requests, "--steered", "--memory", str(quota - _SPARE_BYTES)]
        player = PlayerProcess([*run, "--", sys.executable, *played], {**os.environ, "SOFTGPU_ACCOUNT": name})
        ends.callback(player.kill)
        return player


def _stop(program: TenantProgram) -> None:
    program.signal(signal.SIGTERM)
    program.reap()


def evaluate_live(
    node: LiveNode, case: NodeLiveCase, rounds: int, sms: int, progress: Callable[[], None] = lambda: None
) -> NodeLiveResult:
    """Alternate before and after; return medians of the rounds."""
    for load in (case.online, *case.offline):
        node.profile(load)
    alone = [node.speed_alone(case, index) for index in range(len(TRAINERS))]
    runs: list[tuple[NodeRun, NodeRun]] = []
    for _ in range(rounds):
        before = node.run_players(case, shared=False)
        runs.append((before, node.run_players(case, shared=True)))
        progress()
    return live_result(case, runs, alone, sms)


def live_result(
    case: NodeLiveCase, runs: Sequence[tuple[NodeRun, NodeRun]], alone: Sequence[float], sms: int
) -> NodeLiveResult:
    """Return medians of ratios within a round, because the machine's speed varies."""

    def median(metric: Callable[[NodeRun, NodeRun], float]) -> float:
        return statistics.median(metric(before, after) for before, after in runs)

    return NodeLiveResult(
        name=case.name,
        level=case.level,
        rounds=len(runs),
        before=_median_use([use_of(before.run, sms) for before, _ in runs]),
        after=_median_use([use_of(after.run, sms) for _, after in runs]),
        memory_before=median(lambda before, _: before.memory),
        memory_after=median(lambda _, after: after.memory),
        offline_vs_alone=median(
            lambda _, after: sum(
                done_ns / after.run.wall_ns / speed for done_ns, speed in zip(after.offline_done_ns, alone, strict=True)
            )
        ),
        delay_ratio=median(lambda _, after: after.run.online_delayed_ns / (after.run.requests * case.online.device_ns)),
        p99_ratio_own_clock=median(lambda before, after: after.run.latency_p99_ns / before.run.latency_p99_ns),
        evicted=sum(after.evicted for _, after in runs),
        came_back=all(after.came_back for _, after in runs),
        health=[after.health for _, after in runs],
    )


def _median_use(uses: Sequence[DeviceUse]) -> DeviceUse:
    return DeviceUse(
        utilization=statistics.median(use.utilization for use in uses),
        sm_activity=statistics.median(use.sm_activity for use in uses),
        p99_ms=statistics.median(use.p99_ms for use in uses),
        requests=sum(use.requests for use in uses),
    )
