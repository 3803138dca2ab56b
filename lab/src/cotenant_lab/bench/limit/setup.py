"""Setup of bench `limit`: a software GPU with its counters, a node, and programs that want more than their share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cotenant.errors import CotenantError, WorldError
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.process import run_and_capture
from cotenant.softgpu import manage
from cotenant.softgpu.costs import HARDWARE
from cotenant_lab.errors import RunFailedError
from cotenant_lab.programs.stalls import LostTime, Stalls

WINDOW_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_LESSONS: Final = 40


class DeviceCounters(NamedTuple):
    """The device's counters at an instant of its own clock."""

    at_ns: int
    sms: int
    sm_ns: dict[str, int]

    def since(self, begin: DeviceCounters, account: str) -> float:
        """Return the percentage of the device that an account used since `before`."""
        used_ns = self.sm_ns.get(account, 0) - begin.sm_ns.get(account, 0)
        return 100 * used_ns / ((self.at_ns - begin.at_ns) * self.sms)


class LimitSetup:
    """A software GPU and a node in one directory."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._directories = Directories(home / "run", home / "state")
        self._gpus = self._directories.runtime / "softgpu"
        self._clock = LiveClock(0)
        self._stalls = Stalls()
        self._node: subprocess.Popen[bytes] | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for directory in (self._directories.runtime, self._directories.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stalls.begin()
        manage.create(self._gpus, "v100", 1, costs=HARDWARE)
        self._node = self._start(self._cotenant("node", "--slots", "6"), "")
        for _ in self._until("the node does not answer"):
            try:
                list_tenants(self._directories)
            except CotenantError:
                continue
            return self
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.end(name)
        if self._node is not None:
            self._node.terminate()
            self._node.wait()
        manage.destroy(self._gpus)
        self._stalls.end()

    def learn(self, kinds: tuple[str, ...]) -> None:
        """Time every kernel of each kind alone: a limit is as exact as the kernel times that are known."""
        for kind in kinds:
            command = [*self._run("learner", "--offline", "--task", kind, "--measure", "always"), "--", *_program(kind)]
            run_and_capture([*command, "--bursts", str(_LESSONS)], dict(os.environ))

    def windows(self, seconds: float) -> list[DeviceCounters]:
        """Return the counters at the end of each window of `seconds`."""
        snapshots = [self.snapshot()]
        while snapshots[-1].at_ns - snapshots[0].at_ns < seconds * 1e9:
            pause(WINDOW_S)
            snapshots.append(self.snapshot())
        return snapshots

    def lost(self) -> LostTime:
        """Return for how long each processor has not run our threads so far."""
        return self._stalls.lost_time()

    def snapshot(self) -> DeviceCounters:
        """Return the counters now."""
        counters: dict[str, Any] = manage.inspect(self._gpus, 0)
        used: dict[str, int] = {}
        for client in counters["clients"]:  # a tenant may have several processes
            used[client["account"]] = used.get(client["account"], 0) + client["counters"]["sm_ns"]
        return DeviceCounters(counters["now_ns"], counters["sm_count"], used)

    def begin(
        self, name: str, kind: str, *flags: str, online: bool = False, program_flags: tuple[str, ...] = ()
    ) -> None:
        """Start a tenant that does that kind of work; return when the device has counted work of it."""
        tenant_flags = ("--online", "--measure", "never") if online else ("--offline", "--measure", "never")
        command = [*self._run(name, *tenant_flags, "--task", kind, *flags), "--", *_program(kind), *program_flags]
        self._running[name] = self._start(command, name)
        for _ in self._until(f"{name} launches nothing; see its output in {self._home}"):
            if self._running[name].poll() is not None:
                output = (self._home / "output").read_text(encoding="utf-8", errors="replace")
                raise RunFailedError(f"{name} ended: {output.strip()[-300:]}")
            if self.snapshot().sm_ns.get(name):
                return

    def end(self, *names: str) -> None:
        """Terminate the `cotenant run` of each tenant, which ends its program."""
        for name in names:
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def set(self, name: str, *words: str) -> None:
        """Run `cotenant set` for a running tenant."""
        run_and_capture(self._cotenant("set", name, *words), dict(os.environ))

    def _cotenant(self, *words: str) -> list[str]:
        directory_flags = ["--runtime-dir", str(self._directories.runtime), "--state-dir", str(self._directories.state)]
        return [sys.executable, "-m", "cotenant", words[0], *directory_flags, *words[1:]]

    def _run(self, name: str, *flags: str) -> list[str]:
        return self._cotenant("run", "--name", name, "--gpu", "soft:0", *flags)

    def _start(self, command: list[str], account: str) -> subprocess.Popen[bytes]:
        with (self._home / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                env={**os.environ, "SOFTGPU_ACCOUNT": account} if account else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _until(self, otherwise: str) -> Iterator[None]:
        end_ns = self._clock.now() + round(_PATIENCE_S * 1e9)
        while self._clock.now() < end_ns:
            yield
            pause(WINDOW_S / 2)
        raise WorldError(otherwise)


def _program(kind: str) -> list[str]:
    return [sys.executable, "-m", "cotenant_lab.programs.busy", kind]
