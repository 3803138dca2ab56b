"""What does sharing do to a real node? A service alone and beside trainings that come, are evicted and come back."""

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

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.load import Load
from cotenant.errors import CotenantError
from cotenant.experiment.fill.pairs import Missing, read_pairs
from cotenant.experiment.fill.scene import Mode, Progress, Scene, client_of, scene_of
from cotenant.experiment.fill.scripts import Scripts, lesson, task
from cotenant.experiment.fill.stage import PRESET, Player
from cotenant.experiment.lab.muxflow import Use, use_of
from cotenant.experiment.lab.muxflow_cases import at_level
from cotenant.experiment.site import CONTEXT_BYTES, Program, Site
from cotenant.live.clock import pause

NODE_FLAGS: Final = ("--mps", "on", "--watch-period", "200ms", "--first-samples", "2", "--slots", "8")
"""The defaults, but a device is looked at five times a second: a run takes seconds, not hours."""
RUN_NS: Final = 3 * SECOND_NS
"""The least that a run lasts; it ends when the newcomer has gone and all trainings are back."""
LONGEST_NS: Final = 60 * SECOND_NS
SECOND_JOINS_NS: Final = SECOND_NS // 2
NEWCOMER_JOINS_NS: Final = SECOND_NS
NEWCOMER_STAYS_NS: Final = SECOND_NS // 2
TRAINERS: Final = ("first", "second")
_SPARE_BYTES: Final = CONTEXT_BYTES + (192 << 20)
"""Of a quota, what is not a model's: the context and the code."""
_FORWARD: Final = 20
_SOLO_S: Final = 0.7
_SERVICE_S: Final = "120"
"""Longer than any run: it is told when to stop."""
_LOOK_S: Final = 0.02
_LESSONS: Final = {True: 2, False: 8}


_GIB: Final = 1 << 30
_CHOSEN: Final = (
    ("trt resnet18 fp16", 0.10, ("train resnet50 b32", "train bert b8"), (6, 4, 5, 3)),
    ("mobilenetv2 b4", 0.25, ("train resnet50 b32", "train mobilenetv2 b64"), (7, 4, 4, 3)),
    ("vit-base /4", 0.40, ("train mobilenetv2 b64", "train resnet101 b32"), (5, 5, 5, 3)),
    ("trt resnet50 int8", 0.60, ("train transformer-xl b8", "train resnet50 b32"), (6, 5, 4, 3)),
)
"""Service, level, trainings, and in GiB the quotas of all and of the newcomer. The sizes are our choice: on a device of
16 GiB the service has about the 42 % that the paper's cluster had before."""


class Sizes(msgspec.Struct, frozen=True):
    """Quotas, in bytes. With the trainings there, the newcomer finds no room."""

    service: int
    first: int
    second: int
    newcomer: int


class LiveCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service with its arrivals, two trainings, and what each may hold."""

    name: str
    level: float
    online: Load
    offline: tuple[Load, Load]
    sizes: Sizes


def live_cases(directory: Path, *, quick: bool) -> tuple[list[LiveCase], list[Missing]]:
    """A service for each level of the day; the first alone where it must be quick."""
    pairs, _ = read_pairs(directory)
    loads = {load.name: load for pair in pairs for load in (pair.online, pair.offline)}
    found, missing = [], []
    for service, level, trainings, sizes in _CHOSEN[: 1 if quick else None]:
        name = f"{service} + {' + '.join(trainings)}"
        absent = [one for one in (service, *trainings) if one not in loads]
        online = None if absent else at_level(loads[service], level, 1)
        if online is None:
            missing.append(Missing(name, f"there are no measurements of {', '.join(absent)}"))
            continue
        first, second = trainings
        quotas = Sizes(*(size * _GIB for size in sizes))
        found.append(
            LiveCase(name=name, level=level, online=online, offline=(loads[first], loads[second]), sizes=quotas)
        )
    return found, missing


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    scene: Scene
    memory: float
    """Of the device's memory, what was taken in the mean over the time."""
    offline_done_ns: tuple[int, int]
    """Kernel time completed by each training, over all its processes."""
    evicted: int
    """How many trainings had to go for the newcomer."""
    came_back: bool
    """Whether every training was there again in the end."""
    health: str
    """Of the device, by the node, while everybody was there again."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One case: medians over rounds."""

    name: str
    level: float
    rounds: int
    before: Use
    after: Use
    memory_before: float
    memory_after: float
    offline_vs_alone: float
    """Of both trainings together, each over its speed alone."""
    delay_ratio: float
    """What the service's kernels waited for others, by the device's books, over the device time they take alone."""
    p99_ratio_own_clock: float
    """By the service's own clock, with all that this machine did meanwhile."""
    evicted: int
    came_back: bool
    health: list[str]
    """After each round."""


