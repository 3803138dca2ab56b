"""Diurnal profiles of programs, kept across their runs for a limited number of programs."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.predict.diurnal_profile import DAY_NS, PROGRAMS_LIMIT, DiurnalProfile, Program
from cotenant.predict.diurnal_store import diurnal_profile_of, load_with, merged
from cotenant.predict.load import Load
from cotenant.units.instant import Duration, Instant


class DiurnalProfiles:
    """The profiles that a node knows, initially those of an earlier run."""

    def __init__(self, profiles: Mapping[Program, DiurnalProfile] | None = None, ahead_ns: Duration = 0) -> None:
        """Load profiles, oldest first; an instant plus `ahead_ns` is local time, whose days begin at midnight."""
        self.ahead_ns = ahead_ns
        self.changes = 0
        """Increases with each update, so that unchanged profiles are not written again."""
        self._profiles: dict[Program, DiurnalProfile] = {}
        for program, profile in (profiles or {}).items():
            self._put(program, profile)

    def profiles(self) -> dict[Program, DiurnalProfile]:
        """Return the profile of each program, the most recently updated last."""
        return dict(self._profiles)

    def load(self, program: Program | None, period_ns: Duration) -> Load:
        """Return the initial load model of a tenant, with its program's profile and without windows."""
        profile = () if program is None else self._profiles.get(program, ())
        return load_with(profile, period_ns)

    def add_load(self, program: Program | None, load: Load, period_ns: Duration, now: Instant) -> None:
        """Add the load of a tenant so far to its program's profile."""
        if program is None:
            return
        profile, before = diurnal_profile_of(load, period_ns), self._profiles.get(program, ())
        if profile:
            self._put(program, merged(before, profile, (now + self.ahead_ns) // DAY_NS))
            self.changes += 1

    def _put(self, program: Program, profile: DiurnalProfile) -> None:
        self._profiles.pop(program, None)
        self._profiles[program] = profile
        while len(self._profiles) > PROGRAMS_LIMIT:
            del self._profiles[next(iter(self._profiles))]
