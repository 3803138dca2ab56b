"""What do tenants use of a device, by its own counters? A software GPU, a node, and real programs that want more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cotenant.errors import CotenantError, WorldError
from cotenant.live.client import tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.live.directory import Places
from cotenant.live.process import run_to_end
from cotenant.live.soak.stalls import Lost, Stalls
from cotenant.live.softgpu import manage

WINDOW_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_LESSONS: Final = 40


class Seen(NamedTuple):
    """The device's counters at an instant of its own."""

    at_ns: int
    sms: int
    sm_ns: dict[str, int]

    def since(self, before: Seen, account: str) -> float:
        """Of the device, what somebody used since then, in percent."""
        used_ns = self.sm_ns.get(account, 0) - before.sm_ns.get(account, 0)
        return 100 * used_ns / ((self.at_ns - before.at_ns) * self.sms)


class World:
    """A software GPU and a node, in one directory; ended with it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._places = Places(home / "run", home / "state")
        self._gpus = self._places.runtime / "softgpu"
        self._clock = LiveClock(0)
        self._stalls = Stalls()
        self._node: subprocess.Popen[bytes] | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for directory in (self._places.runtime, self._places.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stalls.begin()
        manage.create(self._gpus, "v100", 1)
        self._node = self._start(self._cotenant("node", "--slots", "6"), "")
        for _ in self._until("the node does not answer"):
            try:
                tenants_of(self._places.socket)
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
        """Let every kernel be timed once, alone: a limit is as good as what is known of the work."""
        for kind in kinds:
            command = [*self._run("learner", "--offline", "--task", kind, "--measure", "always"), "--", *_program(kind)]
            run_to_end([*command, "--bursts", str(_LESSONS)], dict(os.environ))

    def windows(self, seconds: float) -> list[Seen]:
        """The counters, window after window, for so long."""
        looks = [self.look()]
        while looks[-1].at_ns - looks[0].at_ns < seconds * 1e9:
            pause(WINDOW_S)
            looks.append(self.look())
        return looks

    def lost(self) -> Lost:
        """For how long each processor ran nothing of ours so far."""
        return self._stalls.look()

    def look(self) -> Seen:
        """The counters now."""
        books: dict[str, Any] = manage.inspect(self._gpus, 0)
        used: dict[str, int] = {}
        for client in books["clients"]:  # a tenant may have several processes
            used[client["account"]] = used.get(client["account"], 0) + client["counters"]["sm_ns"]
        return Seen(books["now_ns"], books["sm_count"], used)

    def begin(self, name: str, kind: str, *flags: str, online: bool = False, more: tuple[str, ...] = ()) -> None:
        """A tenant of that name does that kind of work; it returns when the device has seen something of it."""
        how = ("--online", "--measure", "never") if online else ("--offline", "--measure", "never")
        command = [*self._run(name, *how, "--task", kind, *flags), "--", *_program(kind), *more]
        self._running[name] = self._start(command, name)
        for _ in self._until(f"{name} launches nothing; see what it says in {self._home}"):
            if self._running[name].poll() is not None:
                told = (self._home / "complaints").read_text(encoding="utf-8", errors="replace")
                raise WorldError(f"{name} ended: {told.strip()[-300:]}")
            if self.look().sm_ns.get(name):
                return

    def end(self, *names: str) -> None:
        """`cotenant run` sees to its program."""
        for name in names:
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def set(self, name: str, *words: str) -> None:
        """`cotenant set`, while it runs."""
        run_to_end(self._cotenant("set", name, *words), dict(os.environ))

    def _cotenant(self, *words: str) -> list[str]:
        where = ["--runtime", str(self._places.runtime), "--state", str(self._places.state)]
        return [sys.executable, "-m", "cotenant", words[0], *where, *words[1:]]

    def _run(self, name: str, *flags: str) -> list[str]:
        return self._cotenant("run", "--name", name, "--gpu", "soft:0", *flags)

    def _start(self, command: list[str], account: str) -> subprocess.Popen[bytes]:
        with (self._home / "complaints").open("ab") as complaints:
            return subprocess.Popen(
                command,
                env={**os.environ, "SOFTGPU_ACCOUNT": account} if account else None,
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
            )

    def _until(self, otherwise: str) -> Iterator[None]:
        end_ns = self._clock.now() + round(_PATIENCE_S * 1e9)
        while self._clock.now() < end_ns:
            yield
            pause(WINDOW_S / 2)
        raise WorldError(otherwise)


def _program(kind: str) -> list[str]:
    return [sys.executable, "-m", "cotenant.live.soak.press", kind]
