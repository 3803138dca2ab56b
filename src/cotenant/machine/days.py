"""What is known of the days of programs that come and go? By task, for as long as others do not need the room."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.domain.day import DAY_NS, PROGRAMS_LIMIT, Day, Program
from cotenant.domain.instant import Duration, Instant
from cotenant.policy.predict.day import day_of, load_with, merged
from cotenant.policy.predict.load import Load


class Days:
    """The memory of a node. Begins with what an earlier one knew, if somebody kept it."""

    def __init__(self, known: Mapping[Program, Day] | None = None, ahead_ns: Duration = 0) -> None:
        """`ahead_ns` leads from instants to those of a clock that began at a midnight; those who saw last come last."""
        self.ahead_ns = ahead_ns
        self.changes = 0
        """Grows with whatever is learned: what is the same need not be kept again."""
        self._known: dict[Program, Day] = {}
        for program, day in (known or {}).items():
            self._put(program, day)

    def known(self) -> dict[Program, Day]:
        """Of each program, those who saw last at the end."""
        return dict(self._known)

    def load(self, program: Program | None, period_ns: Duration) -> Load:
        """What a tenant begins with: the days of its program, and nothing of its last windows."""
        day = () if program is None else self._known.get(program, ())
        return load_with(day, period_ns)

    def saw(self, program: Program | None, load: Load, period_ns: Duration, now: Instant) -> None:
        """What a tenant has seen up to now; several of one program add to the same."""
        if program is None:
            return
        day, before = day_of(load, period_ns), self._known.get(program, ())
        if day:
            self._put(program, merged(before, day, (now + self.ahead_ns) // DAY_NS))
            self.changes += 1

    def _put(self, program: Program, day: Day) -> None:
        self._known.pop(program, None)
        self._known[program] = day
        while len(self._known) > PROGRAMS_LIMIT:
            del self._known[next(iter(self._known))]
