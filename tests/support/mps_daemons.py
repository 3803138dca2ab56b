"""A software GPU, an MPS control daemon with its own directories, and clients that follow commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cotenant.softgpu import manage
from cotenant.softgpu.costs import IDEAL, GpuCosts
from tests.support.software_gpus import PROGRAMS

READY = "SUCCESS"


class SteeredMps:
    """A client program that makes one driver call per command."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "driver_commands.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self._read_line())

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, call: str) -> None:
        """Begin a call that may take long to return."""
        assert self.process.stdin is not None
        self.process.stdin.write(call + "\n")
        self.process.stdin.flush()

    def ask(self, *calls: str) -> str:
        """Make these calls and return the answer to the last one."""
        answer = ""
        for call in calls:
            self.tell(call)
            answer = self._read_line()
        return answer

    def await_answer(self) -> str:
        return self._read_line()

    def end(self) -> None:
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


class MpsHarness:
    """Software GPUs and the directories of one control daemon."""

    def __init__(self, root: Path, count: int = 1, costs: GpuCosts = IDEAL) -> None:
        self.directory = root / "gpu"
        self.count = count
        manage.create(self.directory, "v100", count, costs=costs)
        self.pipe, self.log = root / "pipe", root / "log"
        self.clients: list[SteeredMps] = []

    def environment(self, **more: str) -> dict[str, str]:
        mps = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        return {**os.environ, **manage.env(self.directory), **mps, **more}

    def control(self, *arguments: str, input_text: str | bytes = "", **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["nvidia-cuda-mps-control", *arguments],
            env=self.environment(**more),
            input=input_text.encode() if isinstance(input_text, str) else input_text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode())

    def command(self, command: str) -> str:
        """Return the daemon's answer to a command."""
        done = self.control(input_text=command + "\n")
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def server(self) -> int:
        return int(self.command("get_server_list"))

    def client(self, *calls: str, **more: str) -> SteeredMps:
        """Start a client of this daemon, if it runs, and make these calls, which must succeed."""
        client = SteeredMps(self.environment(**more))
        self.clients.append(client)
        for call in calls:
            assert client.ask(call) == READY, call
        return client

    def stranger(self, *calls: str) -> SteeredMps:
        """Start a client with a pipe directory in which no daemon runs."""
        return self.client(*calls, CUDA_MPS_PIPE_DIRECTORY=str(self.pipe.parent / "nowhere"))

    def gone(self, *clients: SteeredMps, killed: bool = False) -> None:
        """End clients, and return when the device server and the daemon no longer list them."""
        for client in clients:
            client.kill() if killed else client.end()
        pids = {client.pid for client in clients}
        while any(pids & {row["pid"] for row in self.counters(n)["clients"]} for n in range(self.count)):
            pass
        while pids & {int(word) for server in self.command("get_server_list").split() for word in self.members(server)}:
            pass

    def members(self, server: str | int) -> list[str]:
        return self.command(f"get_client_list {server}").split()

    def counters(self, ordinal: int = 0) -> dict[str, Any]:
        return manage.inspect(self.directory, ordinal)

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        self.control(input_text="quit -t 0\n")
        manage.destroy(self.directory)
