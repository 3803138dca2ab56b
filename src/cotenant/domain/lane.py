"""How does a model's queue look to those who choose from it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from cotenant.domain.instant import Duration, Instant
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
        """By priority, then in the order of arrival."""
        ...

    @property
    def rows(self) -> int:
        """That wait."""
        ...

    @property
    def running(self) -> int:
        """Runs that have not ended."""
        ...

    def expected_ns(self, rows: int) -> Duration:
        """How long a run of so many rows is believed to take."""
        ...


class View(NamedTuple):
    """What a policy of a server sees at one instant; what a new policy must know besides is added here."""

    lanes: Iterable[Lane]
    """In which something waits."""
    free_cores: int
    all_cores: int
    free_at: Instant
    """When a core is expected to be free; now, if one is."""
    now: Instant


class Launch(Value, frozen=True):
    """Run the first so many requests of a lane now, on so many cores."""

    key: int
    requests: int
    rows: int
    cores: int


class Hold(Value, frozen=True):
    """Nothing to run before this instant, unless something happens."""

    until: Instant


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
