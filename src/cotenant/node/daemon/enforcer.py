"""Ends the processes of tenants and restarts MPS."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

from cotenant.gate.ledger_file import LiveLedgers
from cotenant.node.daemon.monitor.processes import ProcessTable, stat_of
from cotenant.runner.clock import boot_ns
from cotenant.units.instant import SECOND_NS, Instant

_TICK_NS: Final = SECOND_NS // os.sysconf("SC_CLK_TCK")


class LiveEnforcer:
    """Ends processes and restarts MPS."""

    def __init__(
        self,
        ledgers: LiveLedgers,
        processes: ProcessTable,
        report: Callable[[str], None],
        *,
        joined_ns: Callable[[int], Instant | None],
        restart_mps: Callable[[], None],
    ) -> None:
        """`joined_ns` returns when the tenant of a slot joined, by the clock since boot."""
        self._ledgers = ledgers
        self._processes = processes
        self._report = report
        self._joined_ns = joined_ns
        self._restart_mps = restart_mps

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """Kill a tenant's parent, which also ends its program, and all processes of the tenant in the ledger."""
        try:
            self._kill_parent(slot, pid)
            for line in self._ledgers.lines(gpu) if gpu >= 0 else ():
                if line.slot == slot:
                    self._processes.kill(line.owner)
        except PermissionError:
            self._report(f"cannot end the tenant in slot {slot}: process {pid} belongs to another user")

    def restart_mps(self, gpu: int) -> None:
        """Restart the MPS server, which serves all devices."""
        del gpu
        self._restart_mps()

    def _kill_parent(self, slot: int, pid: int) -> None:
        """Kill the parent by a pidfd, only if it started before the tenant joined: its number may be reused."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            stat, joined_ns = stat_of(pid), self._joined_ns(slot)
            is_reused = stat is not None and joined_ns is not None and stat.start_ticks * _TICK_NS > joined_ns
            if stat is not None and not is_reused:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def since_boot(instant: Instant, now: Instant) -> Instant:
    """Convert an instant of the node's clock to the clock since boot; time suspended meanwhile is added."""
    return boot_ns() - (now - instant)
