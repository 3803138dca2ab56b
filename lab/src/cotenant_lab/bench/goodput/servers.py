"""Processes of bench `goodput`: the servers under test, and one process that sends the load."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import WorldError
from cotenant.runner.clock import pause
from cotenant.serve.load.connections import Endpoint, message_of
from cotenant.serve.load.discovery import get
from cotenant.serve.load.open_loop import LoadReport, MeasureWindow
from cotenant.units.instant import Duration
from cotenant_lab.bench.goodput.models import BenchModel
from cotenant_lab.errors import RunFailedError
from cotenant_lab.loadgen.play import LoadPlan

_READY_TRIES: Final = 600
_STOP_S: Final = 15.0


class Server:
    """The process of one contender."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """Start the command, in which `{port}` stands for a free port."""
        self.name = name
        self.endpoint = Endpoint("http", "127.0.0.1", _free_port())
        self._log = log
        filled = [part.replace("{port}", str(self.endpoint.port)) for part in command]
        with log.open("wb") as file:
            self._process = subprocess.Popen(filled, stdout=file, stderr=file)

    def wait(self) -> None:
        """Wait until the server reports that it is ready."""
        for _ in range(_READY_TRIES):
            if self._process.poll() is not None:
                break
            try:
                if get(self.endpoint, "/v2/health/ready")[0] == 200:
                    return
            except WorldError:
                pass  # it does not listen yet
            pause(0.1)
        output = self._log.read_text(errors="replace").strip()[-500:]
        raise RunFailedError(f"the contender {self.name!r} does not become ready: {output or 'it printed nothing'}")

    def front_ns(self) -> Duration:
        """Return the CPU time of its main thread, which receives requests and sends answers."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not end."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LoadProcess:
    """The process that sends load."""

    def __init__(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "cotenant_lab.loadgen.play"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def play(self, load: LoadPlan) -> LoadReport:
        """Have a load sent and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(load) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RunFailedError("the process that sends the load ended")
        return msgspec.json.decode(line, type=LoadReport)

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def load_on(
    server: Server,
    models: Sequence[BenchModel],
    slos_ns: Sequence[Duration],
    window: MeasureWindow,
    instants_ns: Sequence[Sequence[Duration]] = (),
    clients: int = 0,
) -> LoadPlan:
    """Return a load for this server."""
    return LoadPlan(
        endpoint=server.endpoint,
        targets=tuple((model.name, slo_ns) for model, slo_ns in zip(models, slos_ns, strict=True)),
        messages=tuple(message_of(model.request(), server.endpoint) for model in models),
        window=window,
        instants_ns=tuple(tuple(model_instants) for model_instants in instants_ns),
        clients=clients,
    )


def serve_command(folder: Path, policy: str, *flags: str) -> list[str]:
    """Return the command line of our server with a policy."""
    ports = ("--http-port", "{port}", "--grpc-port", "-1", "--metrics-port", "-1")
    return [sys.executable, "-m", "cotenant", "serve", "run", str(folder), *ports, "--policy", policy, *flags]


def default_command(folder: Path) -> list[str]:
    """Return the command line of ONNX Runtime behind FastAPI."""
    return [sys.executable, "-m", "cotenant_lab.competitors.plain_onnx", "{port}", str(folder)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
