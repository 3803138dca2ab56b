"""Which run has which units of a device, and which one comes right after another on the same units?

Between the end of a run and the begin of the next one on its units lie word of the end, a decision and word of that:
most of a millisecond in which the units do nothing. Where a runtime keeps order on its units (`ServerSettings.ahead`),
a run may be given to units whose run is about to end, and begins there without any word. It *follows* that run.
"""

from __future__ import annotations

from typing import NamedTuple

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.lane import Launch, UnderWay
from cotenant.machine.lanes import QueueLane


class Over(NamedTuple):
    """A run that has ended."""

    lane: QueueLane
    run: UnderWay
    deadlines: tuple[Instant, ...]
    followed: bool
    """Whether it came right after another, so that nothing was waited for before it."""


class _Held(NamedTuple):
    lane: QueueLane
    run: UnderWay
    deadlines: tuple[Instant, ...]
    units: int
    """What of its units nobody follows on."""
    cores: tuple[int, ...]
    after: int
    before: int
    """Its follower; zero: none."""


class Runs:
    """All runs that have not ended."""

    def __init__(self, units: int, *, pinned: bool) -> None:
        """All of the device is free."""
        self.free_units = units
        self._free_cores: list[int] = list(range(units)) if pinned else []
        self._held: dict[int, _Held] = {}
        self._seen: dict[int, UnderWay] = {}
        self.under_way = self._seen.values()
        """As a policy sees them: one that is followed on all its units is as good as over."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._held)

    def begin(
        self, number: int, lane: QueueLane, choice: Launch, lasts_ns: Duration, deadlines: tuple[Instant, ...],
        now: Instant, after: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Take units for a run, of the one that it follows first; returns its cores, where a unit is one."""
        units = choice.units
        cores: tuple[int, ...] = ()
        began = now
        if after:
            before = self._held[after]
            began = max(before.run.expected_end, now)
            taken = min(units, before.units)
            cores = before.cores[:taken]
            left = before._replace(units=before.units - taken, cores=before.cores[taken:], before=number)
            self._held[after] = left
            if left.units:
                self._seen[after] = left.run._replace(units=left.units)
            else:
                del self._seen[after]
            units -= taken
        assert 0 <= units <= self.free_units
        self.free_units -= units
        cores += tuple(self._free_cores[:units])
        del self._free_cores[:units]
        run = UnderWay(lane.key, choice.rows, choice.units, began, began + lasts_ns)
        self._held[number] = _Held(lane, run, deadlines, choice.units, cores, after, 0)
        self._seen[number] = run
        return cores

    def end(self, number: int, now: Instant) -> Over:
        """Give its units back, or leave them to the run that follows, which begins."""
        held = self._held.pop(number)
        self._seen.pop(number, None)
        self.free_units += held.units
        self._free_cores = sorted((*self._free_cores, *held.cores))
        follower = self._held.get(held.before)
        if follower is not None:
            run = follower.run
            run = run._replace(began=now, expected_end=now + run.expected_end - run.began)
            self._held[held.before] = follower._replace(run=run)
            if held.before in self._seen:
                self._seen[held.before] = run._replace(units=follower.units)
        return Over(held.lane, held.run, held.deadlines, held.after > 0)

    def soonest(self) -> tuple[int, Instant] | None:
        """The run that is expected to end next, of those that may be followed: begun, on units, by one at most."""
        found = None
        for number, held in self._held.items():
            if held.before or not held.units or held.after in self._held:
                continue
            if found is None or held.run.expected_end < found[1]:
                found = number, held.run.expected_end
        return found

    def but_for(self, number: int) -> tuple[int, list[UnderWay]]:
        """The units that would be free without this run, and the others."""
        return self.free_units + self._held[number].units, [run for one, run in self._seen.items() if one != number]
