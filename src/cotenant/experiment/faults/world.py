"""Who lives through the faults? A software GPU, a node that watches over it, a service and a worker as real tenants."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cotenant.errors import WorldError
from cotenant.experiment.site import Program, Site
from cotenant.live.clock import pause
from cotenant.live.softgpu import fault

PRESET: Final = "a100"
PERIOD_US: Final = 10_000
"""A request every 10 ms: a service of 100 requests a second."""
NODE_FLAGS: Final = (
    *("--slots", "8", "--watch-period", "200ms", "--calm-samples", "2", "--first-samples", "2"),
    *("--fault-grace", "500ms", "--evict-grace", "3s", "--hang-least", "1s", "--hang-factor", "20"),
    *("--backoff", "500ms", "--online-first", "5s", "--make-room", "2s"),
)
"""Shorter waits than the defaults, where all that a fault costs is waiting: there are hundreds of faults."""
_LESSONS: Final = "20"
"""Steps of the worker, alone, that its kernels are timed in: only a kernel that is known can be overdue."""
_AGAIN_S: Final = 0.2
_FRESH_NS: Final = 300_000_000
_SERVED: Final = 5
"""So many requests in a row, the latest not long ago: it serves."""


class World(Site):
    """Everything, in one directory; ended with it."""

    def __init__(self, home: Path, *, mps: bool) -> None:
        """Nothing runs yet."""
        super().__init__(home, PRESET, [*NODE_FLAGS, "--mps", "on" if mps else "off"])
        self.mps = mps
        self.origin_ns = self.clock.now()
        self.orders = home / "orders"
        self._orders = 0
        served = ["cotenant.live.soak.service", str(home / "service.log"), str(PERIOD_US), str(self.origin_ns)]
        self.service = Program(self, "service", ["--online", "--memory", "2GiB"], served)
        self._worked = ["cotenant.live.soak.worker", str(home / "worker.log"), str(self.orders)]
        offline, worked = ["--offline", "--memory", "4GiB", "--task", "worker"], self._worked
        self.worker = Program(self, "worker", [*offline, "--on-pressure", "evict"], worked)
        self.patient = Program(self, "worker", [*offline, "--on-pressure", "suspend"], worked)

    def __enter__(self) -> Self:
        """Start all, and wait until all is well."""
        super().__enter__()
        how = ["--offline", "--task", "worker", "--measure", "always", "--gpu", "soft:0"]
        self.ask("run", *how, "--", sys.executable, "-m", *self._worked, _LESSONS)
        self.service.start()
        self.worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all, whatever happened."""
        for program in (self.service, self.worker, self.patient):
            program.end()
        super().__exit__(kind, error, at)

    # -- the device ----------------------------------------------------------------------------------------------

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

    def swap(self, there: Program, instead: Program) -> None:
        """Another tenant of the same name: the one that is there ends, the other one begins."""
        there.signal(signal.SIGTERM)
        there.reap()
        self.worker = instead
        instead.start()


def give_time() -> None:
    """For what was begun to be in flight."""
    pause(_AGAIN_S)
