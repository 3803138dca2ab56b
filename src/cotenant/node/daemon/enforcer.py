"""Ends the processes of tenants and restarts MPS."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

from cotenant.node.daemon.proc import ProcessTree, pidfd_of
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.model.tenant import Tenant
from cotenant.runner.clock import boot_ns
from cotenant.units.instant import SECOND_NS, Instant

_TICK_NS: Final = SECOND_NS // os.sysconf("SC_CLK_TCK")


class LiveEnforcer:
    """Ends processes and restarts MPS."""

    def __init__(
        self,
        processes: LiveProcesses,
        report: Callable[[str], None],
        *,
        find_tenant: Callable[[int, int], Tenant | None],
        joined_ns: Callable[[Tenant], Instant],
        restart_mps: Callable[[], None],
        tree: ProcessTree | None = None,
    ) -> None:
        """`find_tenant` returns the latest tenant of a slot that this process joined for.

        `joined_ns` returns when a tenant joined, by the clock since boot.
        """
        self._processes = processes
        self._report = report
        self._find_tenant = find_tenant
        self._joined_ns = joined_ns
        self._restart_mps = restart_mps
        self._tree = tree or ProcessTree()

    def kill(self, gpu: int, slot: int, pid: int, *, keep_parent: bool = False) -> None:
        """Kill all processes of a tenant; with `keep_parent`, not the one that joined for it, unless it uses a GPU."""
        del gpu
        tenant = self._find_tenant(slot, pid)
        if tenant is None:
            return
        self._processes.kill((slot, tenant.grant.generation), keep_supervisor=keep_parent)
        if not keep_parent and not self._processes.is_supervised((slot, tenant.grant.generation)):
            self._kill_parent(tenant, pid)

    def restart_mps(self, gpu: int) -> None:
        """Restart the MPS server, which serves all devices."""
        del gpu
        self._restart_mps()

    def _kill_parent(self, tenant: Tenant, pid: int) -> None:
        """Kill a parent that has not reconnected to a restarted node, whose number is in the journal.

        Its number may be reused: it counts only if that process started before the tenant joined and has its user.
        """
        pidfd = pidfd_of(pid)
        if pidfd is None:
            return
        try:
            stat = self._tree.stat(pid)
            is_own = stat is not None and stat.start_ticks * _TICK_NS <= self._joined_ns(tenant)
            if is_own and self._tree.owner(pid) == tenant.uid and pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except PermissionError:
            self._report(f"cannot end {tenant.name}: process {pid} belongs to another user")
        finally:
            os.close(pidfd)


def since_boot(instant: Instant, now: Instant) -> Instant:
    """Convert an instant of the node's clock to the clock since boot; time suspended meanwhile is added."""
    return boot_ns() - (now - instant)
