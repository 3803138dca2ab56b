"""Gslice: every model keeps a part of the device to itself, as large as it needs, and tuned as it goes.

From GSLICE (Dhakal et al., SoCC 2020): spatial sharing by MPS percentages. A model's part begins at the knee of its
curve, since more hardly helps; parts are corrected by what is measured while serving, taking from those with time to
spare and giving to those without; batches are as large as the objective allows; a changed part is taken up by a standby
process, so that nothing stops. One run at a time per model, on its own part; what a model does not use is nobody's.
Where the parts add up to more than the device, all are cut in proportion.

Ours are: half of the objective for a run (the rest is for waiting), a correction each second by one measured width
(published: by steps of percent after a number of batches), up when more than 1 % of its requests were late or more
waits than one batch, down when its runs filled less than half of the time. Left out: sharing of weights between the
serving and the standby process, the copies that it overlaps with computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.domain.lane import Ended, Foreseen, Hold, Lane, Launch, View
from cotenant.domain.serveplan import ModelPlan, ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.batch import answered_ns, assemble_at_most, rows_in_half

_EVERY_NS: Final = SECOND_NS
_LATE: Final = 0.01
_IDLE: Final = 0.5


class _Served:
    """What a model's part was good for since the last correction."""

    __slots__ = ("busy_ns", "in_time", "late")

    def __init__(self) -> None:
        self.busy_ns: Duration = 0
        self.in_time = 0
        self.late = 0


class Gslice:
    """Remembers each model's part of the device, and what came of it."""

    def __init__(self) -> None:
        """Nobody has a part."""
        self._wishes: dict[int, int] = {}
        self._parts: dict[int, int] = {}
        self._served: dict[int, _Served] = {}
        self._since: Instant = 0
        self._told: ServePlan | None = None

    def next(self, view: View) -> Launch | Hold | None:
        """A batch of a model that does not run, on its part."""
        self._tune(view)
        for lane in view.lanes:
            units = self._parts[lane.key]
            if lane.running or units > view.free_units:  # runs begun on larger parts have to end first
                continue
            return Launch(lane.key, *assemble_at_most(lane, rows_in_half(lane, units)), units)
        return None

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """After its own run and the batches before it: nobody else is in its way."""
        units = self._parts.get(lane.key) or lane.knee_units
        own_ns = sum(max(run.expected_end - view.now, 0) for run in view.under_way if run.key == lane.key)
        batch = rows_in_half(lane, units)
        return Foreseen(answered_ns(lane, lane.rows + asked.rows, batch, units, own_ns))

    def ended(self, run: Ended, view: View) -> None:  # noqa: ARG002  other policies look at it
        """Count it."""
        served = self._served.setdefault(run.key, _Served())
        served.busy_ns += run.took_ns
        served.in_time += run.in_time
        served.late += run.late

    def plan(self) -> ServePlan | None:
        """The parts."""
        return self._told

    def _tune(self, view: View) -> None:
        known = {lane.key for lane in view.everyone}
        is_due = view.now - self._since >= _EVERY_NS
        if known == self._wishes.keys() and not is_due:
            return
        for lane in view.everyone:
            wish = self._wishes.get(lane.key)
            self._wishes[lane.key] = lane.knee_units if wish is None else self._corrected(lane, wish, view)
        self._wishes = {lane.key: self._wishes[lane.key] for lane in view.everyone}
        self._parts = cut(self._wishes, view.everyone, view.all_units)
        self._served = {}
        self._since = view.now
        self._told = self._plan_of(view)

    def _corrected(self, lane: Lane, wish: int, view: View) -> int:
        served = self._served.get(lane.key)
        if served is None:
            return wish
        asked = served.in_time + served.late
        is_short = served.late > _LATE * asked or lane.rows > rows_in_half(lane, self._parts[lane.key])
        widths = [units for units in lane.widths if units <= lane.knee_units]
        if is_short:
            return min((units for units in widths if units > wish), default=wish)
        if served.busy_ns < _IDLE * (view.now - self._since):
            return max((units for units in widths if units < wish), default=wish)
        return wish

    def _plan_of(self, view: View) -> ServePlan:
        models = tuple(
            ModelPlan(
                model=lane.spec.name,
                batch=rows_in_half(lane, self._parts[lane.key]),
                units=self._parts[lane.key],
                expected_ns=lane.expected_ns(rows_in_half(lane, self._parts[lane.key]), self._parts[lane.key]),
                runs=1,
                rate=lane.rate,
                objective="knee",
                why=f"wants {self._wishes[lane.key]} by its knee and what was late",
            )
            for lane in view.everyone
        )
        used = sum(self._wishes.values()) / view.all_units
        return ServePlan(_EVERY_NS, view.all_units, models, used, "each model has a part of its own")


def cut(wishes: dict[int, int], lanes: Sequence[Lane], all_units: int) -> dict[int, int]:
    """Parts that fit the device: as wished, or all cut in proportion, to a measured width where there is one."""
    total = sum(wishes.values())
    if total <= all_units:
        return dict(wishes)
    parts = {}
    for lane in lanes:
        even = max(wishes[lane.key] * all_units // total, 1)
        parts[lane.key] = max((units for units in lane.widths if units <= even), default=even)
    return parts
