"""Lead several processes through one scenario of shared device memory."""

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
    """One process on the software GPUs of a directory; every operation is a call of the driver in it."""

    def __init__(self, directory: Path, **surroundings: str) -> None:
        self.line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(PATIENCE_S)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "scripted_program.py"), str(other.fileno())],
                env={**os.environ, **manage.env(directory), **surroundings},
                pass_fds=[other.fileno()],
            )

    def tell(self, name: str, *arguments: Any, descriptor: int | None = None, **options: Any) -> None:
        """Says what to do without waiting for the answer."""
        sent = [] if descriptor is None else [descriptor]
        socket.send_fds(self.line, [json.dumps([name, arguments, options]).encode()], sent)

    def receive(self) -> tuple[str, list[Any], list[int]]:
        """The code of the call, its values, and a descriptor that came along."""
        message, descriptors, _, _ = socket.recv_fds(self.line, 65536, 1)
        assert message, f"the process ended with {self.process.wait(PATIENCE_S)}"
        code, *values = json.loads(message)
        return code, values, descriptors

    def code(self, name: str, *arguments: Any, **options: Any) -> str:
        """What a call answered."""
        self.tell(name, *arguments, **options)
        answer, _, descriptors = self.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        return answer

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:
        """A call that must succeed: its value, or the descriptor that came with it."""
        self.tell(name, *arguments, **options)
        answer, values, descriptors = self.receive()
        assert answer == "CUDA_SUCCESS", f"{name}{arguments}: {answer}"
        if descriptors:
            return descriptors[0]
        return values[0] if len(values) == 1 else values

    def kill(self) -> None:
        """As by the system, without a word."""
        self.process.kill()
        self.process.wait()
        self.line.close()

    def leave(self) -> None:
        """Ends by itself."""
        self.line.close()
        assert self.process.wait(PATIENCE_S) == 0


@contextmanager
def scripted_programs(directory: Path, count: int, **surroundings: str) -> Iterator[list[ScriptedProgram]]:
    """Some processes that are gone afterwards, whatever happened."""
    made = [ScriptedProgram(directory, **surroundings) for _ in range(count)]
    try:
        yield made
    finally:
        for puppet in made:
            puppet.kill()
