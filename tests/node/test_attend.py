"""A tenant's parent restores its program even if the node has lost the suspension."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cotenant.gate.grant import Grant, Kind
from cotenant.node.client.attend import ProgramSupervisor
from cotenant.runner.clock import monotonic_ns

pytestmark = pytest.mark.live


class Membership:
    """A place at a node that was away, and is there again at the first try: with the old slot, or with a new one."""

    def __init__(self, *, is_anew: bool) -> None:
        self.grant = Grant(0, 1, Kind.OFFLINE, 7, 0, 0, 0, 0)
        self.evicted = ""
        self.resumed = 0
        self._is_anew = is_anew

    def report(self, text: str) -> None:
        """Do nothing: there is no listener."""

    def fileno(self) -> int:
        return -1

    def receive_pushed(self, *, readable: bool) -> list[Any]:
        del readable
        return []

    def resume(self) -> bool:
        self.resumed += 1
        if self._is_anew and self.resumed == 1:
            self.grant = Grant(0, 2, Kind.OFFLINE, 7, 0, 0, 0, 0)
        return True


class Signals:
    """None comes."""

    def fileno(self) -> int:
        return -1


class Mover:
    """Records its requests."""

    def __init__(self, *, is_suspended: bool) -> None:
        self.is_suspended = is_suspended
        self.restored = 0

    def fileno(self) -> int:
        return -1

    def restore(self) -> None:
        self.restored += 1
        self.is_suspended = False


@pytest.mark.parametrize("is_anew, is_suspended, restored", [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_suspended_memory_is_restored_after_the_node_lost_it(
    *, is_anew: bool, is_suspended: bool, restored: int
) -> None:
    membership, mover = Membership(is_anew=is_anew), Mover(is_suspended=is_suspended)
    supervisor = ProgramSupervisor(cast("Any", membership), cast("Any", Signals()), None, cast("Any", mover), 0)
    while not membership.resumed:
        supervisor.wait_until(monotonic_ns() + 1_000_000)
    assert mover.restored == restored
