"""The MPS server: a process that holds a client group open at every device server; the group ends with it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import SetupError, WorldError
from cotenant.softgpu import wire
from cotenant.softgpu.mps.directories import WORDS_BYTES, Log, log_directory

DAEMON_LINE = 0
"""Descriptor of the connection to the control daemon; the server inherits nothing else."""

_POLL_MS = 200
_TERMINATED = 0
_NO_SUCH_CLIENT = 1  # CUDA_ERROR_INVALID_VALUE
_CLIENT_TERMINATED = 810


@dataclass(slots=True, eq=False)
class Gpu:
    """One device, and the connection that represents the server's group there."""

    ordinal: int
    line: socket.socket
    group: int
    sm_count: int
    identity: str


def identity_of(uuid: bytes) -> str:
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _visible(present: int) -> list[int]:
    """Return CUDA_VISIBLE_DEVICES as the driver library reads it: numbers up to the first invalid entry."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(present))
    chosen: list[int] = []
    for word in text.split(","):
        if not (word.strip().isascii() and word.strip().isdigit() and int(word) < present):
            break
        if int(word) in chosen:
            return []
        chosen.append(int(word))
    return chosen


def open_groups(directory: Path) -> list[Gpu]:
    """Open a group at every visible software GPU whose server runs."""
    present = 0
    while (directory / f"gpu{present}.sock").exists():
        present += 1
    gpus = []
    for ordinal in _visible(present):
        try:
            line = wire.connect(directory / f"gpu{ordinal}.sock")
        except WorldError:
            continue  # as in the driver library: a GPU without a server is absent
        reply = wire.exchange(line, wire.GROUP_OPEN)
        if reply.result != 0:
            raise SetupError(f"software GPU {ordinal} rejects an MPS server: its compute mode excludes it")
        gpus.append(Gpu(ordinal, line, reply.a, reply.b, identity_of(reply.batch[:16])))
    if not gpus:
        raise SetupError(
            "there is no software GPU for an MPS server: is COTENANT_SOFTGPU set as `cotenant softgpu env` prints it?"
        )
    return gpus


class Server:
    """Answers its control daemon until it is ordered to exit."""

    def __init__(self, gpus: list[Gpu], log: Log) -> None:
        self.gpus = list(gpus)
        self.log = log
        self._all = gpus
        self._notifications: list[tuple[Gpu, int]] = []

    def _ask_device(self, gpu: Gpu, kind: int, a: int = 0, b: int = 0, c: int = 0) -> wire.Reply | None:
        """Return the answer of one device; notifications that arrive before it are kept."""
        try:
            reply = wire.exchange(gpu.line, kind, a, b, c)
            while reply.behind == wire.NEWS:
                self._notifications.append((gpu, reply.a))
                reply = wire.receive(gpu.line)
        except WorldError:
            self._lose(gpu)
            return None
        return reply

    def _pids(self, gpu: Gpu, *, computing: bool) -> tuple[list[int], bool]:
        """Return the clients that enumerated a device or have a context there, and whether it refuses others."""
        pids: list[int] = []
        while (reply := self._ask_device(gpu, wire.GROUP_STATE, len(pids), int(computing))) is not None:
            page = wire.handles(reply.batch)[: reply.a - len(pids)]
            pids += page
            if len(pids) >= reply.a or not page:
                return pids, bool(reply.b)
        return pids, False

    def _propagate_faults(self) -> None:
        """Propagate a fault on one device to every device that the affected clients use."""
        while self._notifications:
            source, code = self._notifications.pop(0)
            affected = set(self._pids(source, computing=True)[0]) if source in self.gpus else set()
            self.log.write("Volta MPS: Server is handling a fatal GPU error.")
            for gpu in list(self.gpus):
                if gpu is not source and affected & set(self._pids(gpu, computing=True)[0]):
                    self._ask_device(gpu, wire.GROUP_STRIKE, 0, code)
            for pid in sorted(affected):
                self.log.write(f"Volta MPS: status of client {{{pid}, 1}} is INACTIVE")

    def _lose(self, gpu: Gpu) -> None:
        self.log.write(f"Lost device {gpu.ordinal}")
        gpu.line.close()
        self.gpus.remove(gpu)

    def clients_by_gpu(self) -> dict[int, tuple[list[int], bool]]:
        """Return by ordinal the clients' pids, and whether the group refuses others."""
        return {gpu.ordinal: self._pids(gpu, computing=False) for gpu in list(self.gpus)}

    def answer(self, words: list[str]) -> str:
        """Answer one message of the daemon: `admit PID PRIORITY CAP:BYTES...`, `members`, `terminate PID`."""
        if words[0] == "admit":
            return self._admit(int(words[1]), int(words[2]), [tuple(map(int, pair.split(":"))) for pair in words[3:]])
        if words[0] == "terminate":
            return str(self._terminate(int(words[1])))
        rows = [
            f"{o} {int(refuses)} {' '.join(map(str, pids))}" for o, (pids, refuses) in self.clients_by_gpu().items()
        ]
        return "\n".join(rows) or "\n"  # without an answer the daemon would consider the server dead

    def _admit(self, pid: int, priority: int, limits: list[tuple[int, ...]]) -> str:
        if any(refuses for _, refuses in self.clients_by_gpu().values()):
            return "fault"
        for gpu, (cap, limit_bytes) in zip(self._all, limits, strict=True):
            if gpu in self.gpus:
                self._ask_device(gpu, wire.GROUP_ADMIT, pid, limit_bytes, cap | priority << 32)
        self.log.write(f"New client {pid} connected")
        return "admitted"

    def _terminate(self, pid: int) -> int:
        ended = 0
        for gpu in list(self.gpus):
            reply = self._ask_device(gpu, wire.GROUP_STRIKE, pid, _CLIENT_TERMINATED)
            ended += reply.a if reply is not None else 0
        if not ended:
            return _NO_SUCH_CLIENT
        self.log.write(f"Volta MPS: status of client {{{pid}, 1}} is INACTIVE")
        return _TERMINATED

    def _receive_notification(self, gpu: Gpu) -> None:
        try:
            self._notifications.append((gpu, wire.receive(gpu.line).a))
        except WorldError:
            self._lose(gpu)

    def run(self, daemon: socket.socket) -> None:
        """Serve until ordered to exit or no device remains; without a daemon, until the last client has left."""
        orphaned = False
        while True:
            if not self.gpus:
                return
            if orphaned and not any(pids for pids, _ in self.clients_by_gpu().values()):
                return
            waiting = select.poll()
            if not orphaned:
                waiting.register(daemon, select.POLLIN)
            for gpu in self.gpus:
                waiting.register(gpu.line, select.POLLIN)
            ready = [descriptor for descriptor, _ in waiting.poll(_POLL_MS if orphaned else None)]
            for gpu in [gpu for gpu in self.gpus if gpu.line.fileno() in ready]:
                self._receive_notification(gpu)
            self._propagate_faults()
            if daemon.fileno() not in ready:
                continue
            words = next_message(daemon).split()
            if not words:
                orphaned = True
            elif words[0] == "exit":
                return
            elif words[0] == "left":
                self.log.write(f"Client {words[1]} disconnected")
            else:
                answer = self.answer(words)
                self._propagate_faults()
                with contextlib.suppress(OSError):  # a daemon that died meanwhile is noticed at the next read
                    daemon.send(answer.encode())


def next_message(daemon: socket.socket) -> str:
    """Return the next message; empty if the daemon has ended, even if it left an answer unread."""
    try:
        return daemon.recv(WORDS_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def main(_arguments: list[str]) -> int:
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123  what ps and top show
        comm.write("nvidia-cuda-mps-server"[:15])
    log = Log(log_directory() / "server.log", "Server")
    daemon = socket.socket(fileno=DAEMON_LINE)
    log.write("Startup")
    try:
        gpus = open_groups(Path(os.environ.get("COTENANT_SOFTGPU", "")))
    except WorldError as error:
        log.write("MPS server failed to start")
        log.write(str(error))
        with contextlib.suppress(OSError):
            daemon.send(b"failed")
        return 1
    daemon.send(("ready " + " ".join(f"{g.ordinal}:{g.group}:{g.sm_count}:{g.identity}" for g in gpus)).encode())
    Server(gpus, log).run(daemon)
    log.write("Exit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
