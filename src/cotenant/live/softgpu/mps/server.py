"""What is an MPS server? The process that holds a group open at every device server: it dies, and the group with it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import WorldError
from cotenant.live.softgpu import wire
from cotenant.live.softgpu.mps.places import WORDS_BYTES, Log, log_directory

DAEMON_LINE = 0
"""Descriptor of the line to the control daemon: it is started with nothing else."""

_LOOK_MS = 200
_TERMINATED = 0
_NO_SUCH_CLIENT = 1  # CUDA_ERROR_INVALID_VALUE
_CLIENT_TERMINATED = 810


@dataclass(slots=True, eq=False)
class Gpu:
    """One device and the connection that stands for our group there."""

    ordinal: int
    line: socket.socket
    group: int
    sm_count: int
    identity: str


def identity_of(uuid: bytes) -> str:
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _visible(present: int) -> list[int]:
    """CUDA_VISIBLE_DEVICES as the face reads it: numbers up to the first that is none."""
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
    """A group at every visible soft GPU that lives."""
    present = 0
    while (directory / f"gpu{present}.sock").exists():
        present += 1
    gpus = []
    for ordinal in _visible(present):
        try:
            line = wire.connect(directory / f"gpu{ordinal}.sock")
        except WorldError:
            continue  # as for the face: a GPU whose server is gone is not there
        reply = wire.exchange(line, wire.GROUP_OPEN)
        if reply.result != 0:
            raise WorldError(f"soft GPU {ordinal} does not let an MPS server in: its compute mode keeps others away")
        gpus.append(Gpu(ordinal, line, reply.a, reply.b, identity_of(reply.batch[:16])))
    if not gpus:
        raise WorldError(
            "there is no soft GPU for an MPS server: is COTENANT_SOFTGPU set as `cotenant softgpu env` says?"
        )
    return gpus


class Server:
    """Answers its control daemon until it is told to go."""

    def __init__(self, gpus: list[Gpu], log: Log) -> None:
        self.gpus = list(gpus)
        self.log = log
        self._all = gpus
        self._news: list[tuple[Gpu, int]] = []

    def _on(self, gpu: Gpu, kind: int, a: int = 0, b: int = 0, c: int = 0) -> wire.Reply | None:
        """The answer of one device; news that came before it are kept for later."""
        try:
            reply = wire.exchange(gpu.line, kind, a, b, c)
            while reply.behind == wire.NEWS:
                self._news.append((gpu, reply.a))
                reply = wire.hear(gpu.line)
        except WorldError:
            self._lose(gpu)
            return None
        return reply

    def _pids(self, gpu: Gpu, *, computing: bool) -> tuple[list[int], bool]:
        """Clients that enumerated a device, or have a context there; and whether it refuses others for now."""
        pids: list[int] = []
        while (reply := self._on(gpu, wire.GROUP_STATE, len(pids), int(computing))) is not None:
            page = wire.handles(reply.batch)[: reply.a - len(pids)]
            pids += page
            if len(pids) >= reply.a or not page:
                return pids, bool(reply.b)
        return pids, False

    def _spread(self) -> None:
        """A fault on one device is one on every device that the clients there use."""
        while self._news:
            source, code = self._news.pop(0)
            struck = set(self._pids(source, computing=True)[0]) if source in self.gpus else set()
            self.log.say("Volta MPS: Server is handling a fatal GPU error.")
            for gpu in list(self.gpus):
                if gpu is not source and struck & set(self._pids(gpu, computing=True)[0]):
                    self._on(gpu, wire.GROUP_STRIKE, 0, code)
            for pid in sorted(struck):
                self.log.say(f"Volta MPS: status of client {{{pid}, 1}} is INACTIVE")

    def _lose(self, gpu: Gpu) -> None:
        self.log.say(f"Lost device {gpu.ordinal}")
        gpu.line.close()
        self.gpus.remove(gpu)

    def members(self) -> dict[int, tuple[list[int], bool]]:
        """By ordinal: the clients' pids, and whether the group refuses others for now."""
        return {gpu.ordinal: self._pids(gpu, computing=False) for gpu in list(self.gpus)}

    def answer(self, words: list[str]) -> str:
        """To one message of the daemon: `admit PID PRIORITY CAP:BYTES...`, `members`, `terminate PID`."""
        if words[0] == "admit":
            return self._admit(int(words[1]), int(words[2]), [tuple(map(int, pair.split(":"))) for pair in words[3:]])
        if words[0] == "terminate":
            return str(self._terminate(int(words[1])))
        rows = [f"{o} {int(refuses)} {' '.join(map(str, pids))}" for o, (pids, refuses) in self.members().items()]
        return "\n".join(rows) or "\n"  # no answer would be no server

    def _admit(self, pid: int, priority: int, limits: list[tuple[int, ...]]) -> str:
        if any(refuses for _, refuses in self.members().values()):
            return "fault"
        for gpu, (cap, limit_bytes) in zip(self._all, limits, strict=True):
            if gpu in self.gpus:
                self._on(gpu, wire.GROUP_ADMIT, pid, limit_bytes, cap | priority << 32)
        self.log.say(f"New client {pid} connected")
        return "admitted"

    def _terminate(self, pid: int) -> int:
        ended = 0
        for gpu in list(self.gpus):
            reply = self._on(gpu, wire.GROUP_STRIKE, pid, _CLIENT_TERMINATED)
            ended += reply.a if reply is not None else 0
        if not ended:
            return _NO_SUCH_CLIENT
        self.log.say(f"Volta MPS: status of client {{{pid}, 1}} is INACTIVE")
        return _TERMINATED

    def _listen(self, gpu: Gpu) -> None:
        try:
            self._news.append((gpu, wire.hear(gpu.line).a))
        except WorldError:
            self._lose(gpu)

    def run(self, daemon: socket.socket) -> None:
        """Until told to exit or no device is left; without a daemon, until the last client has left."""
        orphaned = False
        while True:
            if not self.gpus:
                return
            if orphaned and not any(pids for pids, _ in self.members().values()):
                return
            waiting = select.poll()
            if not orphaned:
                waiting.register(daemon, select.POLLIN)
            for gpu in self.gpus:
                waiting.register(gpu.line, select.POLLIN)
            ready = [descriptor for descriptor, _ in waiting.poll(_LOOK_MS if orphaned else None)]
            for gpu in [gpu for gpu in self.gpus if gpu.line.fileno() in ready]:
                self._listen(gpu)
            self._spread()
            if daemon.fileno() not in ready:
                continue
            words = heard(daemon).split()
            if not words:
                orphaned = True
            elif words[0] == "exit":
                return
            elif words[0] == "left":
                self.log.say(f"Client {words[1]} disconnected")
            else:
                answer = self.answer(words)
                self._spread()
                with contextlib.suppress(OSError):  # a daemon that died meanwhile shows when it is heard next
                    daemon.send(answer.encode())


def heard(daemon: socket.socket) -> str:
    """The next message; nothing if the daemon is no more, also if it died with an answer unread."""
    try:
        return daemon.recv(WORDS_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def main(_arguments: list[str]) -> int:
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123  what ps and top show
        comm.write("nvidia-cuda-mps-server"[:15])
    log = Log(log_directory() / "server.log", "Server")
    daemon = socket.socket(fileno=DAEMON_LINE)
    log.say("Startup")
    try:
        gpus = open_groups(Path(os.environ.get("COTENANT_SOFTGPU", "")))
    except WorldError as error:
        log.say("MPS server failed to start")
        log.say(str(error))
        with contextlib.suppress(OSError):
            daemon.send(b"failed")
        return 1
    daemon.send(("ready " + " ".join(f"{g.ordinal}:{g.group}:{g.sm_count}:{g.identity}" for g in gpus)).encode())
    Server(gpus, log).run(daemon)
    log.say("Exit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
