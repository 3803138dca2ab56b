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
from cotenant.policy.predict.speed_facts import Spot, gpu_side, job_side, pair_facts

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
_DOUBT: Final = 0.25
_LEAST_DOUBT: Final = 0.05
_DOUBT_UNKNOWN: Final = 1.0
_SURER: Final = 0.4
"""Of the first doubt, what is left once much was seen."""


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


class SpeedPredictor:
    """Answers, and what was learned from speeds that were seen. Small, without a clock or dice."""

    def __init__(self, learned: Iterable[tuple[str, str, int, int]] = ()) -> None:
        """`learned`: what `learned()` of an earlier one gave."""
        self._seen = {(profile, beside): _Seen(times, shift / _PPM) for profile, beside, times, shift in learned}

    def worth(self, jobs: Sequence[TaskUse | None], gpus: Sequence[Spot]) -> Speeds:
        """Before anything is learned; None: a job of which nothing is known, for which the worst is assumed."""
        offline, online = job_side(jobs), gpu_side(gpus)
        facts = pair_facts(offline, online)
        duty = offline.duty[:, None]
        stretch = facts.stretched * (1 + facts.crowded + facts.starved)
        point = 1 / (1 - duty + duty * stretch)
        slowdown = 1 + online.duty[None, :] * (facts.crowding + facts.starved)
        slowdown = np.where(online.presence[None, :] > 0, slowdown, 1.0)
        is_sure = offline.is_known[:, None] & (online.is_known[None, :] > 0)
        doubt = np.where(is_sure, _LEAST_DOUBT + _DOUBT * (1 - point), _DOUBT_UNKNOWN)
        high = 1 + (slowdown - 1) * np.exp(np.where(is_sure, 2 * _DOUBT, _DOUBT_UNKNOWN))
        found = (np.maximum(point, _LEAST_SPEED), np.maximum(point * np.exp(-doubt), _LEAST_SPEED), slowdown, high)
        return Speeds(*(np.ascontiguousarray(one, dtype=np.float32) for one in found))

    def learn(self, profile: str, beside: str, foretold: float, seen: float) -> None:
        """A job of this profile went at this speed in this company, where `worth` gave the point `foretold`.

        `beside` names the company as coarsely as jobs are to be told apart by it, like `beside_of` does.
        """
        if foretold <= 0 or seen <= 0:
            return
        error = _within(math.log(max(seen, _LEAST_SPEED) / max(foretold, _LEAST_SPEED)))
        whole = self._take(profile, "", error)
        if beside:
            self._take(profile, beside, error - whole)
        while len(self._seen) > LEARNED_LIMIT:
            del self._seen[next(iter(self._seen))]

    def corrected(self, raw: Speeds, profiles: Sequence[str], besides: Sequence[str]) -> Speeds:
        """With what was learned: a row for each profile."""
        if not self._seen:
            return raw
        shift = np.zeros(raw.point.shape, dtype=np.float32)
        times = np.zeros(raw.point.shape, dtype=np.float32)
        columns: dict[str, list[int]] = {}
        for column, beside in enumerate(besides):
            columns.setdefault(beside, []).append(column)
        rows: dict[str, list[int]] = {}
        for row, profile in enumerate(profiles):
            rows.setdefault(profile, []).append(row)
        for (profile, beside), seen in self._seen.items():
            mine = rows.get(profile)
            if mine is None:
                continue
            if not beside:
                shift[mine] += seen.shift
                times[mine] += seen.times
            elif beside in columns:
                where = np.ix_(mine, columns[beside])
                shift[where] += seen.shift
                times[where] += seen.times
        left = _SURER + (1 - _SURER) / np.sqrt(1 + times / _PATIENCE)
        point = np.clip(raw.point * np.exp(shift), _LEAST_SPEED, 1.0)
        low = np.maximum(point * (raw.low / raw.point) ** left, _LEAST_SPEED)
        return Speeds(point, np.minimum(low, point), raw.slowdown, raw.slowdown_high)

    def shifts(self, profiles: Sequence[str], besides: Sequence[str]) -> Any:
        """Logarithms by which points are off, as far as was learned: a row for each profile."""
        if not self._seen:
            return np.zeros((len(profiles), len(besides)), dtype=np.float32)
        place: dict[str, int] = {}
        columns = [place.setdefault(beside, len(place)) for beside in besides]
        seen, nothing = self._seen, _Seen(0, 0.0)
        rows = [[seen.get((profile, beside), nothing).shift for beside in place] for profile in profiles]
        table = np.array(rows, dtype=np.float32).reshape(len(profiles), len(place))
        named = np.array([beside != "" for beside in place], dtype=bool)
        whole = np.array([seen.get((profile, ""), nothing).shift for profile in profiles], dtype=np.float32)
        return (whole[:, None] + np.where(named, table, 0))[:, columns]

    def learned(self) -> tuple[tuple[str, str, int, int], ...]:
        """All that is remembered, those heard of last at the end."""
        return tuple(
            (profile, beside, seen.times, round(seen.shift * _PPM)) for (profile, beside), seen in self._seen.items()
        )

    def _take(self, profile: str, beside: str, error: float) -> float:
        key = (profile, beside)
        before = self._seen.pop(key, _Seen(0, 0.0))
        times = min(before.times + 1, _FORGETS)
        shift = _within(before.shift + (error - before.shift) / (times + _PATIENCE))
        self._seen[key] = _Seen(times, round(shift * _PPM) / _PPM)
        return shift


def beside_of(online: Sequence[OnlineUse]) -> str:
    """The company by the names of its services, in whatever order."""
    return "+".join(sorted(one.name for one in online))


def _within(shift: float) -> float:
    return min(max(shift, -_MOST_SHIFT), _MOST_SHIFT)
