"""Who takes part in the bench of goodput? Servers as processes of their own, and one more process that plays loads."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import Duration
from cotenant.errors import WorldError
from cotenant.experiment.goodput.models import Served
from cotenant.live.clock import pause
from cotenant.live.load.ask import get
from cotenant.live.load.channel import Endpoint, message_of
from cotenant.live.load.open import Loaded, Terms
from cotenant.live.load.play import Played

_READY_TRIES: Final = 600
_STOP_S: Final = 15.0


class Server:
    """One contender's process."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """It listens at a port of its own; `{port}` in the command stands for it."""
        self.name = name
        self.endpoint = Endpoint("http", "127.0.0.1", _free_port())
        self._log = log
        filled = [part.replace("{port}", str(self.endpoint.port)) for part in command]
        with log.open("wb") as file:
            self._process = subprocess.Popen(filled, stdout=file, stderr=file)

    def wait(self) -> None:
        """Until it answers that it is ready."""
        for _ in range(_READY_TRIES):
            if self._process.poll() is not None:
                break
            try:
                if get(self.endpoint, "/v2/health/ready")[0] == 200:
                    return
            except WorldError:
                pass  # it does not listen yet
            pause(0.1)
        said = self._log.read_text(errors="replace").strip()[-500:]
        raise WorldError(f"the contender {self.name!r} does not get ready: {said or 'it says nothing'}")

    def front_ns(self) -> Duration:
        """What its first thread computed since it started: that is where requests come in and answers go out."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])

    def stop(self) -> None:
        """End it, kindly at first."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Player:
    """The process that sends."""

    def __init__(self) -> None:
        """It waits for loads."""
        command = [sys.executable, "-m", "cotenant.live.load.play"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def play(self, load: Played) -> Loaded:
        """Have it sent, and hear how it went."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(load) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WorldError("the process that sends the load has ended")
        return msgspec.json.decode(line, type=Loaded)

    def stop(self) -> None:
        """No more loads."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def played(
    server: Server,
    models: Sequence[Served],
    slos_ns: Sequence[Duration],
    terms: Terms,
    instants_ns: Sequence[Sequence[Duration]] = (),
    clients: int = 0,
) -> Played:
    """A load on this server."""
    return Played(
        endpoint=server.endpoint,
        targets=tuple((model.name, slo_ns) for model, slo_ns in zip(models, slos_ns, strict=True)),
        messages=tuple(message_of(model.asked(), server.endpoint) for model in models),
        terms=terms,
        instants_ns=tuple(tuple(one) for one in instants_ns),
        clients=clients,
    )


def serve_command(folder: Path, policy: str, *more: str) -> list[str]:
    """`cotenant serve` with a policy."""
    doors = ("--http-port", "{port}", "--grpc-port", "-1", "--metrics-port", "-1")
    return [sys.executable, "-m", "cotenant", "serve", str(folder), *doors, "--policy", policy, *more]


def default_command(folder: Path) -> list[str]:
    """ONNX Runtime behind FastAPI."""
    return [sys.executable, "-m", "cotenant.live.load.plain_onnx", "{port}", str(folder)]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
