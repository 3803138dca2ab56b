"""What the node does to processes and devices, when it must."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.live.clock import boot_ns
from cotenant.live.ledger import LiveLedgers
from cotenant.live.watch.kin import Kin, stat_of

_TICK_NS: Final = SECOND_NS // os.sysconf("SC_CLK_TCK")


class LiveWardens:
    """Ends processes, and has MPS started again."""

    def __init__(
        self,
        ledgers: LiveLedgers,
        kin: Kin,
        say: Callable[[str], None],
        *,
        joined_ns: Callable[[int], Instant | None],
        restart_mps: Callable[[], None],
    ) -> None:
        """`joined_ns`: by the kernel's clock since boot, not before when the tenant in a slot can have come."""
        self._ledgers = ledgers
        self._kin = kin
        self._say = say
        self._joined_ns = joined_ns
        self._restart_mps = restart_mps

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """End a tenant's parent, which takes its child along, and what the ledger says is the tenant's."""
        try:
            self._kill_parent(slot, pid)
            for line in self._ledgers.lines(gpu) if gpu >= 0 else ():
                if line.slot == slot:
                    self._kin.kill(line.owner)
        except PermissionError:
            self._say(f"cannot end the tenant in slot {slot}: process {pid} is another user's")

    def restart_mps(self, gpu: int) -> None:
        """One server is all devices'."""
        del gpu
        self._restart_mps()

    def _kill_parent(self, slot: int, pid: int) -> None:
        """By a descriptor, and only if it was there when the tenant joined: the number may be another's by now."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            stat, joined_ns = stat_of(pid), self._joined_ns(slot)
            is_later = stat is not None and joined_ns is not None and stat.start_ticks * _TICK_NS > joined_ns
            if stat is not None and not is_later:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def since_boot(instant: Instant, now: Instant) -> Instant:
    """An instant of the node's clock by the clock since boot, or later: what the machine slept meanwhile is added."""
    return boot_ns() - (now - instant)
