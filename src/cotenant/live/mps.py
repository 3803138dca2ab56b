"""Is the node's MPS there? Daemon and server are started, watched, started again, and left to the tenants."""

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

from cotenant.domain.event import Event, MpsSeen
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration, Instant
from cotenant.domain.protect import clipped
from cotenant.errors import ConfigError, WorldError
from cotenant.live.errand import Errands, Outcome
from cotenant.live.loop import READ, LiveLoop
from cotenant.live.softgpu import manage
from cotenant.policy.protect.backoff import delay_ns
from cotenant.port import Clock

CONTROL: Final = "nvidia-cuda-mps-control"
MPS_DIRECTORY: Final = "mps"
"""In the node's runtime directory, where its daemon lives."""
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
PIPE: Final = "pipe"
_PID_FILE: Final = f"{CONTROL}.pid"
_SOCKET_PATH_LIMIT: Final = 107
_PATIENCE_S: Final = 60.0
_QUIT_S: Final = 10.0
_GONE_S: Final = 5.0
BACKOFF_NS: Final = 500 * MILLISECOND_NS
"""The first death is mended at once; if it dies again soon, after this, then after twice as much each time."""
BACKOFF_CAP_NS: Final = 60 * SECOND_NS
SOUND_NS: Final = 60 * SECOND_NS
"""A server that lived this long died of something new."""


class Program:
    """NVIDIA's control program, or a soft GPU's, with directories of its own."""

    def __init__(self, directory: Path, environ: Mapping[str, str], homes: Sequence[Path]) -> None:
        """The program of the soft GPUs that live in one of these homes, else NVIDIA's; `ConfigError` without any."""
        soft = next((home for home in homes if any(gpu.alive for gpu in manage.gpus(home))), None)
        base = dict(environ)
        self.pipe, self.log = directory / PIPE, directory / "log"
        if len(os.fsencode(self.pipe / "control")) > _SOCKET_PATH_LIMIT:
            raise ConfigError("directories.runtime", str(directory.parent), "is too long for the sockets of MPS in it")
        ours = {PIPE_VARIABLE: str(self.pipe), LOG_VARIABLE: str(self.log)}
        self._environ = {**base, **({} if soft is None else manage.env(soft, base=base)), **ours}
        found = shutil.which(CONTROL, path=self._environ.get("PATH"))
        if found is None:
            remedy = f"{CONTROL} is not on PATH; install NVIDIA's driver, or make a software GPU before the node starts"
            raise ConfigError("node.mps", "on", remedy)
        self._program = found

    def environment(self) -> dict[str, str]:
        """What a tenant must be told to be a client."""
        return {PIPE_VARIABLE: str(self.pipe)}

    def start(self) -> Servers:
        """The daemon and its server, started unless they are there: a node takes over what the last one left."""
        for directory in (self.pipe, self.log):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._run("get_server_list") is None and self._run("-d") is None and self._run("get_server_list") is None:
            raise WorldError(f"{CONTROL} did not start; {self.log / 'control.log'} may say why")
        self._run("start_server", "-uid", str(os.getuid()))
        listed = (self._run("get_server_list") or "").split()
        control = _pid_in(self.pipe) or 0
        if not listed or not listed[-1].isdigit():
            raise WorldError(f"the MPS server did not start; {self.log / 'server.log'} may say why")
        return Servers(control, int(listed[-1]))

    def quit(self) -> None:
        """End the daemon and its server; one that is not there is no error, one that does not hear is killed."""
        control = control_of(self.pipe.parent)
        held = None if control is None else _hold(control)
        self._run("quit", "-t", "0", patience_s=_QUIT_S)
        if held is None:
            return
        try:
            if not select.select([held], [], [], _GONE_S)[0]:
                signal.pidfd_send_signal(held, signal.SIGKILL)
        finally:
            os.close(held)

    def _run(self, *command: str, patience_s: float = _PATIENCE_S) -> str | None:
        """What it printed; None if it failed. Its words go to a file: a daemon may keep a pipe open for good."""
        with tempfile.TemporaryFile() as words:
            try:
                done = subprocess.run(
                    [self._program, *command] if command[0] == "-d" else [self._program],
                    env=self._environ,
                    stdout=words,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    timeout=patience_s,
                    check=False,
                    **({"stdin": subprocess.DEVNULL} if command[0] == "-d" else {"input": _line(command)}),
                )
            except (OSError, subprocess.TimeoutExpired):
                return None
            words.seek(0)
            return words.read().decode(errors="replace") if done.returncode == 0 else None


