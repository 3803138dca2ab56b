"""Prediction of the duration of a batch run by rows and units, from a profile and recent runs.

The prediction is a curve over rows for each number of units, times a factor of the model, times one of the machine.
Each outcome moves the model's factor and its own point of the curve. If several models become slower at once, the
factor of the machine moves, and applies to models that did not run recently as well. The 99 % quantile is tracked by
its exceedances: a large step up after one, a small step down otherwise (as in adaptive conformal inference, Gibbs and
Candes, 2021).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple

from cotenant.serve.model.run_times import RunTimes
from cotenant.units.instant import Duration

_FACTOR_GAIN: Final = 1 / 8
"""Gain of the model's factor per outcome: it adapts within about ten runs. Our choice."""
_POINT_GAIN: Final = 1 / 64
"""Gain of a point of the curve per outcome, once it has as many outcomes. Our choice."""
_SURPRISE_LIMIT: Final = math.log(8)
"""Largest log ratio of outcome to prediction that is used."""
_LONE_LIMIT: Final = math.log(1.5)
"""The same for an outcome whose predecessor was not such an outlier: probably an isolated stall. Our choice."""
_EXCEEDANCE: Final = 0.01
_SPREAD_STEP: Final = 0.1
"""Step of the logarithm of the high quantile. Our choice."""
_SPREAD_LIMIT: Final = math.log(16)
_FIRST_RATIO: Final = 1.25
"""Initial ratio of the high quantile to the typical duration. Our choice; soon learned."""
_SIZES_LIMIT: Final = 64
_RECENT_OUTCOMES: Final = 64
"""Number of recent outcomes of all models in which a model counts for the machine. Our choice."""
_OWN_GAIN: Final = 1 / 64
"""Gain with which a lasting difference of a model from the others becomes its own. Our choice."""


class _Vote(NamedTuple):
    factor: float
    own: float
    """Part of the factor that belongs to the model, not to the machine."""
    outcome: int


