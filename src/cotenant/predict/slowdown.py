"""Slowdown of tenants that share a GPU, from the use of each alone.

While a kernel holds a part `a` of the SMs and others hold `x`, it takes `max(1, a + x)` times as long; bandwidth counts
in the same way, and the scarcer resource decides. What others hold is a distribution: each is on the GPU for a part of
the time (its duty), with kernels of several widths. A slowed tenant is on the GPU for longer; how long, as seen by an
arriving tenant, follows mean value analysis of closed queues in Schweitzer's approximation, which is exact for two.
Where kernels take turns, a tenant of short kernels waits for the long ones of others, as `Law.turn` determines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cotenant.units.estimate import COVERAGE, Estimate, around
from cotenant.units.value import Value

_GRID: Final = 20
"""Steps of the whole GPU in which widths are added."""
_ROUNDS: Final = 6
_TINY: Final = 1e-12
_WEIGHT_OF_MEAN: Final = 0.25
"""Weight of the mean error relative to the median error, so that a law with a few extreme errors is not chosen."""
_MAX_TURN: Final = 100.0


class Use(Value, frozen=True):
    """Use of a GPU by a tenant alone."""

    duty: float
    """Part of the time of a request (or of training) with work on the GPU."""
    widths: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """Part of the SMs it holds, and for which part of that time; empty: unknown, assumed to be all of them."""
    memory: float = 0.0
    """Part of the bandwidth it uses while it has work on the GPU."""
    kernel_ns: float = 0.0
    """Mean kernel duration; 0: unknown."""
    active: float = 1.0
    """Part of the time in which a request is active; 1: back to back; below 1, requests arrive at their own rate."""

    def within(self, share: float) -> Use:
        """Return the use limited to a share of the SMs, without the slowdown that this causes."""
        capped = tuple((min(width, share), part) for width, part in self.widths) or ((share, 1.0),)
        return Use(self.duty, capped, self.memory, self.kernel_ns, self.active)


UNKNOWN: Final = Use(duty=1.0, widths=((1.0, 1.0),), memory=1.0)
"""A tenant of unknown use is assumed to use the whole GPU all the time, with the longest kernels."""

_LESS_SURE: Final = 2.0
"""Factor on the width of intervals next to a tenant of unknown use."""


class Law(Value, frozen=True):
    """Parameters of the slowdown model for one sharing mode, chosen by `choose_law` from measurements."""

    gain: float = 1.0
    """Part of the excess demand that causes slowdown."""
    turn: float = 0.0
    """0: tenants share by time; 1: kernels take turns, so that long kernels get more of it."""
    floor: float = 0.0
    """Part of a tenant's time off the GPU in which it still delays others and is delayed: unused time slices, a shared
    host."""
    doubt: float = 0.25
    """Half width of the interval in logarithms, scaled with the slowdown: an undisturbed tenant is certain."""
    least_doubt: float = 0.03
    coverage: float = COVERAGE


MPS: Final = Law(gain=1.0, doubt=1.05)
"""Processes that share SMs, from ParvaGPU's measurements on an A100 (MunQ-Lee/ParvaGPU_SC24, MIT)."""

SLICES: Final = Law(gain=1.0, turn=0.2, floor=0.5, doubt=0.63)
"""Training jobs with time slices, from Gavel's pairs on a P100 (stanford-futuredata/gavel, MIT)."""


def slowdowns(uses: Sequence[Use | None], law: Law = MPS) -> tuple[Estimate, ...]:
    """Return for each tenant the time together over time alone; None: a tenant of unknown use."""
    doubt = law.doubt * (_LESS_SURE if None in uses else 1.0)
    return tuple(_estimate(point, law, doubt) for point in points_of([use or UNKNOWN for use in uses], law))


def choose_law(laws: Sequence[Law], answers: Any, truth: Sequence[float]) -> Law:
    """Return the law with the smallest error over these cases (a row of `answers` for each law)."""
    import numpy as np

    logs = np.log(np.asarray(answers) / np.array(truth)[None, :])
    errors = np.median(np.abs(logs), axis=1) + _WEIGHT_OF_MEAN * np.mean(np.abs(logs), axis=1)
    best = int(np.argmin(errors))
    law = laws[best]
    sizes = np.array([_size(float(point)) for point in np.asarray(answers)[best]])
    doubt = float(np.quantile(np.maximum(0.0, np.abs(logs[best]) - law.least_doubt) / sizes, law.coverage))
    return Law(law.gain, law.turn, law.floor, round(doubt, 5), law.least_doubt, law.coverage)


