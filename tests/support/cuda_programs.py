"""Control several processes that share device memory, one driver call at a time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cotenant.softgpu import manage
from tests.support.software_gpus import PROGRAMS

PATIENCE_S = 60


class ScriptedProgram:
    """A process on software GPUs that makes one driver call per command."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self.line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(PATIENCE_S)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "scripted_program.py"), str(other.fileno())],
                env={**os.environ, **manage.env(directory), **variables},
                pass_fds=[other.fileno()],
            )

    def tell(self, name: str, *arguments: Any, descriptor: int | None = None, **options: Any) -> None:
        """Send a command without waiting for the answer."""
        descriptors = [] if descriptor is None else [descriptor]
        socket.send_fds(self.line, [json.dumps([name, arguments, options]).encode()], descriptors)

    def receive(self) -> tuple[str, list[Any], list[int]]:
        """Return the code of the call, its values, and the descriptors sent with it."""
        message, descriptors, _, _ = socket.recv_fds(self.line, 65536, 1)
        assert message, f"the process ended with {self.process.wait(PATIENCE_S)}"
        code, *values = json.loads(message)
        return code, values, descriptors

    def code(self, name: str, *arguments: Any, **options: Any) -> str:
        """Return the result code of a call."""
        self.tell(name, *arguments, **options)
        answer, _, descriptors = self.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        return answer

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Make a call that must succeed; return its value, or the descriptor sent with it."""
        self.tell(name, *arguments, **options)
        answer, values, descriptors = self.receive()
        assert answer == "CUDA_SUCCESS", f"{name}{arguments}: {answer}"
        if descriptors:
            return descriptors[0]
        return values[0] if len(values) == 1 else values

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        self.line.close()

    def leave(self) -> None:
        """Let the process exit by itself."""
        self.line.close()
        assert self.process.wait(PATIENCE_S) == 0


@contextmanager
def scripted_programs(directory: Path, count: int, **variables: str) -> Iterator[list[ScriptedProgram]]:
    """Yield some processes and kill them afterwards."""
    programs = [ScriptedProgram(directory, **variables) for _ in range(count)]
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
