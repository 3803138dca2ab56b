"""Latency of a request alone by share of the GPU and batch size, fitted to a few measurements.

Model: a kernel that holds a part `w` of the GPU at batch 1 takes `max(1, w * batch / share)` times as long as with SMs
to spare. Time that no SM shortens (launches, serial kernels) has width 0; work that grows with the batch and does not
use more SMs has its own column. A request is a non-negative mixture of such parts, so latency never rises with the
share and never falls with the batch. The mixture is fitted by least squares of relative errors with a prior from other
programs, so one measurement is enough for a prediction, and each further one makes it more specific.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from cotenant.predict.curve import knee_pct
from cotenant.units.estimate import COVERAGE, Estimate, around
from cotenant.units.value import Value

WIDTHS: Final = (0.0, 0.002, 0.007, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0, 1.5, 2.5)
"""Parts of the GPU at batch 1; above 1: more than one wave. The last column grows with the batch at any share."""

MIN_SHARE: Final = 0.01
_SETTLED: Final = 1e-10
_MIN_SPREAD: Final = 0.02
_MAX_RATIO: Final = 1e3
"""A measurement further below the prior than this factor gets less weight: it is probably an error."""
_ASSUMED_PROGRAMS: Final = 2
_ASSUMED_DISTANCE: Final = 0.2
"""Number and distance of assumed further programs in the prior: few similar programs prove little."""
_NOISE: Final = 0.03
"""Relative error of a measurement, in addition to that of the model: the residual of the median fit."""


class Point(Value, frozen=True):
    """One measured latency, in any unit."""

    share: float
    batch: int
    latency: float


class LogErrorModel(Value, frozen=True):
    """Half width of an interval in logarithms, which grows with the distance from the nearest measurement."""

    base: float
    per_share_octave: float
    per_batch_octave: float
    coverage: float = COVERAGE

    def at(self, share: float, batch: float, points: Sequence[Point]) -> float:
        """Return the half width at a share and batch."""
        if not points:
            return self.base
        return self.base + min(
            self.per_share_octave * abs(math.log2(share / point.share))
            + self.per_batch_octave * abs(math.log2(batch / point.batch))
            for point in points
        )


class SurfacePrior(Value, frozen=True):
    """Prior of the mixture, as parts of the latency of batch 1 on the whole GPU, with its standard deviation."""

    mixture: tuple[float, ...]
    spread: tuple[float, ...]
    doubts: tuple[tuple[int, LogErrorModel], ...]
    """Error models by the smallest number of measurements for which they apply, ascending."""

    def doubt(self, points: int) -> LogErrorModel:
        """Return the error model for this number of measurements."""
        return next((doubt for least, doubt in reversed(self.doubts) if least <= points), self.doubts[0][1])


DEFAULT_PRIOR: Final = SurfacePrior(
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
    (
        (1, LogErrorModel(0.0258, 0.3500, 0.2576)),
        (3, LogErrorModel(0.0223, 0.2643, 0.1047)),
        (5, LogErrorModel(0.1147, 0.0747, 0.0377)),
    ),
)
"""From RaPP's 69 torchvision models on a V100 (KontonGu/RaPP, Apache-2.0), by `fit_prior` and `fit_log_error`: used
where nothing is known of the kind of program. Its error models are for 1, 3 and 5 or more measurements."""


class Surface(Value, frozen=True):
    """A fitted program: its mixture in the unit of the measurements, and the measurements."""

    mixture: tuple[float, ...]
    points: tuple[Point, ...]
    doubt: LogErrorModel

    def latency(self, share: float, batch: float) -> float:
        """Return the latency of the model, without uncertainty."""
        import numpy as np

        return float(columns([share], [batch])[0] @ np.array(self.mixture))

    def at(self, share: float, batch: float) -> Estimate:
        """Return the latency of a request alone, with its interval."""
        share = _within(share)
        return around(self.latency(share, batch), self.doubt.at(share, batch, self.points), self.doubt.coverage)

    def knee_pct(self, batch: float, shares_pct: Sequence[int] = tuple(range(1, 101))) -> int:
        """Return the smallest of these shares beyond which latency hardly falls, by the fit."""
        import numpy as np

        latencies = columns([share / 100 for share in shares_pct], [batch] * len(shares_pct)) @ np.array(self.mixture)
        return knee_pct(dict(zip(shares_pct, latencies, strict=True)))

    def widths(self, share: float, batch: float) -> tuple[tuple[float, float], ...]:
        """Return the part of the share that it holds while it runs there, and for which part of its time."""
        import numpy as np

        parts = columns([share], [batch])[0] * np.array(self.mixture)
        total = float(parts.sum()) or 1.0
        held = [min(1.0, width * batch / _within(share)) for width in WIDTHS]
        return tuple((width, float(part) / total) for width, part in zip((*held, 0.5), parts, strict=True) if part > 0)


def columns(shares: Sequence[float], batches: Sequence[float]) -> Any:
    """Return the model matrix.

    It has a row for each share and batch, and a column for each width; all are 1 on the whole GPU at batch 1.
    """
    import numpy as np

    share = np.array([_within(value) for value in shares])[:, None]
    batch = np.array(batches, dtype=float)[:, None]
    widths = np.array(WIDTHS)[None, :]
    return np.hstack([np.maximum(1.0, widths * batch / share) / np.maximum(1.0, widths), batch])


def fit_surface(points: Sequence[Point], usual: SurfacePrior = DEFAULT_PRIOR) -> Surface:
    """Fit a program to measurements; raises ValueError without a measurement, or for one that is not above 0."""
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
    pull = _NOISE / (np.array(usual.spread) + _MIN_SPREAD)
    weights = np.minimum(1.0, _MAX_RATIO / (rows @ mixture * scale / measured))
    system = np.vstack([rows * (scale * weights / measured)[:, None], np.diag(pull)])
    target = np.concatenate([weights, pull * mixture])
    solution = nonnegative_least_squares(system, target)
    if not solution.sum() > 0:
        solution = mixture
    return Surface(tuple(float(part) for part in solution * scale), tuple(points), usual.doubt(len(points)))


def nonnegative_least_squares(system: Any, target: Any) -> Any:
    """Return the non-negative least-squares solution, by the active-set method (Lawson and Hanson, 1974)."""
    import numpy as np

    gram, aim = system.T @ system, system.T @ target
    count = len(aim)
    solution = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    tiny = _SETTLED * max(1.0, float(np.abs(aim).max(initial=0.0)))
    for _ in range(3 * count):
        slope = np.where(free, -np.inf, aim - gram @ solution)
        entering = int(np.argmax(slope))
        if slope[entering] <= tiny:
            break
        free[entering] = True
        solution = _within_bounds(gram, aim, solution, free)
    return solution


def _within_bounds(gram: Any, aim: Any, solution: Any, free: Any) -> Any:
    """Solve for the free variables; those that would become negative are fixed at 0."""
    import numpy as np

    while free.any():
        best = np.zeros(len(aim))
        best[free] = np.linalg.lstsq(gram[np.ix_(free, free)], aim[free], rcond=None)[0]
        if (best[free] > 0).all():
            return best
        falling = free & (best <= 0)
        gaps = np.where(falling, solution - best, 1.0)
        reach = np.where(falling & (gaps > 0), solution / np.where(gaps > 0, gaps, 1.0), np.where(falling, 0.0, np.inf))
        solution = np.maximum(0.0, solution + min(1.0, float(reach.min())) * (best - solution))
        free &= solution > _SETTLED * max(1.0, float(solution.max()))
        solution = np.where(free, solution, 0.0)
    return np.zeros(len(aim))


def fit_prior(programs: Sequence[Sequence[Point]], doubts: Sequence[tuple[int, LogErrorModel]]) -> SurfacePrior:
    """Return the prior of programs measured at many points: the mixture of their median curve, and the spread."""
    import numpy as np

    mixtures = []
    shapes: dict[tuple[float, int], list[float]] = {}
    for points in programs:
        rows = columns([point.share for point in points], [point.batch for point in points])
        measured = np.array([point.latency for point in points])
        mixture = nonnegative_least_squares(rows / measured[:, None], np.ones(len(points)))
        whole_gpu = float(columns([1.0], [1])[0] @ mixture) or 1.0
        mixtures.append(mixture / whole_gpu)
        for point in points:
            shapes.setdefault((point.share, point.batch), []).append(point.latency / whole_gpu)
    grid = sorted(shapes)
    median = np.array([float(np.median(shapes[grid_point])) for grid_point in grid])
    rows = columns([share for share, _ in grid], [batch for _, batch in grid])
    middle = nonnegative_least_squares(rows / median[:, None], np.ones(len(grid)))
    squares = np.sum((np.array(mixtures) - middle) ** 2, axis=0) + _ASSUMED_PROGRAMS * _ASSUMED_DISTANCE**2
    spread = np.sqrt(squares / (len(mixtures) + _ASSUMED_PROGRAMS))
    mixture, spreads = (tuple(round(float(value), 5) for value in values) for values in (middle, spread))
    return SurfacePrior(mixture, spreads, tuple(doubts))


def fit_log_error(errors: Sequence[tuple[float, float, float]], coverage: float = COVERAGE) -> LogErrorModel:
    """Fit an error model to |log error| by octaves of share and batch from the nearest measurement."""
    import numpy as np

    table = np.array(errors)
    system = np.hstack([np.ones((len(table), 1)), table[:, 1:]])
    shape = np.maximum(nonnegative_least_squares(system, table[:, 0]), (0.01, 0.0, 0.0))
    scale = float(np.quantile(table[:, 0] / (system @ shape), coverage))
    base, per_share, per_batch = (round(float(coefficient) * scale, 5) for coefficient in shape)
    return LogErrorModel(base, per_share, per_batch, coverage)


def _within(share: float) -> float:
    return min(1.0, max(MIN_SHARE, share))