def _estimate(point: float, law: Law, doubt: float) -> Estimate:
    estimate = around(point, law.least_doubt + doubt * _size(point), law.coverage)
    return Estimate(min(max(estimate.low, 1.0), point), point, estimate.high, estimate.coverage)


def _size(slowdown: float) -> float:
    """Return how much slowdown there is to be wrong about: 0 for none, 1 for much."""
    return 1 - 1 / max(slowdown, 1.0) + 0.05


def points_of(uses: Sequence[Use], law: Law) -> list[float]:
    """Return the slowdown of each tenant, without uncertainty."""
    import numpy as np

    count = len(uses)
    if count < 2:
        return [1.0] * count
    duty = law.floor + (1 - law.floor) * np.array([_clamp(use.duty) for use in uses])
    active = np.array([_clamp(use.active) for use in uses])
    parts = []
    if any(width < 1 and part > 0 for use in uses for width, part in use.widths):
        parts.append(np.array([_distribution(use.widths) for use in uses]))
    if parts and any(use.memory > 0 for use in uses):
        parts.append(np.array([_distribution(((use.memory, 1.0),)) for use in uses]))
    turns = _turns(uses, law)
    stretch = np.ones(count)
    for _ in range(_ROUNDS if count > 2 else 1):
        seen_stretch = 1 + (stretch - 1) * (count - 2) / (count - 1)
        longer = 1 - duty + duty * seen_stretch
        presence = np.minimum(1.0, active * np.where(active < 1, longer, 1.0)) * duty * seen_stretch / longer
        others_presence = presence.sum() - presence
        scarce = np.max([_excess_demand(part, presence) for part in parts], axis=0) if parts else others_presence
        turned = (turns @ presence) / np.maximum(others_presence, _TINY)
        stretch = 1 + law.gain * scarce * np.where(others_presence > _TINY, turned, 0.0)
    return [float(slowdown) for slowdown in 1 - duty + duty * stretch]


def _turns(uses: Sequence[Use], law: Law) -> Any:
    """Return how much more than its part of the time a tenant (row) loses to each other one; 0 to itself."""
    import numpy as np

    lengths = np.array([max(use.kernel_ns, 0.0) for use in uses])
    ratios = np.ones((len(uses), len(uses)))
    if law.turn and lengths.any():
        assumed_lengths = np.where(lengths > 0, lengths, lengths.max())
        ratios = np.clip(assumed_lengths[None, :] / assumed_lengths[:, None], 1 / _MAX_TURN, _MAX_TURN) ** law.turn
        ratios[lengths <= 0] = np.maximum(ratios[lengths <= 0], 1.0)
    np.fill_diagonal(ratios, 0.0)
    return ratios


def _excess_demand(parts: Any, presence: Any) -> Any:
    """Return the mean excess demand while each tenant's kernels run, over the presence of the others.

    Distributions of sums are products of transforms; that of all others is a product of those before and those
    after.
    """
    import numpy as np

    count, steps = parts.shape
    size = count * (steps - 1) + 1
    others = parts * presence[:, None]
    others[:, 0] += 1 - presence
    transformed = np.fft.rfft(others, size, axis=1)
    before = np.ones_like(transformed)
    after = np.ones_like(transformed)
    for index in range(1, count):
        before[index] = before[index - 1] * transformed[index - 1]
        after[-index - 1] = after[-index] * transformed[-index]
    totals = np.fft.irfft(before * after * np.fft.rfft(parts, size, axis=1), size, axis=1)
    return np.maximum(0.0, totals @ np.maximum(0.0, np.arange(size) / _GRID - 1))


def _distribution(widths: tuple[tuple[float, float], ...]) -> list[float]:
    """Return the distribution of widths on the grid, each split between its two nearest steps."""
    distribution = [0.0] * (_GRID + 1)
    total = sum(part for _, part in widths)
    if total <= 0:
        distribution[-1] = 1.0
        return distribution
    for width, part in widths:
        position = _clamp(width) * _GRID
        step = min(int(position), _GRID - 1)
        distribution[step + 1] += (position - step) * part / total
        distribution[step] += (1 - (position - step)) * part / total
    return distribution


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)
