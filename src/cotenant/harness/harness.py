"""Live sharing runs: a software V100, its MPS daemon, a node, and player processes."""

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

from cotenant.errors import CotenantError, WorldError
from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.harness.run import Mode, Progress, SharingRun, client_of, measure_run
from cotenant.harness.scripts import Scripts, recording_arguments, task
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.process import run_and_capture, start_with_pipes
from cotenant.softgpu import fault, manage
from cotenant.softgpu.costs import HARDWARE, GpuCosts
from cotenant.units.instant import MILLISECOND_NS
from cotenant.units.text import parse_duration, parse_share
from cotenant.workload.load import Workload
from cotenant.workload.player import READY

PRESET: Final = "v100"
_GPU: Final = "v100=16GiB"
LOW_MPS_PRIORITY: Final = {"CUDA_MPS_CLIENT_PRIORITY": "1"}
_SECOND: Final = 1
_WARM_NS: Final = 20 * MILLISECOND_NS
"""Kernel time that the offline program completes before measurement begins."""
_TIMEOUT_S: Final = 90.0
_NODE_TRIES: Final = 200
_RECORDED_REQUESTS: Final = 8
_RECORDED_STEPS: Final = 2
_FOLLOW_INTERVAL_S: Final = 0.25
"""Interval between two queries of the device, each of which takes its server some time."""


class NodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Gate options of the node; empty values keep its defaults."""

    gate: str = ""
    bound: str = ""
    delay: str = ""
    sms: str = ""

    def flags(self) -> list[str]:
        """Return the flags for `cotenant node`."""
        options = {"--gate": self.gate, "--bound": self.bound, "--delay": self.delay, "--sms": self.sms}
        return [word for flag, value in options.items() if value for word in (flag, value)]

    def rules(self) -> GateRules:
        """Return the same rules for a simulated device."""
        defaults = GateRules()
        return msgspec.structs.replace(
            defaults,
            policy=GatePolicy(self.gate) if self.gate else defaults.policy,
            bound_ns=parse_duration(self.bound) if self.bound else defaults.bound_ns,
            delay_ppm=parse_share(self.delay) if self.delay else defaults.delay_ppm,
            sm_ppm=(parse_share(self.sms) or None) if self.sms else defaults.sm_ppm,
        )


class PlayerProcess:
    """A player process that reports when it is ready, starts on command, and stays until its counters were read."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the process."""
        self._process = start_with_pipes(command, environ, keep_input=True)
        self.pid = 0

    def await_ready(self) -> None:
        """Wait until its kernels are loaded; from then on the device knows its pid."""
        word, _, pid = self._next_line().partition(" ")
        if word != READY:
            raise WorldError(f"a player printed {word!r} instead of {READY!r}")
        self.pid = int(pid)

    def go(self) -> None:
        """Start playing."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Return its summary after it has played."""
        summary: dict[str, Any] = msgspec.json.decode(self._next_line())
        return summary

    def has_output(self) -> bool:
        """Return whether it has written output that was not read yet, or has ended."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def stop(self) -> None:
        """Ask it to end between two launches."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Let it end; kill it if it does not."""
        try:
            self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def _next_line(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_S)
        line = self._process.stdout.readline() if ready else ""
        if line:
            return line.strip()
        self._process.kill()
        _, errors = self._process.communicate()
        last = (errors.strip().splitlines() or ["it wrote no error"])[-1]
        raise WorldError(f"a player ended or hung: {last}")


class PlayersRun(msgspec.Struct, frozen=True):
    """A run and the summaries of its players; empty for an absent player."""

    run: SharingRun
    online: dict[str, Any]
    offline: dict[str, Any]