class _Watch:
    """Looks at the device again and again: who holds how much, and how far the trainings are."""

    def __init__(self, site: Site, progress: Sequence[Progress]) -> None:
        self._site = site
        self._progress = progress
        self._from: dict[int, int] = {}
        self._latest: dict[int, tuple[int, int]] = {}
        self._before: dict[str, Any] | None = None
        self._memory_ns = 0
        self._watched_ns = 0
        self._present: set[int] = set()
        self.evicted = 0
        self.working = 0

    def look(self) -> dict[str, Any]:
        """At the books of this instant."""
        books = self._site.books()
        present = set()
        for client in books["clients"]:
            if client["account"] in TRAINERS:
                place, kernels = TRAINERS.index(client["account"]), client["counters"]["kernels"]
                self._from.setdefault(client["pid"], kernels if self._before is None else 0)
                self._latest[client["pid"]] = place, kernels
                present.add(client["pid"])
        self.evicted += len(self._present - present)
        self._present = present
        self.working = sum(self._latest[pid][1] >= _FORWARD for pid in present)
        if self._before is not None:
            passed_ns = books["now_ns"] - self._before["now_ns"]
            self._memory_ns += passed_ns * self._before["counters"]["memory_bytes"]
            self._watched_ns += passed_ns
        self._before = books
        return books

    def memory(self) -> float:
        """Of the device's, in the mean."""
        assert self._before is not None
        return self._memory_ns / max(self._watched_ns, 1) / int(self._before["memory_bytes"])

    def done_ns(self) -> tuple[int, int]:
        """Since the first look; what a process did after the last look before its end is not known."""
        done = [0, 0]
        for pid, (place, kernels) in self._latest.items():
            progress = self._progress[place]
            done[place] += progress.done_ns(kernels) - progress.done_ns(self._from[pid])
        return done[0], done[1]


class LiveNode(Site):
    """A node with supervised MPS on a software GPU, and the programs of a case as its tenants."""

    def __init__(self, home: Path) -> None:
        """Nothing runs yet."""
        super().__init__(home, PRESET, NODE_FLAGS)
        self._scripts = Scripts(home)
        self._taught: set[str] = set()
        self._alone: dict[str, float] = {}

    def teach(self, load: Load) -> None:
        """Let cotenant time every kernel of it, alone, once."""
        if task(load) in self._taught:
            return
        requests = _LESSONS[load.arrival.kind == "training"]
        played = lesson(load, self._scripts, requests)
        how = ["--offline", "--task", task(load), "--measure", "always", "--gpu", "soft:0"]
        self.ask("run", *how, "--", sys.executable, *played)
        self._taught.add(task(load))

    def speed_alone(self, case: LiveCase, place: int) -> float:
        """Kernel time per time of a training that has the node to itself."""
        load = case.offline[place]
        if load.name not in self._alone:
            program = self._trainer(case, place)
            with contextlib.ExitStack() as ends:
                self._start_trainer(program, ends)
                watch = _Watch(self, [Progress(one) for one in case.offline])
                first = watch.look()
                pause(_SOLO_S)
                last = watch.look()
            self._alone[load.name] = watch.done_ns()[place] / (last["now_ns"] - first["now_ns"])
        return self._alone[load.name]

    def perform(self, case: LiveCase, *, shared: bool) -> Act:
        """The service for a while; a newcomer in the middle of it; if shared, beside the trainings."""
        mode: Mode = "cotenant mps" if shared else "through"
        trainers = [self._trainer(case, place) for place in range(len(TRAINERS))] if shared else []
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
            watch = _Watch(self, [Progress(one) for one in case.offline])
            before = watch.look()
            service.go()
            self._accompany(case, trainers, watch, ends)
            os.kill(service.pid, signal.SIGTERM)
            said = service.result()
            after = watch.look()
            scene = scene_of(mode, before, after, (service.pid, said), None)
            health = self.health()
            service.end()
        return Act(
            scene=scene,
            memory=watch.memory(),
            offline_done_ns=watch.done_ns(),
            evicted=watch.evicted,
            came_back=watch.working == len(trainers),
            health=health,
        )

    # -- the programs --------------------------------------------------------------------------------------------

    def _accompany(
        self, case: LiveCase, trainers: Sequence[Program], watch: _Watch, ends: contextlib.ExitStack
    ) -> None:
        """While the service serves: the second training comes, the newcomer comes and goes, who was evicted returns."""
        newcomer: Player | None = None
        late, is_gone = list(trainers[1:]), False
        began_ns, ready_ns = self.clock.now(), 0
        while True:
            pause(_LOOK_S)
            watch.look()
            now_ns = self.clock.now()
            if now_ns - began_ns >= LONGEST_NS:
                return  # whoever is not back by now is told as not back
            if late and now_ns - began_ns >= SECOND_JOINS_NS:
                self._start(late.pop(), ends)
            if newcomer is None and now_ns - began_ns >= NEWCOMER_JOINS_NS and watch.working == len(trainers):
                newcomer = self._online("newcomer", case.online, case.sizes.newcomer, ["--requests", "1"], ends)
            elif newcomer is not None and not ready_ns and newcomer.has_spoken():
                newcomer.await_ready()
                ready_ns = now_ns
            elif newcomer is not None and ready_ns and not is_gone and now_ns - ready_ns >= NEWCOMER_STAYS_NS:
                newcomer.end()
                is_gone = True
            elif is_gone and now_ns - began_ns >= RUN_NS and watch.working == len(trainers):
                return

    @staticmethod
    def _start(program: Program, ends: contextlib.ExitStack) -> None:
        program.start()
        ends.callback(_stop, program)

    def _start_trainer(self, program: Program, ends: contextlib.ExitStack) -> None:
        self._start(program, ends)
        for _ in self.until(f"the training does not come forward; see {self.home / program.name}.err"):
            pid = program.pid
            with contextlib.suppress(CotenantError):
                if pid and client_of(self.books(), pid)["counters"]["kernels"] >= _FORWARD:
                    return

    def _trainer(self, case: LiveCase, place: int) -> Program:
        load = case.offline[place]
        quota = case.sizes.second if place else case.sizes.first
        flags = ["--offline", "--memory", f"{quota}B", "--task", task(load)]
        played = [
            *self._scripts.arguments(load)[1:],
            *self._scripts.arrival(load),
            "--memory",
            str(quota - _SPARE_BYTES),
        ]
        return Program(self, TRAINERS[place], flags, played)

    def _online(self, name: str, load: Load, quota: int, requests: Sequence[str], ends: contextlib.ExitStack) -> Player:
        flags = ["--name", name, "--online", "--memory", f"{quota}B", "--task", task(load), "--measure", "never"]
        run = [sys.executable, "-m", "cotenant", "run", *self.where(), "--gpu", "soft:0", *flags]
        played = [*self._scripts.arguments(load), *requests, "--steered", "--memory", str(quota - _SPARE_BYTES)]
        player = Player([*run, "--", sys.executable, *played], {**os.environ, "SOFTGPU_ACCOUNT": name})
        ends.callback(player.kill)
        return player


