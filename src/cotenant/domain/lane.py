"""How does a model's queue look to those who choose from it?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import ModelSpec, Waiting
from cotenant.domain.value import Value


class Lane(Protocol):
    """One model: what waits, most urgent first, and what runs."""

    @property
    def key(self) -> int:
        """Which loading of the model it is."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        ...

    @property
    def waiting(self) -> Sequence[Waiting]:
        """By priority, then by deadline (those without one last), then in the order of arrival."""
        ...

    @property
    def rows(self) -> int:
        """That wait."""
        ...

    @property
    def running(self) -> int:
        """Runs that have not ended."""
        ...

    @property
    def rate(self) -> float:
        """Rows a second that came lately."""
        ...

    @property
    def asked(self) -> Mapping[int, int]:
        """Rows that were ever asked for, by priority, taken or not."""
        ...

    @property
    def widths(self) -> Sequence[int]:
        """The numbers of units that runs of it may have, ascending; never empty."""
        ...

    @property
    def knee_units(self) -> int:
        """The units past which runs hardly get faster; as many as its spec says where nothing was measured."""
        ...

    def expected_ns(self, rows: int, units: int) -> Duration:
        """How long a run of so many rows on so many units is believed to take; zero if nothing is known."""
        ...

    def high_ns(self, rows: int, units: int) -> Duration:
        """What such a run exceeds once in a hundred."""
        ...


class UnderWay(NamedTuple):
    """A run that has not ended."""

    key: int
    rows: int
    units: int
    """Zero: it runs unshared, beside whatever else runs."""
    began: Instant
    expected_end: Instant


class View(NamedTuple):
    """What a policy of a server sees at one instant; what a new policy must know besides is added here."""

    lanes: Iterable[Lane]
    """In which something waits."""
    free_units: int
    all_units: int
    free_at: Instant
    """When a unit is expected to be free; now, if one is."""
    now: Instant
    everyone: Sequence[Lane] = ()
    """All lanes, also those in which nothing waits."""
    under_way: Collection[UnderWay] = ()
    """By when they began."""
    lag_ns: Duration = 0
    """What passes, now and then, between a run's end and word of it; an answer takes as long again to get out."""


class Launch(Value, frozen=True):
    """Run the first so many requests of a lane now, on so many units; zero units: unshared, on the whole device."""

    key: int
    requests: int
    rows: int
    units: int


class GiveUp(Value, frozen=True):
    """Refuse the first so many requests of a lane now: they would be late, and the device is not spent on that."""

    key: int
    requests: int


class Hold(Value, frozen=True):
    """Nothing to run before this instant, unless something happens."""

    until: Instant


class Ended(Value, frozen=True):
    """A run that is over, as its policy hears of it."""

    key: int
    model: str
    rows: int
    units: int
    began: Instant
    took_ns: Duration
    in_time: int
    """Requests of it that were answered by their deadline, or had none."""
    late: int
    failed: bool


class ServePolicy(Protocol):
    """Who runs when. It may remember what it saw, but knows no clock and rolls no dice: same views, same choices."""

    def next(self, view: View) -> Launch | GiveUp | Hold | None:
        """The next run, if any; asked again in the same turn until it neither launches nor gives up."""
        ...

    def ended(self, run: Ended, view: View) -> None:
        """A run of its choosing is over."""
        ...

    def plan(self) -> ServePlan | None:
        """What it intends, where it plans at all."""
        ...


class Foreseen(NamedTuple):
    """What a policy says of a request before it is taken."""

    wait_ns: Duration
    """Until its answer, counted from now, in the order in which the policy will run what it has."""
    detail: str = ""
    """Why it is to be refused whatever its deadline, if it is: there is not enough for all, and others come first."""


@runtime_checkable
class Foresees(Protocol):
    """A policy that knows the order in which it will run things, and so who can be taken."""

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """What would become of one more request of this lane."""
        ...


def assemble(lane: Lane) -> tuple[int, int]:
    """How many requests from the front go into one run, and their rows: as many as fit and look alike."""
    waiting = lane.waiting
    head = waiting[0]
    limit = lane.spec.max_batch
    if not limit:
        return 1, head.rows
    rows = head.rows
    count = 1
    for one in waiting[1:limit]:
        if one.shapes != head.shapes or rows + one.rows > limit:
            break
        rows += one.rows
        count += 1
    return count, rows
