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


class _HeldRun(NamedTuple):
    queue: ModelQueueState
    run: ActiveRun
    deadlines: tuple[Instant, ...]
    units: int
    """Units on which no run follows."""
    cores: tuple[int, ...]
    after: int
    before: int
    """The run that follows; zero: none."""


class RunTable:
    """All active runs."""

    def __init__(self, units: int, *, pinned: bool) -> None:
        """Start with all units free."""
        self.free_units = units
        self._free_cores: list[int] = list(range(units)) if pinned else []
        self._held: dict[int, _HeldRun] = {}
        self._seen: dict[int, ActiveRun] = {}
        self.active_runs = self._seen.values()
        """As a policy sees them: a run that is followed on all its units is left out."""

    def __len__(self) -> int:
        """Return the number of active runs."""
        return len(self._held)

    def begin(
        self, number: int, queue: ModelQueueState, choice: StartRun, lasts_ns: Duration, deadlines: tuple[Instant, ...],
        now: Instant, after: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Assign units to a run, first those of the run that it follows; return its cores if a unit is a core."""
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
        run = ActiveRun(queue.key, choice.rows, choice.units, began, began + lasts_ns)
        self._held[number] = _HeldRun(queue, run, deadlines, choice.units, cores, after, 0)
        self._seen[number] = run
        return cores

    def end(self, number: int, now: Instant) -> EndedRun:
        """Free a run's units, or pass them to the run that follows, which starts."""
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
        return EndedRun(held.queue, held.run, held.deadlines, held.after > 0)

    def soonest(self) -> tuple[int, Instant] | None:
        """Return the run expected to end next among those that may be followed (started, without a follower)."""
        found = None
        for number, held in self._held.items():
            if held.before or not held.units or held.after in self._held:
                continue
            if found is None or held.run.expected_end < found[1]:
                found = number, held.run.expected_end
        return found

    def but_for(self, number: int) -> tuple[int, list[ActiveRun]]:
        """Return the units that would be free without this run, and the other runs."""
        return self.free_units + self._held[number].units, [run for one, run in self._seen.items() if one != number]
