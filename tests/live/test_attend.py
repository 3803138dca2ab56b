"""Does a tenant's parent see to its program also where the node forgot what it had told it?"""

from __future__ import annotations

from typing import Any, cast

import pytest

from cotenant.apps.attend import Attendant
from cotenant.domain.tenant import Kind, Terms
from cotenant.live.clock import monotonic_ns


class Membership:
    """A place at a node that was away, and is there again at the first try: with the old slot, or with a new one."""

    def __init__(self, *, is_anew: bool) -> None:
        self.terms = Terms(0, 1, Kind.OFFLINE, 7, 0, 0, 0, 0)
        self.evicted = ""
        self.resumed = 0
        self._is_anew = is_anew

    def say(self, text: str) -> None:
        """Nobody listens."""

    def fileno(self) -> int:
        return -1

    def pushed(self, *, readable: bool) -> list[Any]:
        del readable
        return []

    def resume(self) -> bool:
        self.resumed += 1
        if self._is_anew and self.resumed == 1:
            self.terms = Terms(0, 2, Kind.OFFLINE, 7, 0, 0, 0, 0)
        return True


class Signals:
    """None comes."""

    def fileno(self) -> int:
        return -1


class Mover:
    """Remembers what it is asked."""

    def __init__(self, *, is_aside: bool) -> None:
        self.is_aside = is_aside
        self.restored = 0

    def fileno(self) -> int:
        return -1

    def restore(self) -> None:
        self.restored += 1
        self.is_aside = False


@pytest.mark.parametrize("is_anew, is_aside, restored", [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_memory_on_the_host_comes_back_where_the_node_forgot_it(
    *, is_anew: bool, is_aside: bool, restored: int
) -> None:
    membership, mover = Membership(is_anew=is_anew), Mover(is_aside=is_aside)
    attendant = Attendant(cast("Any", membership), cast("Any", Signals()), None, cast("Any", mover), 0)
    while not membership.resumed:
        attendant.rest(monotonic_ns() + 1_000_000)
    assert mover.restored == restored
