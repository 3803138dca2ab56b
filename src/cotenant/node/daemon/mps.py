"""Supervise the node's MPS: start the control daemon and its server, watch them, and restart them."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import ConfigError, WorldError
from cotenant.node.model.event import Event, MpsStatusChanged
from cotenant.node.model.protection import clipped
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.runner.background import BackgroundTasks, TaskResult
from cotenant.runner.live_loop import READ, LiveLoop
from cotenant.runner.ports import Clock
from cotenant.softgpu import manage
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Duration, Instant

CONTROL: Final = "nvidia-cuda-mps-control"
MPS_DIRECTORY: Final = "mps"
"""The directory of MPS in the node's runtime directory."""
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
PIPE: Final = "pipe"
_PID_FILE: Final = f"{CONTROL}.pid"
_SOCKET_PATH_LIMIT: Final = 107
_COMMAND_S: Final = 60.0
_QUIT_S: Final = 10.0
_GONE_S: Final = 5.0
BACKOFF_NS: Final = 500 * MILLISECOND_NS
"""The delay before the second restart; it doubles with every failure. The first restart has no delay."""
BACKOFF_CAP_NS: Final = 60 * SECOND_NS
STABLE_NS: Final = 60 * SECOND_NS
"""After running this long, a failure counts as the first again."""


class MpsControl:
    """The MPS control program of NVIDIA or of software GPUs, with its own directories."""

    def __init__(self, directory: Path, environ: Mapping[str, str], homes: Sequence[Path]) -> None:
        """Find the program of running software GPUs, else NVIDIA's; raise `ConfigError` if there is none."""
        soft = next((home for home in homes if any(gpu.alive for gpu in manage.gpus(home))), None)
        base = dict(environ)
        self.pipe, self.log = directory / PIPE, directory / "log"
        if len(os.fsencode(self.pipe / "control")) > _SOCKET_PATH_LIMIT:
            raise ConfigError("directories.runtime", str(directory.parent), "is too long for the sockets of MPS in it")
        own = {PIPE_VARIABLE: str(self.pipe), LOG_VARIABLE: str(self.log)}
        self._environ = {**base, **({} if soft is None else manage.env(soft, base=base)), **own}
        program = shutil.which(CONTROL, path=self._environ.get("PATH"))
        if program is None:
            remedy = f"{CONTROL} is not on PATH; install NVIDIA's driver, or make a software GPU before the node starts"
            raise ConfigError("node.mps", "on", remedy)
        self._program = program

    def environment(self) -> dict[str, str]:
        """Return the environment of an MPS client."""
        return {PIPE_VARIABLE: str(self.pipe)}

    def start(self) -> MpsServers:
        """Start the daemon and its server unless they run already, and return their process numbers."""
        for directory in (self.pipe, self.log):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._run("get_server_list") is None and self._run("-d") is None and self._run("get_server_list") is None:
            raise WorldError(f"{CONTROL} did not start; {self.log / 'control.log'} may say why")
        self._run("start_server", "-uid", str(os.getuid()))
        servers = (self._run("get_server_list") or "").split()
        control = _pid_in(self.pipe) or 0
        if not servers or not servers[-1].isdigit():
            raise WorldError(f"the MPS server did not start; {self.log / 'server.log'} may say why")
        return MpsServers(control, int(servers[-1]))

    def quit(self) -> None:
        """Stop the daemon and its server; kill a daemon that does not respond."""
        control = control_of(self.pipe.parent)
        pidfd = None if control is None else _pidfd(control)
        self._run("quit", "-t", "0", timeout_s=_QUIT_S)
        if pidfd is None:
            return
        try:
            if not select.select([pidfd], [], [], _GONE_S)[0]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)

    def _run(self, *command: str, timeout_s: float = _COMMAND_S) -> str | None:
        """Return the output of a control command; None if it failed. A daemon may keep a pipe open, so use a file."""
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.run(
                    [self._program, *command] if command[0] == "-d" else [self._program],
                    env=self._environ,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    timeout=timeout_s,
                    check=False,
                    **({"stdin": subprocess.DEVNULL} if command[0] == "-d" else {"input": _line(command)}),
                )
            except (OSError, subprocess.TimeoutExpired):
                return None
            output.seek(0)
            return output.read().decode(errors="replace") if process.returncode == 0 else None


def terminate_client(environ: Mapping[str, str], pid: int) -> None:
    """Terminate one MPS client gracefully, so that its death does not affect others; do nothing without MPS."""
    program = shutil.which(CONTROL, path=environ.get("PATH"))
    if program is None:
        return
    for server in (_control(program, environ, "get_server_list") or "").split():
        if server.isdigit():
            _control(program, environ, "terminate_client", server, str(pid))


