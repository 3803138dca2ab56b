"""How long does a request take alone, at a share of the GPU and a batch? From a few measured points.

The law behind it: a kernel as wide as a part `w` of the GPU at batch 1 takes `max(1, w * batch / share)` times as
long as it would with SMs to spare. Time that no SM can shorten (launches, serial kernels) has width 0; work that
grows with the batch and gains nothing by SMs has a column of its own. A request is a mixture of such parts, none
negative, so latency never rises with the share and never falls with the batch, whatever was measured. A mixture is
found by least squares of relative errors, held near the mixture usual for the kind of program by as much as mixtures
differ; so one measured point gives an answer, and each further one makes it the program's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from cotenant.domain.curve import knee_pct
from cotenant.domain.estimate import COVERAGE, Estimate, around
from cotenant.domain.value import Value

WIDTHS: Final = (0.0, 0.002, 0.007, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.5, 2.5)
"""Of the GPU, at batch 1; above 1: more than one wave. A last column grows with the batch at any share."""

LEAST_SHARE: Final = 0.01
_SETTLED: Final = 1e-10
_LEAST_SPREAD: Final = 0.02
_MOST_OFF: Final = 1e3
"""A point that is further below what is usual counts for less: no such program, but a mistake or a lost digit."""
_STRANGERS: Final = 2
_STRANGE: Final = 0.2
"""So many programs that differ by so much are taken to be among those learned from: few that are alike prove little."""
_NOISE: Final = 0.03
"""Relative error expected of a measured point beside that of the law: what the median fit to whole surfaces leaves."""


class Point(Value, frozen=True):
    """One measured latency, in any unit."""

    share: float
    batch: int
    latency: float


class Doubt(Value, frozen=True):
    """Half the width of an interval in logarithms: at a measured point, and more with the distance from one."""

    base: float
    per_share_octave: float
    per_batch_octave: float
    coverage: float = COVERAGE

    def at(self, share: float, batch: float, points: Sequence[Point]) -> float:
        """At a share and batch, by the nearest of the points."""
        if not points:
            return self.base
        return self.base + min(
            self.per_share_octave * abs(math.log2(share / point.share))
            + self.per_batch_octave * abs(math.log2(batch / point.batch))
            for point in points
        )


class Usual(Value, frozen=True):
    """The mixture to begin with, as parts of the latency of batch 1 on the whole GPU, and how far programs differ."""

    mixture: tuple[float, ...]
    spread: tuple[float, ...]
    doubts: tuple[tuple[int, Doubt], ...]
    """How sure an answer is, by the number of points it takes, ascending."""

    def doubt(self, points: int) -> Doubt:
        """With so many points measured."""
        return next((doubt for least, doubt in reversed(self.doubts) if least <= points), self.doubts[0][1])


USUAL: Final = Usual(
    (0.214, 0.0, 0.0, 0.4843, 0.2542, 0.0465, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0074, 0.0, 0.0, 0.0005),
    (
        0.2616,
        0.0336,
        0.2997,
        0.3875,
        0.2508,
        0.112,
        0.0451,
        0.0963,
        0.1127,
        0.1042,
        0.083,
        0.0513,
        0.0926,
        0.0336,
        0.0336,
        0.0703,
    ),
    ((1, Doubt(0.0258, 0.3500, 0.2576)), (3, Doubt(0.0223, 0.2643, 0.1047)), (5, Doubt(0.1147, 0.0747, 0.0377))),
)
"""Of RaPP's 69 torchvision models on a V100 (KontonGu/RaPP, Apache-2.0), by `learn_usual` and `learn_doubt`: what to
begin with where nothing is known of a kind of program. Its doubts are for 1, 3 and 5 points or more."""


class Surface(Value, frozen=True):
    """A fitted program: its mixture in the unit of the points, and what it was fitted to."""

    mixture: tuple[float, ...]
    points: tuple[Point, ...]
    doubt: Doubt

    def latency(self, share: float, batch: float) -> float:
        """The law alone, without uncertainty."""
        import numpy as np

        return float(columns([share], [batch])[0] @ np.array(self.mixture))

    def at(self, share: float, batch: float) -> Estimate:
        """How long a request takes alone."""
        share = _within(share)
        return around(self.latency(share, batch), self.doubt.at(share, batch, self.points), self.doubt.coverage)

    def knee_pct(self, batch: float, shares_pct: Sequence[int] = tuple(range(1, 101))) -> int:
        """The least of these shares past which latency hardly falls, by the fit."""
        import numpy as np

        latencies = columns([share / 100 for share in shares_pct], [batch] * len(shares_pct)) @ np.array(self.mixture)
        return knee_pct(dict(zip(shares_pct, latencies, strict=True)))

    def widths(self, share: float, batch: float) -> tuple[tuple[float, float], ...]:
        """While it runs within such a share: which part of that share it holds, for which part of its time."""
        import numpy as np

        parts = columns([share], [batch])[0] * np.array(self.mixture)
        whole = float(parts.sum()) or 1.0
        held = [min(1.0, width * batch / _within(share)) for width in WIDTHS]
        return tuple((width, float(part) / whole) for width, part in zip((*held, 0.5), parts, strict=True) if part > 0)


def columns(shares: Sequence[float], batches: Sequence[float]) -> Any:
    """The law: a row for each share and batch, a column for each width, all 1 on the whole GPU at batch 1."""
    import numpy as np

    share = np.array([_within(one) for one in shares])[:, None]
    batch = np.array(batches, dtype=float)[:, None]
    widths = np.array(WIDTHS)[None, :]
    return np.hstack([np.maximum(1.0, widths * batch / share) / np.maximum(1.0, widths), batch])


def fit_surface(points: Sequence[Point], usual: Usual = USUAL) -> Surface:
    """The program behind these points; ValueError where there is none, or none of a latency above 0."""
    import numpy as np

    if not points or not all(
        point.latency > 0 and math.isfinite(point.latency) and point.batch > 0 for point in points
    ):
        raise ValueError(
            "a surface needs at least one point, each of a finite latency above 0 and a batch of at least 1"
        )
    rows = columns([point.share for point in points], [point.batch for point in points])
    measured = np.array([point.latency for point in points])
    mixture = np.array(usual.mixture)
    scale = float(np.exp(np.mean(np.log(measured / (rows @ mixture)))))
    pull = _NOISE / (np.array(usual.spread) + _LEAST_SPREAD)
    weights = np.minimum(1.0, _MOST_OFF / (rows @ mixture * scale / measured))
    system = np.vstack([rows * (scale * weights / measured)[:, None], np.diag(pull)])
    target = np.concatenate([weights, pull * mixture])
    found = least_squares_above_zero(system, target)
    if not found.sum() > 0:
        found = mixture
    return Surface(tuple(float(part) for part in found * scale), tuple(points), usual.doubt(len(points)))


def least_squares_above_zero(system: Any, target: Any) -> Any:
    """The x of least squares none of which is negative, by the method of active sets (Lawson and Hanson, 1974)."""
    import numpy as np

    gram, aim = system.T @ system, system.T @ target
    count = len(aim)
    found = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    tiny = _SETTLED * max(1.0, float(np.abs(aim).max(initial=0.0)))
    for _ in range(3 * count):
        slope = np.where(free, -np.inf, aim - gram @ found)
        entering = int(np.argmax(slope))
        if slope[entering] <= tiny:
            break
        free[entering] = True
        found = _within_bounds(gram, aim, found, free)
    return found


def _within_bounds(gram: Any, aim: Any, found: Any, free: Any) -> Any:
    """The best for the free ones; those that would turn negative are held at 0 and freed no more for now."""
    import numpy as np

    while free.any():
        best = np.zeros(len(aim))
        best[free] = np.linalg.lstsq(gram[np.ix_(free, free)], aim[free], rcond=None)[0]
        if (best[free] > 0).all():
            return best
        falling = free & (best <= 0)
        gaps = np.where(falling, found - best, 1.0)
        reach = np.where(falling & (gaps > 0), found / np.where(gaps > 0, gaps, 1.0), np.where(falling, 0.0, np.inf))
        found = np.maximum(0.0, found + min(1.0, float(reach.min())) * (best - found))
        free &= found > _SETTLED * max(1.0, float(found.max()))
        found = np.where(free, found, 0.0)
    return np.zeros(len(aim))


def learn_usual(programs: Sequence[Sequence[Point]], doubts: Sequence[tuple[int, Doubt]]) -> Usual:
    """What is usual among programs measured at many points: the mixture nearest to their median curve, its spread."""
    import numpy as np

    mixtures = []
    shapes: dict[tuple[float, int], list[float]] = {}
    for points in programs:
        rows = columns([point.share for point in points], [point.batch for point in points])
        measured = np.array([point.latency for point in points])
        mixture = least_squares_above_zero(rows / measured[:, None], np.ones(len(points)))
        whole = float(columns([1.0], [1])[0] @ mixture) or 1.0
        mixtures.append(mixture / whole)
        for point in points:
            shapes.setdefault((point.share, point.batch), []).append(point.latency / whole)
    places = sorted(shapes)
    median = np.array([float(np.median(shapes[place])) for place in places])
    rows = columns([share for share, _ in places], [batch for _, batch in places])
    middle = least_squares_above_zero(rows / median[:, None], np.ones(len(places)))
    beyond = np.sum((np.array(mixtures) - middle) ** 2, axis=0) + _STRANGERS * _STRANGE**2
    spread = np.sqrt(beyond / (len(mixtures) + _STRANGERS))
    mixture, spreads = (tuple(round(float(one), 5) for one in many) for many in (middle, spread))
    return Usual(mixture, spreads, tuple(doubts))


def learn_doubt(errors: Sequence[tuple[float, float, float]], coverage: float = COVERAGE) -> Doubt:
    """From |log error| at so many octaves of share and batch from the nearest point; wide enough for `coverage`."""
    import numpy as np

    table = np.array(errors)
    system = np.hstack([np.ones((len(table), 1)), table[:, 1:]])
    shape = np.maximum(least_squares_above_zero(system, table[:, 0]), (0.01, 0.0, 0.0))
    scale = float(np.quantile(table[:, 0] / (system @ shape), coverage))
    base, per_share, per_batch = (round(float(one) * scale, 5) for one in shape)
    return Doubt(base, per_share, per_batch, coverage)


def _within(share: float) -> float:
    return min(1.0, max(LEAST_SHARE, share))
