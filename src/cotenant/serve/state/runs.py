"""Table of active runs and their units; a run may be queued behind another one on the same units.

Between the end of a run and the start of the next one on its units lie a report, a decision and a command: most of a
millisecond in which the units are idle. If the runtime keeps the order on its units (`ServerSettings.ahead`), a run can
be assigned to units whose run is about to end; it then starts there without a round trip. It *follows* that run.
"""

from __future__ import annotations

from typing import NamedTuple

from cotenant.serve.model.scheduling import ActiveRun, StartRun
from cotenant.serve.state.model_queue import ModelQueueState
from cotenant.units.instant import Duration, Instant


class EndedRun(NamedTuple):
    """A run that has ended."""

    queue: ModelQueueState
    run: ActiveRun
    deadlines: tuple[Instant, ...]
    followed: bool
    """Whether it followed another run, so that it started without a delay."""


class _RunEntry(NamedTuple):
    queue: ModelQueueState
    run: ActiveRun
    deadlines: tuple[Instant, ...]
    units: int
    """Units on which no run follows."""
    cores: tuple[int, ...]
    after: int
    follower: int
    """The run that follows; zero: none."""


class RunTable:
    """All active runs."""

    def __init__(self, units: int, *, pinned: bool) -> None:
        """Start with all units free."""
        self.free_units = units
        self._free_cores: list[int] = list(range(units)) if pinned else []
        self._entries: dict[int, _RunEntry] = {}
        self._visible: dict[int, ActiveRun] = {}
        self.active_runs = self._visible.values()
        """The runs that a policy sees: a run that is followed on all its units is not included."""

    def __len__(self) -> int:
        """Return the number of active runs."""
        return len(self._entries)

    def begin(
        self, number: int, queue: ModelQueueState, choice: StartRun, lasts_ns: Duration, deadlines: tuple[Instant, ...],
        now: Instant, after: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Assign units to a run, first those of the run that it follows; return its cores if a unit is a core."""
        units = choice.units
        cores: tuple[int, ...] = ()
        began = now
        if after:
            leader = self._entries[after]
            began = max(leader.run.expected_end, now)
            taken = min(units, leader.units)
            cores = leader.cores[:taken]
            remaining = leader._replace(units=leader.units - taken, cores=leader.cores[taken:], follower=number)
            self._entries[after] = remaining
            if remaining.units:
                self._visible[after] = remaining.run._replace(units=remaining.units)
            else:
                del self._visible[after]
            units -= taken
        assert 0 <= units <= self.free_units
        self.free_units -= units
        cores += tuple(self._free_cores[:units])
        del self._free_cores[:units]
        run = ActiveRun(queue.key, choice.rows, choice.units, began, began + lasts_ns)
        self._entries[number] = _RunEntry(queue, run, deadlines, choice.units, cores, after, 0)
        self._visible[number] = run
        return cores

    def end(self, number: int, now: Instant) -> EndedRun:
        """Free a run's units, or pass them to the run that follows, which starts."""
        entry = self._entries.pop(number)
        self._visible.pop(number, None)
        self.free_units += entry.units
        self._free_cores = sorted((*self._free_cores, *entry.cores))
        follower = self._entries.get(entry.follower)
        if follower is not None:
            run = follower.run
            run = run._replace(began=now, expected_end=now + run.expected_end - run.began)
            self._entries[entry.follower] = follower._replace(run=run)
            if entry.follower in self._visible:
                self._visible[entry.follower] = run._replace(units=follower.units)
        return EndedRun(entry.queue, entry.run, entry.deadlines, entry.after > 0)

    def soonest(self) -> tuple[int, Instant] | None:
        """Return the run expected to end next among those that may be followed (started, without a follower)."""
        next_to_end = None
        for number, entry in self._entries.items():
            if entry.follower or not entry.units or entry.after in self._entries:
                continue
            if next_to_end is None or entry.run.expected_end < next_to_end[1]:
                next_to_end = number, entry.run.expected_end
        return next_to_end

    def without(self, number: int) -> tuple[int, list[ActiveRun]]:
        """Return the units that would be free without this run, and the other runs."""
        return self.free_units + self._entries[number].units, [
            run for other, run in self._visible.items() if other != number
        ]