def _control(program: str, environ: Mapping[str, str], *command: str) -> str | None:
    try:
        process = subprocess.run(
            [program],
            env=dict(environ),
            input=_line(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_QUIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.decode(errors="replace") if process.returncode == 0 else None


def _pid_in(pipe: Path) -> int | None:
    try:
        return int((pipe / _PID_FILE).read_text())
    except (OSError, ValueError):
        return None


def control_of(directory: Path) -> int | None:
    """Return the process number of the control daemon of this directory; None if none runs."""
    pid = _pid_in(directory / PIPE)
    if pid is None:
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return pid


def _pidfd(pid: int) -> int | None:
    """Return a pidfd of a process; None if it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _line(command: Sequence[str]) -> bytes:
    return (" ".join(command) + "\n").encode()


class MpsServers(NamedTuple):
    """The process numbers of the control daemon and of the server."""

    control: int
    server: int


class MpsSupervisor:
    """Keeps one daemon and its server running; pidfds report their deaths, so nothing is polled."""

    def __init__(
        self,
        loop: LiveLoop[Event],
        clock: Clock,
        program: MpsControl,
        gpus: Callable[[], int],
    ) -> None:
        """`gpus` returns the number of devices; nothing is started yet."""
        self._loop = loop
        self._clock = clock
        self._program = program
        self._gpus = gpus
        self._tasks = BackgroundTasks(loop, "cotenant-mps")
        self._pidfds: dict[int, str] = {}  # by pidfd: the role of the process
        self._due: Instant | None = None
        self._ready_since: Instant | None = None
        self._failures = 0
        self._is_ready: bool | None = None
        self._is_starting = False
        self.pids: frozenset[int] = frozenset()
        """The control daemon and the server."""

    def environment(self) -> dict[str, str]:
        """Return the environment of an MPS client."""
        return self._program.environment()

    @property
    def is_ready(self) -> bool:
        """Return whether the server was ready when it was last heard of."""
        return self._is_ready is True

    def begin(self) -> None:
        """Start daemon and server, unless a start is in progress."""
        if not self._is_starting:
            self._is_starting = True
            self._due = None
            self._tasks.submit(self._program.start, self._on_started)

    def restart(self) -> None:
        """Restart by the node's decision: at once, or with backoff after repeated failures."""
        if self._is_ready or self._is_starting or self._due is not None:
            return
        self._due = self._clock.now() + self._delay_ns()

    def next_wakeup(self) -> Instant | None:
        """Return when the next start is due."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Start now."""
        del now
        self.begin()

    def close(self, *, keep: bool) -> None:
        """Stop supervising; with `keep`, MPS continues for the tenants and the next node."""
        self._forget()
        self._tasks.close()
        if not keep:
            self._program.quit()

    def _delay_ns(self) -> Duration:
        if self._ready_since is not None and self._clock.now() - self._ready_since >= STABLE_NS:
            self._failures = 0
        self._ready_since = None
        delay = delay_ns(self._failures, BACKOFF_NS, BACKOFF_CAP_NS)
        self._failures += 1
        return delay

    def _on_started(self, outcome: TaskResult[MpsServers]) -> None:
        self._is_starting = False
        try:
            servers = outcome.result()
            self._watch(servers.control, "control daemon")
            self._watch(servers.server, "server")
        except (WorldError, OSError) as error:
            self._forget()
            self._post(is_ready=False, detail=str(error))
            self._due = self._clock.now() + max(BACKOFF_NS, self._delay_ns())
            return
        self._ready_since = self._clock.now()
        self.pids = frozenset(servers)
        self._post(is_ready=True, detail=f"MPS server {servers.server}")

    def _watch(self, pid: int, role: str) -> None:
        pidfd = os.pidfd_open(pid)  # the pidfd of a dead process is readable at once
        self._pidfds[pidfd] = role
        self._loop.watch(pidfd, READ, lambda _: self._on_death(role))

    def _on_death(self, role: str) -> None:
        """Handle a death. Clients survive the death of the control daemon, which is reported only if restarts fail."""
        self._forget()
        if role == "server":
            self._post(is_ready=False, detail="it died")
        else:
            self._is_ready = None
            self._due = self._clock.now() + self._delay_ns()

    def _forget(self) -> None:
        for pidfd in self._pidfds:
            with contextlib.suppress(KeyError, ValueError):
                self._loop.forget(pidfd)
            os.close(pidfd)
        self._pidfds.clear()

    def _post(self, *, is_ready: bool, detail: str) -> None:
        if self._is_ready is is_ready:
            return
        self._is_ready = is_ready
        events: list[Event] = [MpsStatusChanged(gpu, is_ready, clipped(detail)) for gpu in range(self._gpus())]
        for event in events:
            self._loop.post(event)
