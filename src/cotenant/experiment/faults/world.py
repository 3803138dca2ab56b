"""Who lives through the faults? A software GPU, a node that watches over it, a service and a worker as real tenants."""

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
from cotenant.live.softgpu import fault, manage

PRESET: Final = "a100"
CONTEXT_BYTES: Final = 64 << 20
PERIOD_US: Final = 10_000
"""A request every 10 ms: a service of 100 requests a second."""
NODE_FLAGS: Final = (
    *("--slots", "8", "--watch-period", "200ms", "--calm-samples", "2", "--first-samples", "2"),
    *("--fault-grace", "500ms", "--evict-grace", "3s", "--hang-least", "1s", "--hang-factor", "20"),
    *("--backoff", "500ms", "--online-first", "5s", "--make-room", "2s"),
)
"""Shorter waits than the defaults, where all that a fault costs is waiting: there are hundreds of faults."""
TENANT_FLAGS: Final = (
    "--restart",
    "always",
    "--restart-delay",
    "100ms",
    "--restart-well",
    "100ms",
    "--grace",
    "2s",
    "--measure",
    "never",
)
_LESSONS: Final = "20"
"""Steps of the worker, alone, that its kernels are timed in: only a kernel that is known can be overdue."""
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.2
_FRESH_NS: Final = 300_000_000
_SERVED: Final = 5
"""So many requests in a row, the latest not long ago: it serves."""


class Program:
    """A tenant: `cotenant run`, and what it runs."""

    def __init__(self, world: World, name: str, flags: Sequence[str], program: Sequence[str]) -> None:
        """Not started yet."""
        self.name = name
        self.log = world.home / f"{name}.log"
        self.log.touch()
        self._world = world
        where = ["--runtime", str(world.places.runtime), "--state", str(world.places.state)]
        tenant = [sys.executable, "-m", "cotenant", "run", *where, "--name", name, "--gpu", "soft:0", *flags]
        self._command = [*tenant, *TENANT_FLAGS, "--", sys.executable, "-m", *program]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As a supervisor would: unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        environ = {**os.environ, "SOFTGPU_ACCOUNT": self.name}
        with (self._world.home / f"{self.name}.err").open("ab") as complaints:
            self.process = subprocess.Popen(
                self._command, env=environ, stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
            )

    @property
    def pid(self) -> int:
        """The process of it that holds the device; 0: none does."""
        if self.process is None:
            return 0
        with contextlib.suppress(CotenantError):
            for client in self._world.books()["clients"]:
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
            raise WorldError(f"{self.name} does not end; see {self._world.home}") from None

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


class World:
    """Everything, in one directory; ended with it."""

    def __init__(self, home: Path, *, mps: bool) -> None:
        """Nothing runs yet."""
        self.home = home
        self.places = Places(home / "run", home / "state")
        self.gpus = self.places.runtime / "softgpu"
        self.mps = mps
        self.clock = LiveClock(0)
        self.origin_ns = self.clock.now()
        self.orders = home / "orders"
        self._orders = 0
        self._node: subprocess.Popen[bytes] | None = None
        served = ["cotenant.live.soak.service", str(home / "service.log"), str(PERIOD_US), str(self.origin_ns)]
        self.service = Program(self, "service", ["--online", "--memory", "2GiB"], served)
        self._worked = ["cotenant.live.soak.worker", str(home / "worker.log"), str(self.orders)]
        offline, worked = ["--offline", "--memory", "4GiB", "--task", "worker"], self._worked
        self.worker = Program(self, "worker", [*offline, "--on-pressure", "evict"], worked)
        self.patient = Program(self, "worker", [*offline, "--on-pressure", "suspend"], worked)

    def __enter__(self) -> Self:
        """Start all, and wait until all is well."""
        for directory in (self.places.runtime, self.places.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self.gpus, PRESET, 1, context_bytes=CONTEXT_BYTES)
        self.start_node()
        how = ["--offline", "--task", "worker", "--measure", "always", "--gpu", "soft:0"]
        self.ask("run", *how, "--", sys.executable, "-m", *self._worked, _LESSONS)
        self.service.start()
        self.worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all, whatever happened."""
        for program in (self.service, self.worker, self.patient):
            program.end()
        self.stop_node(signal.SIGTERM)
        manage.destroy(self.gpus)

    # -- the node ------------------------------------------------------------------------------------------------

    def start_node(self) -> None:
        """And wait until it answers."""
        where = ["--runtime", str(self.places.runtime), "--state", str(self.places.state)]
        flags = [*NODE_FLAGS, "--mps", "on" if self.mps else "off"]
        with (self.home / "node.err").open("ab") as complaints:
            self._node = subprocess.Popen(
                [sys.executable, "-m", "cotenant", "node", *where, *flags],
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
        where = ["--runtime", str(self.places.runtime), "--state", str(self.places.state)]
        told = subprocess.run(
            [sys.executable, "-m", "cotenant", words[0], *where, *words[1:]],
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

    def strike(self, kind: str, pid: int = 0, **how: int) -> None:
        """A fault of the device, for one client or for all."""
        fault.inject(self.gpus, 0, fault.KINDS[kind], client=pid, **how)

    def order(self, word: str) -> None:
        """Tell the worker to misbehave; it is done once, by whichever process of it sees it."""
        self._orders += 1
        fresh = self.orders.with_suffix(".new")
        fresh.write_text(f"{self._orders} {word}", encoding="utf-8")
        fresh.replace(self.orders)

    # -- how it is -----------------------------------------------------------------------------------------------

    def due(self) -> int:
        """The number of the request that is due now."""
        return (self.clock.now() - self.origin_ns) // (PERIOD_US * 1000)

    def served(self) -> list[int]:
        """The numbers of all requests that were served."""
        lines = self.service.log.read_text(encoding="utf-8").split("\n")
        return [int(line.split()[0]) for line in lines if line]

    def lost(self, first: int, last: int) -> int:
        """Requests of this range that nobody served."""
        return len(set(range(first, last + 1)) - set(self.served()))

    def serves(self, since: int) -> bool:
        """Whether the latest requests, all of them later than this one, were served."""
        last = int((self.service.last_line() or "0").split()[0])
        return last >= since + _SERVED and self.due() - last <= _SERVED

    def works(self, since_ns: int) -> bool:
        """Whether the worker has done something since, all that it was ordered to, and lately."""
        last = self.worker.last_line()
        if last == "spoilt":
            raise WorldError("the worker's device memory is not what it wrote there")
        at_ns, _, done = last.partition(" ")
        return bool(last) and int(done) == self._orders and since_ns < int(at_ns) > self.clock.now() - _FRESH_NS

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

    def swap(self, there: Program, instead: Program) -> None:
        """Another tenant of the same name: the one that is there ends, the other one begins."""
        there.signal(signal.SIGTERM)
        there.reap()
        self.worker = instead
        instead.start()


def give_time() -> None:
    """For what was begun to be in flight."""
    pause(_AGAIN_S)
