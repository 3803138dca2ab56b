"""Diurnal profiles of programs, kept across their runs for a limited number of programs."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.predict.diurnal_profile import DAY_NS, PROGRAMS_LIMIT, DiurnalProfile, Program
from cotenant.predict.diurnal_store import diurnal_profile_of, load_with, merged
from cotenant.predict.load import Load
from cotenant.units.instant import Duration, Instant


class DiurnalProfiles:
    """The profiles that a node knows, initially those of an earlier run."""

    def __init__(self, known: Mapping[Program, DiurnalProfile] | None = None, ahead_ns: Duration = 0) -> None:
        """Load known profiles, oldest first; `ahead_ns` is the offset from an instant to local midnight's clock."""
        self.ahead_ns = ahead_ns
        self.changes = 0
        """Increases with each update, so that unchanged profiles are not written again."""
        self._known: dict[Program, DiurnalProfile] = {}
        for program, day in (known or {}).items():
            self._put(program, day)

    def known(self) -> dict[Program, DiurnalProfile]:
        """Return the profile of each program, the most recently updated last."""
        return dict(self._known)

    def load(self, program: Program | None, period_ns: Duration) -> Load:
        """Return the initial load model of a tenant, with its program's profile and without windows."""
        day = () if program is None else self._known.get(program, ())
        return load_with(day, period_ns)

    def saw(self, program: Program | None, load: Load, period_ns: Duration, now: Instant) -> None:
        """Add the load of a tenant so far to its program's profile."""
        if program is None:
            return
        day, before = diurnal_profile_of(load, period_ns), self._known.get(program, ())
        if day:
            self._put(program, merged(before, day, (now + self.ahead_ns) // DAY_NS))
            self.changes += 1

    def _put(self, program: Program, day: DiurnalProfile) -> None:
        self._known.pop(program, None)
        self._known[program] = day
        while len(self._known) > PROGRAMS_LIMIT:
            del self._known[next(iter(self._known))]
