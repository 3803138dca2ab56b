"""The MPS control daemon: starts servers on demand, assigns clients to them, and serves its front end."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.errors import ConfigError
from cotenant.runner.clock import LiveClock
from cotenant.softgpu.mps import limits as text
from cotenant.softgpu.mps.directories import WORDS_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cotenant.softgpu.mps.directories import Log

CONNECTION_FAILED = 805
SERVER_NOT_READY = 807
_ANSWER_S = 10.0
_START_S = 30.0
_CONNECTIONS = 512
_CREDENTIALS = struct.Struct("=iII")
_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"


@dataclass(slots=True, eq=False)
class Peer:
    """A connected front end, or a client once it has a server."""

    line: socket.socket
    pid: int
    uid: int
    server: int = 0
    is_front_end: bool = False
    number: int = 0


@dataclass(slots=True, eq=False)
class ServerProcess:
    """A ready MPS server: its devices, and the limits of clients that connect from now on."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    uid: int
    gpus: list[tuple[int, int, int, str]]  # ordinal, group, SMs, identity
    percentage: float
    pinned: dict[str, int]
    is_draining: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(slots=True)
class ClientLimits:
    """Limits from an environment; those of the daemon apply to new servers, and end with the daemon."""

    percentage: float = text.FULL
    pinned: dict[str, int] = field(default_factory=dict)
    priority: int = 0


def read_limits(settings: Mapping[str, str], log: Log, *, priority: int = 0) -> ClientLimits:
    """Return the limits in CUDA's variables; an invalid value is logged and ignored."""
    limits = ClientLimits(priority=priority)
    readers: dict[str, Callable[[str], None]] = {
        _PERCENTAGE: lambda value: setattr(limits, "percentage", text.parse_percentage(value, field=_PERCENTAGE)),
        _PINNED: lambda value: setattr(limits, "pinned", text.parse_memory_list(value, field=_PINNED)),
        _PRIORITY: lambda value: setattr(limits, "priority", parse_priority(value, field=_PRIORITY)),
    }
    for name, read in readers.items():
        try:
            if settings.get(name):
                read(settings[name])
        except ConfigError as error:
            log.write(str(error))
    return limits


def parse_priority(value: str, *, field: str) -> int:
    if value not in ("0", "1"):
        raise ConfigError(field, value, "a priority is 0 (normal) or 1 (below normal)")
    return int(value)