class SharingHarness:
    """The device and daemons of sharing runs in one directory, ended together."""

    def __init__(self, home: Path, *, detail: bool = False, devices: int = 1, costs: GpuCosts = HARDWARE) -> None:
        """Start the device and MPS; a node starts when a policy is set. `detail`: players report every request.

        A second device is for runs in which each program has its own.
        """
        self.directories = Directories(home / "run", home / "state")
        self.gpus = self.directories.runtime / "softgpu"
        self.offline_environ: Mapping[str, str] = {}
        """Added to the environment of the offline program, such as its limits under MPS."""
        self._home = home
        self._detail = ["--detail"] if detail else []
        self._node: subprocess.Popen[str] | None = None
        self._policy: NodePolicy | None = None
        self._scripts = Scripts(home)
        self._progress: dict[Workload, Progress] = {}
        self._recorded: dict[Workload, str] = {}
        for directory in (self.directories.runtime, self.directories.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self.gpus, PRESET, devices, costs=costs)
        try:
            fault.set_mps_deaths(self.gpus, 0, harm=False)
            run_and_capture(["nvidia-cuda-mps-control", "-d"], self._environ(mps=True))
        except CotenantError:
            manage.destroy(self.gpus)
            raise

    def __enter__(self) -> Self:
        """Return the harness."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all processes."""
        self._end_node()
        with contextlib.suppress(CotenantError):
            run_and_capture(["nvidia-cuda-mps-control", "quit", "-t", "1"], self._environ(mps=True))
        manage.destroy(self.gpus)

    def set_policy(self, policy: NodePolicy) -> None:
        """Run a node with this policy; profiles are kept."""
        if policy == self._policy:
            return
        self._end_node()
        where = ["--runtime-dir", str(self.directories.runtime), "--state-dir", str(self.directories.state)]
        command = [sys.executable, "-m", "cotenant", "node", *where, "--gpu", _GPU, "--slots", "8", *policy.flags()]
        node = self._node = start_with_pipes(command)
        for _ in range(_NODE_TRIES):
            if node.poll() is not None:
                _, errors = node.communicate()
                raise WorldError(f"the node did not start: {errors.strip()[-200:]}")
            with contextlib.suppress(CotenantError):
                list_tenants(self.directories)
                self._policy = policy
                return
            pause(0.05)
        raise WorldError(f"the node does not answer at {self.directories.tenant_socket}")

    def record(self, load: Workload) -> None:
        """Record a profile of every kernel of a load, alone, once."""
        if load in self._recorded:
            return
        requests = min(load.requests, _RECORDED_REQUESTS) if load.arrival.kind != "training" else _RECORDED_STEPS
        arguments = recording_arguments(load, self._scripts, requests)
        run_and_capture(self._tenant(load, ["--measure", "always"], arguments), self._environ(mps=False))
        self._recorded[load] = task(load)

    def counters(self, mode: Mode = "alone") -> dict[str, Any]:
        """Return the counters of the device; in mode "apart" with the clients of both devices."""
        counters = manage.inspect(self.gpus, 0)
        if mode == "apart":
            counters["clients"] += manage.inspect(self.gpus, _SECOND)["clients"]
        return counters

    def play(self, mode: Mode, online: Workload | None, offline: Workload | None, for_s: float = 0.0) -> SharingRun:
        """Run the online load with the offline one, or one of them alone (the offline one for `for_s`)."""
        return self.run_players(mode, online, offline, for_s=for_s).run

    def run_players(
        self,
        mode: Mode,
        online: Workload | None,
        offline: Workload | None,
        *,
        for_s: float = 0.0,
        on_played: Callable[[int, int], None] = lambda _online, _offline: None,
        online_flags: Sequence[str] = (),
        reports_latency: bool = False,
        follow: Callable[[dict[str, Any], int], None] | None = None,
    ) -> PlayersRun:
        """Run the players and return the run with their output.

        `on_played` is called with their pids after the online one has played. `online_flags` are further options of
        `cotenant run` for the online one; with `reports_latency` it reports the duration of its requests. `follow` is
        called with the device's counters and the offline one's completed kernel time several times a second while the
        online one plays.
        """
        mps = "mps" in mode.split()
        as_tenants = mode in ("through", "unsampled") or mode.startswith("cotenant")
        sample = ["--sample", "0"] if mode == "unsampled" else []
        environ = self._environ(mps=mps)
        with contextlib.ExitStack() as players:
            second_environ = self._environ(mps=mps, gpu=_SECOND) if mode == "apart" else environ
            second_environ = {**second_environ, **self.offline_environ}
            if mode == "mps priorities":
                second_environ = {**second_environ, **LOW_MPS_PRIORITY}
            second = self._start(players, offline, second_environ, ["--offline"] if as_tenants else None)
            online_options = ["--online", *sample, *online_flags] if as_tenants else None
            first = self._start(players, online, environ, online_options, ["--tell"] if reports_latency else [])
            if second is not None and offline is not None:
                second.await_ready()
                second.go()
                self._await_warm_up(mode, second.pid, self._progress_of(offline))
            if first is not None:
                first.await_ready()
            before = self.counters(mode)
            online_output: dict[str, Any] = {}
            if first is not None:
                first.go()
                if follow is not None:
                    self._follow(mode, (first, second), offline, follow)
                online_output = first.result()
            elif second is not None:
                pause(for_s)  # on a busy machine it may not have run yet, and a rate of zero is no measurement
                self._await_kernels(mode, second.pid, client_of(before, second.pid)["counters"]["kernels"] + 1)
            after = self.counters(mode)
            on_played(0 if first is None else first.pid, 0 if second is None else second.pid)
            output = None if first is None else (first.pid, online_output)
            offline_progress = None if second is None or offline is None else (second.pid, self._progress_of(offline))
            run = measure_run(mode, before, after, output, offline_progress)
            if first is not None:
                first.end()
            offline_output: dict[str, Any] = {}
            if second is not None:
                second.stop()
                offline_output = second.result()
                second.end()
            players.pop_all()
        return PlayersRun(run, online_output, offline_output)

    def _follow(
        self,
        mode: Mode,
        players: tuple[PlayerProcess, PlayerProcess | None],
        offline: Workload | None,
        follow: Callable[[dict[str, Any], int], None],
    ) -> None:
        """Call `follow` until the online player has played."""
        first, second = players
        while not first.has_output():
            counters = self.counters(mode)
            done_ns = 0
            if second is not None and offline is not None:
                kernels = client_of(counters, second.pid)["counters"]["kernels"]
                done_ns = self._progress_of(offline).done_ns(kernels)
            follow(counters, done_ns)
            pause(_FOLLOW_INTERVAL_S)

    def _start(
        self,
        players: contextlib.ExitStack,
        load: Workload | None,
        environ: Mapping[str, str],
        flags: list[str] | None,
        also: Sequence[str] = (),
    ) -> PlayerProcess | None:
        """Start a player as a tenant with these flags of `cotenant run`, or without flags as a plain program."""
        if load is None:
            return None
        arguments = [*self._scripts.arguments(load), *self._scripts.arrival(load), "--steered", *self._detail, *also]
        plain = [sys.executable, *arguments]
        command = plain if flags is None else self._tenant(load, ["--measure", "never", *flags], arguments)
        player = PlayerProcess(command, environ)
        players.callback(player.kill)
        return player

    def _tenant(self, load: Workload, flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
        where = [
            "--runtime-dir",
            str(self.directories.runtime),
            "--state-dir",
            str(self.directories.state),
            "--task",
            task(load),
        ]
        run = [sys.executable, "-m", "cotenant", "run", *where, *flags]
        return [*run, "--", sys.executable, *arguments]

    def _progress_of(self, load: Workload) -> Progress:
        if load not in self._progress:
            self._progress[load] = Progress(load)
        return self._progress[load]

    def _await_warm_up(self, mode: Mode, pid: int, progress: Progress) -> None:
        """Wait until it has completed some work."""
        self._await_kernels(mode, pid, progress.kernels_by(_WARM_NS))

    def _await_kernels(self, mode: Mode, pid: int, wanted: int) -> None:
        """Wait until it has completed this many kernels."""
        for _ in _until(_TIMEOUT_S):
            if client_of(self.counters(mode), pid)["counters"]["kernels"] >= wanted:
                return
            pause(0.002)
        raise WorldError("the offline program makes no progress; inspect its node with `cotenant ps`")

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
