"""How fast will an offline job go beside a GPU's online work, and what will that cost the online work?

Speeds are parts of the job's speed alone on the whole GPU, slowdowns are time together over time alone. `worth` answers
for every job of many on every GPU of many at once, from what both do alone and the share: it depends on nothing else,
so that answers can be kept. What was seen since then corrects them (`learn`, `corrected`), for all jobs of a profile
and, within that, beside one kind of company.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.domain.cluster import OnlineUse
from cotenant.domain.use import TaskUse
from cotenant.policy.predict.speed_facts import GpuSide, JobSide, Spot, gpu_side, job_side, pair_facts
from cotenant.policy.predict.speed_model import answers, features, rule
from cotenant.policy.predict.speed_parameters import Parameters, WayParameters, kept_parameters

LEARNED_LIMIT: Final = 20_000
"""Profiles, and profiles in some company, of which something is remembered; those not heard of for longest go first."""
_PATIENCE: Final = 2
"""What was predicted counts for as much as so many speeds that were seen."""
_FORGETS: Final = 20
"""After so many, older ones count for less and less."""
_MOST_SHIFT: Final = 3.0
"""In logarithms: what was seen can make an answer twenty times as large or small, and no more."""
_LEAST_SPEED: Final = 0.005
_PPM: Final = 1_000_000
_UNKNOWN: Final = 2.0
"""How many times as unsure answers are where nothing is known of the job or of an online tenant."""
_SURER: Final = 0.4
"""Of the first doubt, what is left once much was seen."""
_LEAST_SIZE: Final = 0.05
_CELLS: Final = 1 << 13
"""So many pairs at a time stay in a processor's cache."""
_WHOLE: Final = 1_000_000
WORST: Final = tuple(
    TaskUse(_WHOLE, ((width, _WHOLE),), memory_ppm, kernel_ns, kernel_ns, 20 * kernel_ns, 20 * kernel_ns, _WHOLE)
    for width in (_WHOLE // 2, _WHOLE)
    for memory_ppm in (0, _WHOLE)
    for kernel_ns in (10_000, 200_000, 2_000_000)
)
"""What a job of which nothing is known may turn out to be: it is taken for whichever does worst, and whichever harms
most, on each GPU."""


class Speeds(NamedTuple):
    """Tables of float32, jobs by GPUs."""

    point: Any
    """The job's speed, of its speed alone on the whole GPU."""
    low: Any
    """It is as likely as not to be above `point`, and hardly ever below this."""
    slowdown: Any
    """Of the online work, beside the job: 1 is not at all."""
    slowdown_high: Any
    """It is hardly ever above this."""


class _Seen(NamedTuple):
    times: int
    shift: float
    """Mean of the errors, in logarithms, later ones counting for more."""


class SpeedPredictor:
    """Answers, and what was learned from speeds that were seen. Small, without a clock or dice."""

    def __init__(
        self,
        learned: Iterable[tuple[str, str, int, int]] = (),
        way: str = "space",
        parameters: Parameters | None = None,
    ) -> None:
        """`learned`: what `learned()` of an earlier one gave. `way`: how GPUs are shared, one of the parameters'."""
        self._seen = {(profile, beside): _Seen(times, shift / _PPM) for profile, beside, times, shift in learned}
        self._way = (parameters or kept_parameters()).ways[way]
        self._sliced = way == "time"

    def worth(self, jobs: Sequence[TaskUse | None], gpus: Sequence[Spot]) -> Speeds:
        """Before anything is learned; None: a job of which nothing is known, for which the worst is assumed."""
        found = Speeds(*(np.empty((len(jobs), len(gpus)), dtype=np.float32) for _ in Speeds._fields))
        known = [row for row, one in enumerate(jobs) if one is not None]
        panel = WORST if len(known) < len(jobs) else ()
        offline = job_side([*(jobs[row] for row in known), *panel])
        online = gpu_side(gpus)
        width = max(1, _CELLS // max(len(known) + len(panel), 1))
        for first in range(0, len(gpus), width):
            some = slice(first, first + width)
            speed, slowdown = self._logs(offline, GpuSide(*(one[some] for one in online)))
            blurred = np.where(online.is_known[some] > 0, 1.0, _UNKNOWN)[None, :]
            self._fill(found, known, some, (speed[: len(known)], slowdown[: len(known)], blurred))
            if panel:
                unknown = [row for row, one in enumerate(jobs) if one is None]
                worst = (
                    speed[len(known) :].min(axis=0, keepdims=True),
                    slowdown[len(known) :].max(axis=0, keepdims=True),
                    np.full_like(blurred, _UNKNOWN),
                )
                self._fill(found, unknown, some, worst)
        return found

    def _logs(self, offline: JobSide, online: GpuSide) -> tuple[Any, Any]:
        facts = pair_facts(offline, online)
        tables = features(offline, online, facts, rule(offline, online, facts, sliced=self._sliced))
        both = answers(self._way.model, tables.reshape(len(tables), -1).T).reshape(*tables.shape[1:], 2)
        alone = online.presence[None, :] <= 0
        return both[:, :, 0], np.where(alone, 0.0, both[:, :, 1])

    def _fill(self, found: Speeds, rows: Sequence[int], columns: slice, told: tuple[Any, Any, Any]) -> None:
        where = (np.array(rows, dtype=np.intp)[:, None], np.arange(found.point.shape[1])[None, columns])
        for table, one in zip(found, speeds_of(self._way, *told), strict=True):
            table[where] = one

    def learn(self, profile: str, beside: str, foretold: float, seen: float) -> None:
        """A job of this profile went at this speed in this company, where `worth` gave the point `foretold`.

        `beside` names the company as coarsely as jobs are to be told apart by it, like `beside_of` does.
        """
        if foretold <= 0 or seen <= 0:
            return
        error = _within(math.log(max(seen, _LEAST_SPEED) / max(foretold, _LEAST_SPEED)))
        self._take(profile, "", error)
        if beside:
            self._take(profile, beside, error)
        while len(self._seen) > LEARNED_LIMIT:
            del self._seen[next(iter(self._seen))]

    def corrected(self, raw: Speeds, profiles: Sequence[str], besides: Sequence[str]) -> Speeds:
        """With what was learned: a row for each profile, a column for each company.

        What was foretold counts for something still, so that a correction never goes beyond what was seen; of a company
        that is new to the profile, what was seen of the profile elsewhere is what is known.
        """
        if not self._seen:
            return raw
        shift, times = self._by_what_was_seen(profiles, besides)
        left = _SURER + (1 - _SURER) / np.sqrt(1 + times / _PATIENCE)
        point = np.clip(raw.point * np.exp(shift), _LEAST_SPEED, 1.0)
        low = np.maximum(point * (raw.low / raw.point) ** left, _LEAST_SPEED)
        return Speeds(point, np.minimum(low, point), raw.slowdown, raw.slowdown_high)

    def has_seen(self, profiles: Sequence[str], besides: Sequence[str]) -> Any:
        """bool: whether a speed of this profile was seen in this company; a row for each profile."""
        rows = {profile: row for row, profile in enumerate(dict.fromkeys(profiles))}
        columns = {beside: column for column, beside in enumerate(dict.fromkeys(besides))}
        found = np.zeros((len(rows), len(columns)), dtype=bool)
        for profile, beside in self._seen:
            if profile in rows and beside in columns:
                found[rows[profile], columns[beside]] = True
        return found[np.ix_([rows[profile] for profile in profiles], [columns[beside] for beside in besides])]

    def _by_what_was_seen(self, profiles: Sequence[str], besides: Sequence[str]) -> tuple[Any, Any]:
        """By how much points are off, and how often that was seen: a row for each profile, a column for each company.

        Filled in for distinct names, from what was seen rather than from what is asked for: the one is bounded.
        """
        rows: dict[str, int] = {}
        columns: dict[str, int] = {}
        row = [rows.setdefault(profile, len(rows)) for profile in profiles]
        column = [columns.setdefault(beside, len(columns)) for beside in besides]
        shift = np.zeros((len(rows), len(columns)), dtype=np.float32)
        times = np.zeros((len(rows), len(columns)), dtype=np.float32)
        whole = {profile: self._seen[profile, ""] for profile in rows if (profile, "") in self._seen}
        for profile, seen in whole.items():
            shift[rows[profile]], times[rows[profile]] = _towards(0.0, seen), seen.times
        where = [
            (rows[profile], columns[beside], _towards(_towards(0.0, whole.get(profile, seen)), seen), seen.times)
            for (profile, beside), seen in self._seen.items()
            if beside and beside in columns and profile in rows
        ]
        if where:
            down, across, shifted, often = (list(one) for one in zip(*where, strict=True))
            shift[down, across] = shifted
            times[down, across] += often
        return shift[row][:, column], times[row][:, column]

    def learned(self) -> tuple[tuple[str, str, int, int], ...]:
        """All that is remembered, those heard of last at the end."""
        return tuple(
            (profile, beside, seen.times, round(seen.shift * _PPM)) for (profile, beside), seen in self._seen.items()
        )

    def _take(self, profile: str, beside: str, error: float) -> None:
        before = self._seen.pop((profile, beside), _Seen(0, 0.0))
        times = min(before.times + 1, _FORGETS)
        self._seen[profile, beside] = _Seen(times, round(before.shift + (error - before.shift) / times, 6))


def speeds_of(way: WayParameters, speed: Any, slowdown: Any, blurred: Any = 1.0) -> Speeds:
    """What a model's answers in logarithms mean, where it is so many times as unsure as usual."""
    of_speed, of_slowdown = way.doubt
    low = speed - blurred * of_speed * size_of(-speed)
    high = slowdown + blurred * of_slowdown * np.where(slowdown > 0, size_of(slowdown), 0.0)
    least = np.maximum(np.exp(low), _LEAST_SPEED)
    return Speeds(np.maximum(np.exp(speed), _LEAST_SPEED), least, np.exp(slowdown), np.exp(high))


def size_of(slower: Any) -> Any:
    """How much slowing there is to be wrong about, by the logarithm of it: 0.05 for none, 1.05 for a lot."""
    return 1 - np.exp(-slower) + _LEAST_SIZE


def beside_of(online: Sequence[OnlineUse]) -> str:
    """The company by the names of its services, in whatever order."""
    return "+".join(sorted(one.name for one in online))


def _towards(shift: float, seen: _Seen) -> float:
    """From what was believed before to what was seen, by how often."""
    return (_PATIENCE * shift + seen.times * seen.shift) / (_PATIENCE + seen.times)


def _within(shift: float) -> float:
    return min(max(shift, -_MOST_SHIFT), _MOST_SHIFT)
