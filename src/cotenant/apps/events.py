"""Wires `cotenant events`: what happened on a node, from its journal, whether it runs or not."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import msgspec

from cotenant.domain.happening import Happening
from cotenant.errors import WorldError
from cotenant.format.happening import line_of, record_of
from cotenant.format.journal import Turn
from cotenant.live.clock import kept_offset, pause, rfc3339, time_of_day, unix_ns
from cotenant.live.directory import Places
from cotenant.live.observe.tail import JournalTail
from cotenant.machine.chronicle import Chronicle

LOOK_S = 0.2
"""How often the journal is looked at for more."""


class Wanted(msgspec.Struct, frozen=True):
    """Which happenings to show; nothing said: all of them."""

    tenant: str = ""
    gpu: int | None = None
    since_ns: int | None = None
    """Only what is no older than this."""

    def has(self, happening: Happening, earliest_unix_ns: int) -> bool:
        """Whether this one is to be shown; one whose time nobody knows is."""
        return (
            self.tenant in ("", happening.tenant)
            and self.gpu in (None, happening.gpu)
            and not 0 < happening.unix_ns < earliest_unix_ns
        )


def history(places: Places, say: Callable[[str], None]) -> Iterator[tuple[Turn, list[Happening]]]:
    """Every turn that is on record and what happened in it, oldest first; raises `WorldError` where no record is."""
    reader = _Reader(places, say)
    try:
        yield from reader.more()
        reader.complain()
    finally:
        reader.close()


def happenings(places: Places, wanted: Wanted, say: Callable[[str], None], *, follow: bool) -> Generator[Happening]:
    """Those that are wanted; to follow is to go on with what happens from now on."""
    earliest = 0 if wanted.since_ns is None else unix_ns() - wanted.since_ns
    reader = _Reader(places, say, must_be=not follow)
    try:
        while True:
            for _, told in reader.more():
                yield from (happening for happening in told if wanted.has(happening, earliest))
            if not follow:
                reader.complain()
                return
            pause(LOOK_S)
    finally:
        reader.close()


class _Reader:
    """A journal and its chronicle."""

    def __init__(self, places: Places, say: Callable[[str], None], *, must_be: bool = True) -> None:
        self._places = places
        self._say = say
        self._must_be = must_be
        self._tail = JournalTail(places.journal, say)
        self._chronicle = Chronicle(kept_offset(places.clock))

    def more(self) -> Iterator[tuple[Turn, list[Happening]]]:
        for turn in self._tail.turns():
            yield turn, self._chronicle.tell(turn.now, turn.event, turn.actions)
        if self._must_be and not self._tail.exists:
            raise WorldError(f"no node has left a journal in {self._places.state}; start one with: cotenant node")

    def complain(self) -> None:
        """Of a tail that is no whole turn; while a node runs it may be the turn that is being written."""
        if self._tail.torn_bytes:
            self._say(f"the journal ends in {self._tail.torn_bytes} bytes that are no whole turn; they are not shown")

    def close(self) -> None:
        self._tail.close()


def happening_line(happening: Happening) -> str:
    """For people."""
    return line_of(happening, time_of_day(happening.unix_ns))


def happening_json(happening: Happening) -> dict[str, object]:
    """For programs; the same as in the node's log."""
    return record_of(happening, rfc3339(happening.unix_ns))