def terminate_client(environ: Mapping[str, str], pid: int) -> None:
    """Take the device from one client in order, so that its death harms no other; where MPS is not there, nothing."""
    program = shutil.which(CONTROL, path=environ.get("PATH"))
    if program is None:
        return
    for server in (_asked(program, environ, "get_server_list") or "").split():
        if server.isdigit():
            _asked(program, environ, "terminate_client", server, str(pid))


def _asked(program: str, environ: Mapping[str, str], *command: str) -> str | None:
    try:
        done = subprocess.run(
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
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _pid_in(pipe: Path) -> int | None:
    try:
        return int((pipe / _PID_FILE).read_text())
    except (OSError, ValueError):
        return None


def control_of(directory: Path) -> int | None:
    """The control daemon that lives in this directory, if one does."""
    pid = _pid_in(directory / PIPE)
    if pid is None:
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return pid


def _hold(pid: int) -> int | None:
    """The process itself, which the number may soon not be; None if it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _line(command: Sequence[str]) -> bytes:
    return (" ".join(command) + "\n").encode()


class Servers(NamedTuple):
    """Who serves: the control daemon, and the server that its clients are of."""

    control: int
    server: int


class Mps:
    """Keeps one daemon and its server going. Deaths are told by the kernel: nothing is asked while all is well."""

    def __init__(
        self,
        loop: LiveLoop,
        clock: Clock,
        program: Program,
        gpus: Callable[[], int],
    ) -> None:
        """`gpus` says of how many devices the server is; nothing is started yet."""
        self._loop = loop
        self._clock = clock
        self._program = program
        self._gpus = gpus
        self._errands = Errands(loop, "cotenant-mps")
        self._watched: dict[int, str] = {}  # pidfds
        self._due: Instant | None = None
        self._ready_since: Instant | None = None
        self._failures = 0
        self._is_ready: bool | None = None
        self._is_starting = False

    def environment(self) -> dict[str, str]:
        """What a tenant must be told to be a client."""
        return self._program.environment()

    def begin(self) -> None:
        """Start what is not there, unless that is under way."""
        if not self._is_starting:
            self._is_starting = True
            self._due = None
            self._errands.send(self._program.start, self._started)

    def restart(self) -> None:
        """Told to by the node's decision: at once, or after a while if it died not long ago."""
        if self._is_ready or self._is_starting or self._due is not None:
            return
        self._due = self._clock.now() + self._delay_ns()

    def next_wakeup(self) -> Instant | None:
        """When the next attempt is due."""
        return self._due

    def wake(self, now: Instant) -> None:
        """It is."""
        del now
        self.begin()

    def close(self, *, keep: bool) -> None:
        """Watch no more; `keep`: tenants go on with it, and the next node takes it over."""
        self._forget()
        self._errands.close()
        if not keep:
            self._program.quit()

    def _delay_ns(self) -> Duration:
        if self._ready_since is not None and self._clock.now() - self._ready_since >= SOUND_NS:
            self._failures = 0
        self._ready_since = None
        delay = delay_ns(self._failures, BACKOFF_NS, BACKOFF_CAP_NS)
        self._failures += 1
        return delay

    def _started(self, outcome: Outcome[Servers]) -> None:
        self._is_starting = False
        try:
            servers = outcome.result()
            self._watch(servers.control, "control daemon")
            self._watch(servers.server, "server")
        except (WorldError, OSError) as error:
            self._forget()
            self._tell(is_ready=False, detail=str(error))
            self._due = self._clock.now() + max(BACKOFF_NS, self._delay_ns())
            return
        self._ready_since = self._clock.now()
        self._tell(is_ready=True, detail=f"MPS server {servers.server}")

    def _watch(self, pid: int, what: str) -> None:
        pidfd = os.pidfd_open(pid)  # one that has just died is readable at once
        self._watched[pidfd] = what
        self._loop.watch(pidfd, READ, lambda _: self._died(what))

    def _died(self, what: str) -> None:
        """Clients of a server whose daemon died go on: nobody need hear of it, unless no other daemon can be had."""
        self._forget()
        if what == "server":
            self._tell(is_ready=False, detail="it died")
        else:
            self._is_ready = None
            self._due = self._clock.now() + self._delay_ns()

    def _forget(self) -> None:
        for pidfd in self._watched:
            with contextlib.suppress(KeyError, ValueError):
                self._loop.forget(pidfd)
            os.close(pidfd)
        self._watched.clear()

    def _tell(self, *, is_ready: bool, detail: str) -> None:
        if self._is_ready is is_ready:
            return
        self._is_ready = is_ready
        events: list[Event] = [MpsSeen(gpu, is_ready, clipped(detail)) for gpu in range(self._gpus())]
        for event in events:
            self._loop.post(event)
