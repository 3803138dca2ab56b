"""Where do real tenants live? A software GPU, the node that watches over it, and programs under `cotenant run`."""

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

from cotenant.domain.protect import Health
from cotenant.errors import CotenantError, WorldError
from cotenant.format import wire
from cotenant.live.client import tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.live.directory import Places
from cotenant.live.process import lineage
from cotenant.live.softgpu import manage

CONTEXT_BYTES: Final = 64 << 20
TENANT_FLAGS: Final = (
    *("--restart", "always", "--restart-delay", "100ms", "--restart-well", "100ms"),
    *("--grace", "2s", "--measure", "never"),
)
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.02


class Program:
    """A tenant: `cotenant run`, and what it runs."""

    def __init__(self, site: Site, name: str, flags: Sequence[str], program: Sequence[str]) -> None:
        """Not started yet."""
        self.name = name
        self.log = site.home / f"{name}.log"
        self.log.touch()
        self._site = site
        tenant = [sys.executable, "-m", "cotenant", "run", *site.where(), "--name", name, "--gpu", "soft:0", *flags]
        self._command = [*tenant, *TENANT_FLAGS, "--", sys.executable, "-m", *program]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As a supervisor would: unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        environ = {**os.environ, "SOFTGPU_ACCOUNT": self.name}
        with (self._site.home / f"{self.name}.err").open("ab") as complaints:
            self.process = subprocess.Popen(
                self._command, env=environ, stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
            )

    @property
    def pid(self) -> int:
        """The process of it that holds the device; 0: none does."""
        if self.process is None:
            return 0
        with contextlib.suppress(CotenantError):
            for client in self._site.books()["clients"]:
                if self.process.pid in list(lineage(client["pid"])):
                    return int(client["pid"])
        return 0

    def signal(self, number: int) -> None:
        """To `cotenant run` itself."""
        if self.process is not None:
            self.process.send_signal(number)

    def reap(self) -> None:
        """Once it has ended."""
        assert self.process is not None
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise WorldError(f"{self.name} does not end; see {self._site.home}") from None

    def end(self) -> None:
        """Whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def last_line(self) -> str:
        """Of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
            lines = file.read().decode(errors="replace").split("\n")
        return lines[-2] if len(lines) > 1 else ""


class Site:
    """A device and its node, in one directory; ended with it."""

    def __init__(self, home: Path, preset: str, node_flags: Sequence[str]) -> None:
        """Nothing runs yet."""
        self.home = home
        self.places = Places(home / "run", home / "state")
        self.gpus = self.places.runtime / "softgpu"
        self.clock = LiveClock(0)
        self._preset = preset
        self._node_flags = node_flags
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the device and the node."""
        for directory in (self.places.runtime, self.places.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self.gpus, self._preset, 1, context_bytes=CONTEXT_BYTES)
        try:
            self.start_node()
        except CotenantError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End both, whatever happened."""
        with contextlib.suppress(CotenantError):  # a node that stops leaves its MPS to tenants who are still there
            for _ in self.until("tenants are still there"):
                if not self.roll().tenants:
                    break
        self.stop_node(signal.SIGTERM)
        manage.destroy(self.gpus)

    # -- the node ------------------------------------------------------------------------------------------------

    def where(self) -> list[str]:
        """Flags of every command."""
        return ["--runtime", str(self.places.runtime), "--state", str(self.places.state)]

    def start_node(self) -> None:
        """And wait until it answers."""
        with (self.home / "node.err").open("ab") as complaints:
            self._node = subprocess.Popen(
                [sys.executable, "-m", "cotenant", "node", *self.where(), *self._node_flags],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
            )
        for _ in self.until("the node does not answer"):
            with contextlib.suppress(CotenantError):
                self.roll()
                return

    def stop_node(self, number: int) -> None:
        """By a signal."""
        if self._node is not None:
            self._node.send_signal(number)
            self._node.wait()
            self._node = None

    def roll(self) -> wire.Tenants:
        """What the node says."""
        return tenants_of(self.places.socket)

    def ask(self, *words: str) -> None:
        """A command of cotenant, as a person gives it."""
        told = subprocess.run(
            [sys.executable, "-m", "cotenant", words[0], *self.where(), *words[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode:
            raise WorldError(f"cotenant {' '.join(words)}: {told.stderr.strip()}")

    # -- the device ----------------------------------------------------------------------------------------------

    def books(self) -> dict[str, Any]:
        """What the device says."""
        return manage.inspect(self.gpus, 0)

    def is_healthy(self) -> bool:
        """By the node's own word."""
        with contextlib.suppress(CotenantError):
            return all(watch.health is Health.HEALTHY for watch in self.roll().devices)
        return False

    def health(self) -> str:
        """In a word."""
        return ", ".join(watch.health.value for watch in self.roll().devices)

    def until(self, otherwise: str) -> Iterator[None]:
        """Look again and again, for a while."""
        end_ns = self.clock.now() + round(_PATIENCE_S * 1e9)
        while self.clock.now() < end_ns:
            yield
            pause(_LOOK_S)
        raise WorldError(otherwise)
