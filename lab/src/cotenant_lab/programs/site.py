"""Software GPUs, their node, and programs under `cotenant run`, in one directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cotenant.errors import CotenantError
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants
from cotenant.node.directories import Directories
from cotenant.node.model.protection import Health
from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.process import ancestors
from cotenant.softgpu import manage
from cotenant_lab.errors import RunFailedError

CONTEXT_BYTES: Final = 64 << 20
TENANT_FLAGS: Final = (
    *("--restart", "always", "--restart-delay", "100ms", "--restart-well", "100ms"),
    *("--grace", "2s", "--measure", "never"),
)
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.02


class TenantProgram:
    """A tenant: a `cotenant run` process and its program."""

    def __init__(self, site: NodeSite, name: str, flags: Sequence[str], program: Sequence[str]) -> None:
        """Prepare the program without starting it."""
        self.name = name
        self.log = site.home / f"{name}.log"
        self.log.touch()
        self._site = site
        tenant = [
            sys.executable,
            "-m",
            "cotenant",
            "run",
            *site.directory_flags(),
            "--name",
            name,
            "--gpu",
            "soft:0",
            *flags,
        ]
        self._command = [*tenant, *TENANT_FLAGS, "--", sys.executable, "-m", *program]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        environ = {**os.environ, "SOFTGPU_ACCOUNT": self.name}
        with (self._site.home / f"{self.name}.err").open("ab") as complaints:
            self.process = subprocess.Popen(
                self._command, env=environ, stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
            )

    @property
    def pid(self) -> int:
        """Return the process of the tenant that uses the device; 0: none does."""
        if self.process is None:
            return 0
        with contextlib.suppress(CotenantError):
            for client in self._site.counters()["clients"]:
                if self.process.pid in list(ancestors(client["pid"])):
                    return int(client["pid"])
        return 0

    def signal(self, number: int) -> None:
        """Send a signal to `cotenant run`."""
        if self.process is not None:
            self.process.send_signal(number)

    def reap(self) -> None:
        """Wait until it has ended."""
        assert self.process is not None
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise RunFailedError(f"{self.name} does not end; see {self._site.home}") from None

    def end(self) -> None:
        """Kill it if necessary."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def last_line(self) -> str:
        """Return the last line of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
            lines = file.read().decode(errors="replace").split("\n")
        return lines[-2] if len(lines) > 1 else ""


class NodeSite:
    """Devices and their node in one directory."""

    def __init__(self, home: Path, preset: str, node_flags: Sequence[str], gpus: int = 1) -> None:
        """Prepare without starting anything."""
        self.home = home
        self.directories = Directories(home / "run", home / "state")
        self.gpus = self.directories.runtime / "softgpu"
        self.clock = LiveClock(0)
        self._preset = preset
        self._gpus = gpus
        self._node_flags = node_flags
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the devices, the node and what else `start` starts."""
        for directory in (self.directories.runtime, self.directories.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self.gpus, self._preset, self._gpus, context_bytes=CONTEXT_BYTES)
        try:
            self.start()
        except CotenantError:
            self.__exit__(None, None, None)
            raise
        return self

    def start(self) -> None:
        """Start what runs on the device; `__exit__` stops it if this fails."""
        self.start_node()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop both."""
        with contextlib.suppress(CotenantError):  # a node that stops leaves MPS running for its remaining tenants
            for _ in self.until("tenants are still there"):
                if not self.tenants().tenants:
                    break
        self.stop_node(signal.SIGTERM)
        manage.destroy(self.gpus)

    # -- node ----------------------------------------------------------------------------------------------------

    def directory_flags(self) -> list[str]:
        """Return the directory flags of every command."""
        return ["--runtime-dir", str(self.directories.runtime), "--state-dir", str(self.directories.state)]

    def start_node(self) -> None:
        """Start the node and wait until it answers."""
        with (self.home / "node.err").open("ab") as complaints:
            self._node = subprocess.Popen(
                [sys.executable, "-m", "cotenant", "node", *self.directory_flags(), *self._node_flags],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
            )
        for _ in self.until("the node does not answer"):
            with contextlib.suppress(CotenantError):
                self.tenants()
                return

    def stop_node(self, number: int) -> None:
        """Stop the node by a signal."""
        if self._node is not None:
            self._node.send_signal(number)
            self._node.wait()
            self._node = None

    def tenants(self) -> wire.TenantList:
        """Return the node's tenants."""
        return list_tenants(self.directories)

    def run_command(self, *words: str) -> None:
        """Run a cotenant command."""
        result = subprocess.run(
            [sys.executable, "-m", "cotenant", words[0], *self.directory_flags(), *words[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RunFailedError(f"cotenant {' '.join(words)}: {result.stderr.strip()}")

    # -- device --------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Return the counters of the first device."""
        return manage.inspect(self.gpus, 0)

    def is_healthy(self) -> bool:
        """Return whether the node reports the device as healthy."""
        with contextlib.suppress(CotenantError):
            return all(watch.health is Health.HEALTHY for watch in self.tenants().devices)
        return False

    def health(self) -> str:
        """Return the device's health as the node reports it."""
        return ", ".join(watch.health.value for watch in self.tenants().devices)

    def until(self, otherwise: str) -> Iterator[None]:
        """Repeat until the caller stops or a time limit passes."""
        end_ns = self.clock.now() + round(_PATIENCE_S * 1e9)
        while self.clock.now() < end_ns:
            yield
            pause(_LOOK_S)
        raise RunFailedError(otherwise)