class Drift:
    """Slowdown of the machine since its models were measured, as a logarithm.

    It moves only as far as most of the models that ran recently agree, so one model that changed by itself does not
    move it.
    """

    __slots__ = ("_models", "_outcomes", "_votes", "level")

    def __init__(self) -> None:
        """Begin without slowdown."""
        self.level = 0.0
        self._models = 0
        self._outcomes = 0
        self._votes: dict[int, _Vote] = {}

    def join(self) -> int:
        """Return a number for one more model."""
        self._models += 1
        return self._models

    def vote(self, model: int, before: float, factor: float) -> None:
        """Record that the factor of a model changed from `before` to `factor` by its latest outcome."""
        self._outcomes += 1
        oldest = self._outcomes - _RECENT_OUTCOMES
        last = self._votes.get(model)
        # A new or returning model keeps its difference: only changes from now on count for the machine.
        own = before - self.level if last is None or last.outcome < oldest else last.own
        own += _OWN_GAIN * (factor - self.level - own)
        self._votes[model] = _Vote(factor, own, self._outcomes)
        recent = {number: vote for number, vote in self._votes.items() if vote.outcome >= oldest}
        self._votes = recent
        if len(recent) < 2:
            return
        levels = sorted(vote.factor - vote.own for vote in recent.values())
        low, high = levels[(len(levels) - 1) // 2], levels[len(levels) // 2]
        self.level = min(max(self.level, low), high)


class _Curve:
    """Durations on one number of units by rows, without the factors; never decreasing."""

    __slots__ = ("_highs", "outcomes", "ratios", "sizes", "typical")

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.typical: list[float] = []
        self.ratios: list[float] = []  # ratio of the high quantile to the typical duration
        self.outcomes: list[int] = []
        self._highs: list[float] = []

    def typical_at(self, rows: int) -> float:
        return _interpolated(self.sizes, self.typical, rows)

    def high_at(self, rows: int) -> float:
        if not self._highs:
            pairs = zip(self.typical, self.ratios, strict=True)
            self._highs = list(accumulate((typical * ratio for typical, ratio in pairs), max))
        return _interpolated(self.sizes, self._highs, rows)

    def add(self, rows: int, typical: float, ratio: float, outcomes: int) -> None:
        index = bisect_left(self.sizes, rows)
        self.sizes.insert(index, rows)
        self.typical.insert(index, typical)
        self.ratios.insert(index, ratio)
        self.outcomes.insert(index, outcomes)
        self._make_monotone(index)

    def point(self, rows: int) -> int:
        """Return the index of these rows, adding a point if there are not too many."""
        index = bisect_left(self.sizes, rows)
        if index < len(self.sizes) and self.sizes[index] == rows:
            return index
        if len(self.sizes) >= _SIZES_LIMIT:
            return min(index, len(self.sizes) - 1)
        typical = self.typical_at(rows)
        self.add(rows, typical, max(1.0, self.high_at(rows) / typical), 0)
        return index

    def scale(self, index: int, factor: float) -> None:
        self.typical[index] *= factor
        self.outcomes[index] += 1
        self._make_monotone(index)

    def _make_monotone(self, index: int) -> None:
        """Keep the curve non-decreasing: the latest value stays, and others are adjusted."""
        value = self.typical[index]
        for other in range(index):
            self.typical[other] = min(self.typical[other], value)
        for other in range(index + 1, len(self.typical)):
            self.typical[other] = max(self.typical[other], value)
        self._highs = []


class ServiceTimes:
    """Durations of the runs of one model, by units and rows."""

    __slots__ = ("_cache", "_curves", "_drift", "_factor", "_last", "_level", "_model", "_spread", "widths")

    def __init__(self, times: RunTimes | None = None, units: int = 1, drift: Drift | None = None) -> None:
        """Begin with a profile, or without data."""
        self.widths: tuple[int, ...] = (units,) if times is None else times.widths()
        self._drift = Drift() if drift is None else drift
        self._model = self._drift.join()
        self._level = self._drift.level
        self._factor = 0.0
        self._spread = 0.0
        self._last = 0.0  # log ratio of the previous outcome to its prediction
        self._curves: dict[int, _Curve] = {}
        self._cache: dict[tuple[int, int], tuple[Duration, Duration]] = {}
        trusted = round(1 / _POINT_GAIN)
        for run_time in (
            () if times is None else sorted(times.times, key=lambda run_time: (run_time.units, run_time.rows))
        ):
            typical = max(run_time.typical_ns, 1)
            curve = self._curves.setdefault(run_time.units, _Curve())
            curve.add(run_time.rows, typical, max(1.0, run_time.high_ns / typical), trusted)

    def expected_ns(self, rows: int, units: int) -> Duration:
        """Return the predicted duration of a run; zero before the first outcome.

        Linear between sizes, constant below the smallest, proportional beyond the largest.
        """
        return self._look_up(rows, units)[0]

    def high_ns(self, rows: int, units: int) -> Duration:
        """Return the 99 % quantile of the duration."""
        return self._look_up(rows, units)[1]

    @property
    def slower(self) -> tuple[float, float]:
        """Return the slowdown since the measurement: of the machine, and of the model in addition."""
        total = self._factor + self._drift.level - self._level
        return math.exp(self._drift.level), math.exp(total - self._drift.level)

    def learn(self, rows: int, units: int, took_ns: Duration) -> None:
        """Learn from the duration of a run."""
        took = float(max(took_ns, 1))
        drift = self._drift
        before = self._factor + drift.level - self._level
        curve = self._curves.get(units) or self._new_curve(units)
        if not curve.sizes:
            curve.add(rows, took / math.exp(before), _FIRST_RATIO, 1)
        else:
            high = self._look_up(rows, units)[1]
            self._spread += _SPREAD_STEP * ((1 - _EXCEEDANCE) if took > high else -_EXCEEDANCE)
            self._spread = min(max(self._spread, -_SPREAD_LIMIT), _SPREAD_LIMIT)
            index = curve.point(rows)
            surprise = math.log(took / (curve.typical[index] * math.exp(before)))
            gain = max(1 / (curve.outcomes[index] + 1), _POINT_GAIN)
            if gain == 1:  # the first run of this size determines its point
                curve.scale(index, math.exp(surprise))
            else:
                limit = _SURPRISE_LIMIT if self._last * surprise > _LONE_LIMIT * abs(surprise) else _LONE_LIMIT
                self._last = surprise
                surprise = min(max(surprise, -limit), limit)
                curve.scale(index, math.exp(gain * surprise))
                self._factor = before + _FACTOR_GAIN * (1 - gain) * surprise
                drift.vote(self._model, before, self._factor)
                self._level = drift.level
        self._cache.clear()

    def _new_curve(self, units: int) -> _Curve:
        """Return a curve for a number of units that never ran, from its neighbours."""
        curve = _Curve()
        if self._curves:
            sizes = self._curves[min(self._curves, key=lambda other: (abs(other - units), other))].sizes
            for rows in list(sizes):
                typical, high = self._interpolate(rows, units)
                curve.add(rows, typical, max(1.0, high / typical), 0)
        self._curves[units] = curve
        return curve

    def _look_up(self, rows: int, units: int) -> tuple[Duration, Duration]:
        if self._level != self._drift.level:  # other models moved the machine's factor
            self._factor += self._drift.level - self._level
            self._level = self._drift.level
            self._cache.clear()
        durations = self._cache.get((rows, units))
        if durations is None:
            durations = self._cache[rows, units] = self._predict(rows, units)
        return durations

    def _predict(self, rows: int, units: int) -> tuple[Duration, Duration]:
        if not self._curves:
            return 0, 0
        typical, high = self._interpolate(rows, units)
        scale = math.exp(self._factor)
        typical_ns = round(typical * scale)
        return typical_ns, max(typical_ns, round(high * scale * math.exp(self._spread)))

    def _interpolate(self, rows: int, units: int) -> tuple[float, float]:
        """Return durations without the factors; between numbers of units, time is linear in their inverse."""
        curve = self._curves.get(units)
        if curve is not None:
            return curve.typical_at(rows), curve.high_at(rows)
        shared = [width for width in self._curves if width > 0]
        fewer = max((width for width in shared if width < units), default=None)
        more = min((width for width in shared if width > units), default=None)
        if units <= 0 or fewer is None:  # zero is the whole device, shared with others
            nearest = max(self._curves) if units <= 0 else (more or 0)
            stretch = 1.0 if units <= 0 or not more else more / units
            curve = self._curves[nearest]
            return curve.typical_at(rows) * stretch, curve.high_at(rows) * stretch
        few = self._curves[fewer]
        if more is None:
            return few.typical_at(rows), few.high_at(rows)
        many = self._curves[more]
        part = (1 / fewer - 1 / units) / (1 / fewer - 1 / more)
        typical = few.typical_at(rows) + part * (many.typical_at(rows) - few.typical_at(rows))
        return typical, few.high_at(rows) + part * (many.high_at(rows) - few.high_at(rows))


def _interpolated(sizes: list[int], values: list[float], rows: int) -> float:
    index = bisect_left(sizes, rows)
    if index == len(sizes):
        return values[-1] * rows / max(sizes[-1], 1)
    if sizes[index] == rows or index == 0:
        return values[index]
    part = (rows - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
    return values[index - 1] + part * (values[index] - values[index - 1])