def _stop(program: Program) -> None:
    program.signal(signal.SIGTERM)
    program.reap()


def judge_live(
    node: LiveNode, case: LiveCase, rounds: int, sms: int, progress: Callable[[], None] = lambda: None
) -> Told:
    """Before and after in turns; medians of the rounds."""
    for load in (case.online, *case.offline):
        node.teach(load)
    alone = [node.speed_alone(case, place) for place in range(len(TRAINERS))]
    acts: list[tuple[Act, Act]] = []
    for _ in range(rounds):
        before = node.perform(case, shared=False)
        acts.append((before, node.perform(case, shared=True)))
        progress()
    return told_of(case, acts, alone, sms)


def told_of(case: LiveCase, acts: Sequence[tuple[Act, Act]], alone: Sequence[float], sms: int) -> Told:
    """Medians of figures within a round: the machine's mood changes."""

    def median(of: Callable[[Act, Act], float]) -> float:
        return statistics.median(of(before, after) for before, after in acts)

    return Told(
        name=case.name,
        level=case.level,
        rounds=len(acts),
        before=_middle([use_of(before.scene, sms) for before, _ in acts]),
        after=_middle([use_of(after.scene, sms) for _, after in acts]),
        memory_before=median(lambda before, _: before.memory),
        memory_after=median(lambda _, after: after.memory),
        offline_vs_alone=median(
            lambda _, after: sum(
                done_ns / after.scene.wall_ns / speed
                for done_ns, speed in zip(after.offline_done_ns, alone, strict=True)
            )
        ),
        delay_ratio=median(
            lambda _, after: after.scene.online_delayed_ns / (after.scene.requests * case.online.device_ns)
        ),
        p99_ratio_own_clock=median(lambda before, after: after.scene.latency_p99_ns / before.scene.latency_p99_ns),
        evicted=sum(after.evicted for _, after in acts),
        came_back=all(after.came_back for _, after in acts),
        health=[after.health for _, after in acts],
    )


def _middle(uses: Sequence[Use]) -> Use:
    return Use(
        utilization=statistics.median(use.utilization for use in uses),
        sm_activity=statistics.median(use.sm_activity for use in uses),
        p99_ms=statistics.median(use.p99_ms for use in uses),
        requests=sum(use.requests for use in uses),
    )
