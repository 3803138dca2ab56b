"""Does the watch look once more at a device that a tenant has just left? No device is needed for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from cotenant.domain.gpu import Gpu
from cotenant.domain.protect import ProtectLimits
from cotenant.live.errand import Outcome
from cotenant.live.ledger import LiveLedgers, path_of
from cotenant.live.watch.device import Question, Seen
from cotenant.live.watch.kin import Kin, identity_of
from cotenant.live.watch.node import Parts, Watch
from tests.live.watched import NOBODY, Known, tenant

LINES_USED, FIRST_LINE = 4096 + 8, 4096 + 128
"""Where it stands how many lines of slot 0 were ever used, and who owns the first: native/ledger/ledger.h."""


class Devices:
    """A device that is there, and lists nobody."""

    def look(self, questions: Sequence[Question]) -> list[Seen]:
        return [Seen(question.gpu, is_there=True, held_bytes={} if question.held else None) for question in questions]


class Errands:
    """Done where they are asked for."""

    def send(self, work: Callable[[], list[Seen]], done: Callable[[Any], None]) -> None:
        done(Outcome(work()))


def claim(directory: Path, owner: int) -> None:
    """As a process does when it first asks for memory."""
    with path_of(directory, 0).open("r+b") as file:
        for place, word in ((LINES_USED, 1), (FIRST_LINE, owner)):
            file.seek(place)
            file.write(word.to_bytes(8, "little"))


def test_a_process_that_came_and_died_between_two_looks_is_found(tmp_path: Path) -> None:
    known = Known(Gpu("a", 1 << 34), ProtectLimits())
    ledgers = LiveLedgers(tmp_path, 2)
    parts = cast("Any", Parts)(None, ledgers, Kin(), Devices(), Errands(), tmp_path)
    watch = Watch(known, parts, lambda _: None)
    ledgers.grant(0, 0, 1)
    known.say(tenant(0))
    watch.wake(watch.next_wakeup() or 0)
    assert ledgers.lines(0) == []
    claim(tmp_path, identity_of(NOBODY, 1, 1))
    assert len(ledgers.lines(0)) == 1
    known.say()  # it left, and nobody else is there
    due = watch.next_wakeup()
    assert due is not None
    watch.wake(due)
    assert ledgers.lines(0) == []
    assert watch.next_wakeup() is None
    ledgers.close()
