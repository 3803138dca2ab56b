"""Who plays where? One software V100, its MPS daemon, a node, and the players of a scene as real processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from cotenant.domain.gate import GatePolicy, GateRules
from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import Load
from cotenant.errors import CotenantError, WorldError
from cotenant.experiment.fill.scene import Mode, Progress, Scene, client_of, scene_of
from cotenant.experiment.fill.scripts import Scripts, lesson, task
from cotenant.format.quantity import parse_duration, parse_share
from cotenant.live.client import tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.live.directory import Places
from cotenant.live.player import READY
from cotenant.live.process import run_to_end, start_piped
from cotenant.live.softgpu import fault, manage

PRESET: Final = "v100"
_GPU: Final = "v100=16GiB"
_SECOND: Final = 1
_WARM_NS: Final = 20 * MILLISECOND_NS
"""Kernel time the offline program has completed before anything is counted."""
_PATIENCE_S: Final = 90.0
_NODE_TRIES: Final = 200
_RECORDED_REQUESTS: Final = 8
_RECORDED_STEPS: Final = 2
_FOLLOWED_S: Final = 0.25
"""Between two looks: each takes the device's server a moment."""


class NodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the node is told about the gate; empty: nothing, so that its own default holds."""

    gate: str = ""
    bound: str = ""
    delay: str = ""

    def flags(self) -> list[str]:
        """For `cotenant node`."""
        given = {"--gate": self.gate, "--bound": self.bound, "--delay": self.delay}
        return [word for flag, value in given.items() if value for word in (flag, value)]

    def rules(self) -> GateRules:
        """The same for a simulated device."""
        own = GateRules()
        return msgspec.structs.replace(
            own,
            policy=GatePolicy(self.gate) if self.gate else own.policy,
            bound_ns=parse_duration(self.bound) if self.bound else own.bound_ns,
            delay_ppm=parse_share(self.delay) if self.delay else own.delay_ppm,
        )


class Player:
    """A player process that says when it is ready, begins when told, and stays until its books were read."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it; it makes its context by itself."""
        self._process = start_piped(command, environ, keep_input=True)
        self.pid = 0

    def await_ready(self) -> None:
        """Until its kernels are loaded; from here on the device knows its pid."""
        word, _, pid = self._heard().partition(" ")
        if word != READY:
            raise WorldError(f"a player said {word!r} instead of {READY!r}")
        self.pid = int(pid)

    def go(self) -> None:
        """Let it play."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What it says when it has played."""
        found: dict[str, Any] = msgspec.json.decode(self._heard())
        return found

    def has_spoken(self) -> bool:
        """Whether it has said something that was not heard yet, or ended."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def stop(self) -> None:
        """Ask it to end between two launches."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """It may go; one that does not is killed."""
        try:
            self._process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """At once."""
        self._process.kill()
        self._process.communicate()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_S)
        line = self._process.stdout.readline() if ready else ""
        if line:
            return line.strip()
        self._process.kill()
        _, complained = self._process.communicate()
        last = (complained.strip().splitlines() or ["it said nothing"])[-1]
        raise WorldError(f"a player ended or hung: {last}")


class Performance(msgspec.Struct, frozen=True):
    """A scene, and the summaries of its players; empty where there was none."""

    scene: Scene
    online: dict[str, Any]
    offline: dict[str, Any]


class Stage:
    """The device and the daemons of a bench, all in one directory, all ended with it."""

    def __init__(self, home: Path, *, detail: bool = False, devices: int = 1) -> None:
        """Start the device and MPS; a node is started when one is asked for. `detail`: players tell every request.

        A second device is for scenes in which everybody has one.
        """
        self.places = Places(home / "run", home / "state")
        self.gpus = self.places.runtime / "softgpu"
        self._home = home
        self._detail = ["--detail"] if detail else []
        self._node: subprocess.Popen[str] | None = None
        self._policy: NodePolicy | None = None
        self._scripts = Scripts(home)
        self._progress: dict[Load, Progress] = {}
        self._recorded: dict[Load, str] = {}
        for directory in (self.places.runtime, self.places.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self.gpus, PRESET, devices)
        try:
            fault.set_mps_deaths(self.gpus, 0, harm=False)
            run_to_end(["nvidia-cuda-mps-control", "-d"], self._environ(mps=True))
        except CotenantError:
            manage.destroy(self.gpus)
            raise

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End everything, whatever happened."""
        self._end_node()
        with contextlib.suppress(CotenantError):
            run_to_end(["nvidia-cuda-mps-control", "quit", "-t", "1"], self._environ(mps=True))
        manage.destroy(self.gpus)

    def rule(self, policy: NodePolicy) -> None:
        """Have a node with this policy; profiles stay from one to the next."""
        if policy == self._policy:
            return
        self._end_node()
        where = ["--runtime", str(self.places.runtime), "--state", str(self.places.state)]
        command = [sys.executable, "-m", "cotenant", "node", *where, "--gpu", _GPU, "--slots", "8", *policy.flags()]
        node = self._node = start_piped(command)
        for _ in range(_NODE_TRIES):
            if node.poll() is not None:
                _, complained = node.communicate()
                raise WorldError(f"the node did not start: {complained.strip()[-200:]}")
            with contextlib.suppress(CotenantError):
                tenants_of(self.places.socket)
                self._policy = policy
                return
            pause(0.05)
        raise WorldError(f"the node does not answer at {self.places.socket}")

    def record(self, load: Load) -> None:
        """Let cotenant time every kernel of a load, alone, once."""
        if load in self._recorded:
            return
        requests = min(load.requests, _RECORDED_REQUESTS) if load.arrival.kind != "training" else _RECORDED_STEPS
        played = lesson(load, self._scripts, requests)
        run_to_end(self._tenant(load, ["--measure", "always"], played), self._environ(mps=False))
        self._recorded[load] = task(load)

    def books(self, mode: Mode = "alone") -> dict[str, Any]:
        """The device's; where everybody has one, with the clients of both."""
        books = manage.inspect(self.gpus, 0)
        if mode == "apart":
            books["clients"] += manage.inspect(self.gpus, _SECOND)["clients"]
        return books

    def play(self, mode: Mode, online: Load | None, offline: Load | None, for_s: float = 0.0) -> Scene:
        """One scene: the online load beside the offline one, or one of them alone (the offline one for a while)."""
        return self.perform(mode, online, offline, for_s=for_s).scene

    def perform(
        self,
        mode: Mode,
        online: Load | None,
        offline: Load | None,
        *,
        for_s: float = 0.0,
        look: Callable[[int, int], None] = lambda _online, _offline: None,
        terms: Sequence[str] = (),
        tells: bool = False,
        follow: Callable[[dict[str, Any], int], None] | None = None,
    ) -> Performance:
        """A scene with all that its players said; `look` is called with their pids when the online one has played.

        `terms`: what the online one asks of cotenant besides, `tells`: it says how long its requests take. `follow` is
        called with the device's books and the kernel time that the offline one has completed, several times a second
        while the online one plays.
        """
        mps = mode in ("mps", "cotenant mps")
        through = mode in ("through", "unsampled") or mode.startswith("cotenant")
        sample = ["--sample", "0"] if mode == "unsampled" else []
        environ = self._environ(mps=mps)
        with contextlib.ExitStack() as players:
            beside = self._environ(mps=mps, gpu=_SECOND) if mode == "apart" else environ
            second = self._start(players, offline, beside, ["--offline"] if through else None)
            asks = ["--online", *sample, *terms] if through else None
            first = self._start(players, online, environ, asks, ["--tell"] if tells else [])
            if second is not None and offline is not None:
                second.await_ready()
                second.go()
                self._warm(mode, second.pid, self._progress_of(offline))
            if first is not None:
                first.await_ready()
            before = self.books(mode)
            online_said: dict[str, Any] = {}
            if first is not None:
                first.go()
                if follow is not None:
                    self._follow(mode, (first, second), offline, follow)
                online_said = first.result()
            elif second is not None:
                pause(for_s)  # in which it had no processor, perhaps, on a busy machine: a rate of nothing is none
                self._await_kernels(mode, second.pid, client_of(before, second.pid)["counters"]["kernels"] + 1)
            after = self.books(mode)
            look(0 if first is None else first.pid, 0 if second is None else second.pid)
            said = None if first is None else (first.pid, online_said)
            doing = None if second is None or offline is None else (second.pid, self._progress_of(offline))
            scene = scene_of(mode, before, after, said, doing)
            if first is not None:
                first.end()
            offline_said: dict[str, Any] = {}
            if second is not None:
                second.stop()
                offline_said = second.result()
                second.end()
            players.pop_all()
        return Performance(scene, online_said, offline_said)

    def _follow(
        self,
        mode: Mode,
        players: tuple[Player, Player | None],
        offline: Load | None,
        follow: Callable[[dict[str, Any], int], None],
    ) -> None:
        """Until the online one has played."""
        first, second = players
        while not first.has_spoken():
            books = self.books(mode)
            done_ns = 0
            if second is not None and offline is not None:
                kernels = client_of(books, second.pid)["counters"]["kernels"]
                done_ns = self._progress_of(offline).done_ns(kernels)
            follow(books, done_ns)
            pause(_FOLLOWED_S)

    def _start(
        self,
        players: contextlib.ExitStack,
        load: Load | None,
        environ: Mapping[str, str],
        flags: list[str] | None,
        also: Sequence[str] = (),
    ) -> Player | None:
        """A player as a tenant with these flags of `cotenant run`, or (without any) as a program of its own."""
        if load is None:
            return None
        arguments = [*self._scripts.arguments(load), *self._scripts.arrival(load), "--steered", *self._detail, *also]
        plain = [sys.executable, *arguments]
        command = plain if flags is None else self._tenant(load, ["--measure", "never", *flags], arguments)
        player = Player(command, environ)
        players.callback(player.kill)
        return player

    def _tenant(self, load: Load, flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
        where = ["--runtime", str(self.places.runtime), "--state", str(self.places.state), "--task", task(load)]
        run = [sys.executable, "-m", "cotenant", "run", *where, *flags]
        return [*run, "--", sys.executable, *arguments]

    def _progress_of(self, load: Load) -> Progress:
        if load not in self._progress:
            self._progress[load] = Progress(load)
        return self._progress[load]

    def _warm(self, mode: Mode, pid: int, progress: Progress) -> None:
        """Until it has completed some work; asking the device is what takes the time."""
        self._await_kernels(mode, pid, progress.kernels_by(_WARM_NS))

    def _await_kernels(self, mode: Mode, pid: int, wanted: int) -> None:
        """Until it has completed so many."""
        for _ in _until(_PATIENCE_S):
            if client_of(self.books(mode), pid)["counters"]["kernels"] >= wanted:
                return
            pause(0.002)
        raise WorldError("the offline program does not come forward; look at its node with `cotenant ps`")

    def _environ(self, *, mps: bool, gpu: int = 0) -> dict[str, str]:
        pipe = self._home / ("pipe" if mps else "no-pipe")
        return {
            **os.environ,
            **manage.env(self.gpus),
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self._home / "log"),
        }

    def _end_node(self) -> None:
        node, self._node, self._policy = self._node, None, None
        if node is not None:
            node.terminate()
            node.communicate()


def _until(seconds: float) -> Iterator[None]:
    clock = LiveClock()
    end = clock.now() + round(seconds * 1e9)
    while clock.now() < end:
        yield