class Daemon:
    """State and event loop of a control daemon."""

    def __init__(self, listener: socket.socket, server_program: Path, log: Log) -> None:
        self.log = log
        self.defaults = read_limits(os.environ, log)
        self.servers: dict[int, ServerProcess] = {}
        self.peers: list[Peer] = []
        self.execute_command: Callable[[Daemon, str, Peer], str | None] = lambda _daemon, _command, _peer: ""
        self._program = server_program
        self._clock = LiveClock()
        self._quit_by_ns: int | None = None
        self._is_quitting = False
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._clients = 0
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    # ---- servers

    def start_server(self, uid: int) -> ServerProcess | None:
        """Return the server of this user, started if there is none; None if it cannot start."""
        for server in self.servers.values():
            if not server.is_draining:
                return server
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = subprocess.Popen([str(self._program)], stdin=theirs.fileno(), start_new_session=True, cwd="/")
        except OSError as error:  # the software GPUs were destroyed, and the programs with them
            ours.close()
            self.log.write(f"Unable to start a server: {error}")
            return None
        self.log.write(f"Starting new server {process.pid} for user {uid}")
        ours.settimeout(_START_S)
        try:
            words = ours.recv(WORDS_BYTES).decode("ascii").split()
        except OSError:
            words = []
        if not words or words[0] != "ready":
            ours.close()
            with contextlib.suppress(OSError):
                process.kill()
            self.log.write(f"Server {process.pid} exited with status {process.wait()}")
            return None
        gpus = [(int(o), int(g), int(s), i) for o, g, s, i in (word.split(":") for word in words[1:])]
        server = ServerProcess(process, ours, uid, gpus, self.defaults.percentage, dict(self.defaults.pinned))
        ours.settimeout(_ANSWER_S)
        self.servers[server.pid] = server
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._server_ended(server))
        self.log.write(f"NEW SERVER {server.pid}: Ready")
        return server

    def ask(self, server: ServerProcess, question: str) -> str | None:
        """Return a server's answer; None if it has ended, or was ended because it did not answer."""
        try:
            server.line.send(question.encode())
            answer = server.line.recv(WORDS_BYTES).decode("ascii")
        except OSError:  # a late answer would be taken for that to the next request
            server.process.kill()
            answer = ""
        if not answer:
            self._server_ended(server)
            return None
        return answer

    def clients_by_gpu(self, server: ServerProcess) -> dict[int, tuple[list[int], bool]]:
        """Return by ordinal the pids of the clients that use the device, and whether it refuses others."""
        rows = [[int(word) for word in row.split()] for row in (self.ask(server, "members") or "").splitlines()]
        return {row[0]: (row[2:], bool(row[1])) for row in rows}

    def send(self, server: ServerProcess, words: str) -> None:
        with contextlib.suppress(OSError):
            server.line.setblocking(False)  # a server that does not read is not waited for
            server.line.send(words.encode())
        server.line.settimeout(_ANSWER_S)

    def _server_ended(self, server: ServerProcess) -> None:
        if self.servers.pop(server.pid, None) is None:
            return
        self._selector.unregister(server.line)
        server.line.close()
        try:
            status = server.process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            status = server.process.wait()
        self.log.write(f"Server {server.pid} exited with status {status}")

    def end_server(self, server: ServerProcess) -> None:
        """End a server at once, with its clients."""
        self.send(server, "exit")
        self._server_ended(server)

    def clients_of(self, server_pid: int) -> list[Peer]:
        return [peer for peer in self.peers if peer.server == server_pid]

    # ---- connections

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._listener.accept()
            line.setblocking(False)  # a peer that does not read is not waited for
            pid, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.log.write("Accepting connection...")
            if len(self.peers) >= _CONNECTIONS:
                line.close()
                return
            peer = Peer(line, pid, uid)
            self.peers.append(peer)
            self._selector.register(line, selectors.EVENT_READ, lambda: self._receive(peer))

    def _disconnect(self, peer: Peer) -> None:
        self._selector.unregister(peer.line)
        peer.line.close()
        self.peers.remove(peer)
        if peer.is_front_end:
            self.log.write("UI closed")
        if peer.server in self.servers:
            self.send(self.servers[peer.server], f"left {peer.pid}")

    def _receive(self, peer: Peer) -> None:
        try:
            message = peer.line.recv(WORDS_BYTES)
        except OSError:
            message = b""
        kind, _, rest = message.decode("utf-8", "backslashreplace").partition("\n")
        answer: str | None = None
        if kind == "ui":
            if not peer.is_front_end:
                self.log.write("NEW UI")
            peer.is_front_end = True
            self.log.write(f"Cmd:{rest[:200]}")
            answer = self.execute_command(self, rest, peer)
            if answer is None:
                return  # the daemon's end is the answer
        elif kind == "client" and not peer.server:
            answer = self._admit_client(peer, dict(line.split("=", 1) for line in rest.splitlines() if "=" in line))
        elif message:
            self.log.write("Unable to read new connection type information")
        if answer is None or not self._send(peer, answer):
            self._disconnect(peer)

    def _send(self, peer: Peer, answer: str) -> bool:
        try:
            peer.line.send(answer.encode())
        except OSError:
            return False
        return True

    def _admit_client(self, peer: Peer, settings: dict[str, str]) -> str:
        exists = any(not server.is_draining for server in self.servers.values())
        server_state = "Server already exists" if exists else "Server is not ready, push client to pending list"
        self.log.write(f"NEW CLIENT {peer.pid} from user {peer.uid}: {server_state}")
        if self._is_quitting or any(server.is_draining for server in self.servers.values()):
            return f"refused {SERVER_NOT_READY}\n"
        server = self.start_server(peer.uid)
        if server is None:
            return f"refused {CONNECTION_FAILED}\n"
        own = read_limits(settings, self.log, priority=self.defaults.priority)
        limits = []
        for index, (_, _, sm_count, identity) in enumerate(server.gpus):
            limits_bytes = [text.limit_of(limit, index, identity) for limit in (server.pinned, own.pinned)]
            pinned_bytes = min(filter(None, limits_bytes), default=0)
            limits.append(f"{text.share_of(sm_count, min(server.percentage, own.percentage))}:{pinned_bytes}")
        answer = self.ask(server, f"admit {peer.pid} {own.priority} {' '.join(limits)}")
        if answer != "admitted":
            return f"refused {SERVER_NOT_READY if answer == 'fault' else CONNECTION_FAILED}\n"
        peer.server = server.pid
        peer.number = self._clients
        self._clients += 1
        gpus = "".join(f"gpu {ordinal} {group}\n" for ordinal, group, _, _ in server.gpus)
        return f"welcome {server.pid}\n{gpus}"

    # ---- shutdown

    def quit(self, timeout_s: int | None) -> None:
        """Accept no more clients, and end when the last one has left or after the timeout."""
        self._is_quitting = True
        if timeout_s is not None:
            self._quit_by_ns = self._clock.now() + timeout_s * 1_000_000_000

    def _is_over(self) -> bool:
        remaining_s = None if self._quit_by_ns is None else (self._quit_by_ns - self._clock.now()) / 1e9
        for server in list(self.servers.values()):
            is_wanted = not (self._is_quitting or server.is_draining)
            if not is_wanted and (not self.clients_of(server.pid) or (remaining_s is not None and remaining_s <= 0)):
                self.end_server(server)
        return self._is_quitting and not self.servers

    def run(self) -> None:
        while not self._is_over():
            remaining_s = None if self._quit_by_ns is None else max(0.0, (self._quit_by_ns - self._clock.now()) / 1e9)
            for key, _ in self._selector.select(remaining_s):
                if key.fileobj in self._selector.get_map():  # closed meanwhile, by a message of another peer
                    key.data()
        self.log.write("Exit")
