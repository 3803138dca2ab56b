"""Setup of bench `faults`: a software GPU, a node, and a service and a worker as real tenants."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cotenant.runner.clock import pause
from cotenant.softgpu import fault
from cotenant_lab.errors import RunFailedError
from cotenant_lab.programs.site import NodeSite, TenantProgram

PRESET: Final = "a100"
PERIOD_US: Final = 10_000
"""A request every 10 ms: 100 requests per second."""
NODE_FLAGS: Final = (
    *("--slots", "8", "--watch-period", "200ms", "--calm-samples", "2", "--first-samples", "2"),
    *("--fault-grace", "500ms", "--evict-grace", "3s", "--hang-least", "1s", "--hang-factor", "20"),
    *("--backoff", "500ms", "--online-first", "5s", "--make-room", "2s"),
)
"""Shorter waits than the defaults, because hundreds of faults are injected and waiting dominates."""
_LESSONS: Final = "20"
"""Steps in which the worker's kernels are timed alone: only a kernel of known duration can be overdue."""
_AGAIN_S: Final = 0.2
_FRESH_NS: Final = 300_000_000
_SERVED: Final = 5
"""This number of consecutive requests, the latest one recent, counts as serving."""


class FaultsSetup(NodeSite):
    """Device, node and tenants in one directory."""

    def __init__(self, home: Path, *, mps: bool) -> None:
        """Prepare the programs without starting them."""
        super().__init__(home, PRESET, [*NODE_FLAGS, "--mps", "on" if mps else "off"])
        self.mps = mps
        self.origin_ns = self.clock.now()
        self.orders = home / "orders"
        self._orders = 0
        served = ["cotenant_lab.programs.service", str(home / "service.log"), str(PERIOD_US), str(self.origin_ns)]
        self.service = TenantProgram(self, "service", ["--online", "--memory", "2GiB"], served)
        self._worked = ["cotenant_lab.programs.trainer", str(home / "worker.log"), str(self.orders)]
        offline, worked = ["--offline", "--memory", "4GiB", "--task", "worker"], self._worked
        self.worker = TenantProgram(self, "worker", [*offline, "--on-pressure", "evict"], worked)
        self.patient = TenantProgram(self, "worker", [*offline, "--on-pressure", "suspend"], worked)

    def __enter__(self) -> Self:
        """Profile the worker, then start the service and the worker."""
        super().__enter__()
        flags = ["--offline", "--task", "worker", "--measure", "always", "--gpu", "soft:0"]
        self.run_command("run", *flags, "--", sys.executable, "-m", *self._worked, _LESSONS)
        self.service.start()
        self.worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all programs, the node and the device."""
        for program in (self.service, self.worker, self.patient):
            program.end()
        super().__exit__(kind, error, traceback)

    # -- the device ----------------------------------------------------------------------------------------------

    def strike(self, kind: str, pid: int = 0, **options: int) -> None:
        """Inject a device fault into one client or into all."""
        fault.inject(self.gpus, 0, fault.KINDS[kind], client=pid, **options)

    def order(self, word: str) -> None:
        """Order the worker to misbehave; the first of its processes that reads the order executes it once."""
        self._orders += 1
        fresh = self.orders.with_suffix(".new")
        fresh.write_text(f"{self._orders} {word}", encoding="utf-8")
        fresh.replace(self.orders)

    # -- state ---------------------------------------------------------------------------------------------------

    def due(self) -> int:
        """Return the number of the request that is due now."""
        return (self.clock.now() - self.origin_ns) // (PERIOD_US * 1000)

    def served(self) -> list[int]:
        """Return the numbers of all requests that were served."""
        lines = self.service.log.read_text(encoding="utf-8").split("\n")
        return [int(line.split()[0]) for line in lines if line]

    def lost(self, first: int, last: int) -> int:
        """Return how many requests of this range were not served."""
        return len(set(range(first, last + 1)) - set(self.served()))

    def serves(self, since: int) -> bool:
        """Return whether the latest requests, all after `since`, were served."""
        last = int((self.service.last_line() or "0").split()[0])
        return last >= since + _SERVED and self.due() - last <= _SERVED

    def works(self, since_ns: int) -> bool:
        """Return whether the worker has worked recently and since `since_ns`, and executed all orders."""
        last = self.worker.last_line()
        if last == "spoilt":
            raise RunFailedError("the worker's device memory differs from what it wrote")
        at_ns, _, done = last.partition(" ")
        return bool(last) and int(done) == self._orders and since_ns < int(at_ns) > self.clock.now() - _FRESH_NS

    def swap(self, there: TenantProgram, instead: TenantProgram) -> None:
        """Stop one tenant and start another one of the same name."""
        there.signal(signal.SIGTERM)
        there.reap()
        self.worker = instead
        instead.start()


def give_time() -> None:
    """Wait until work that was begun is in flight."""
    pause(_AGAIN_S)
