"""Smallest share of the device at which online work meets its tail-latency objective.

A request takes longer on a smaller share, and it waits for earlier requests. The first is a curve over the share, or
proportional without one. The second is a single-server queue: the wait is zero with the probability of an idle server,
and exponential otherwise with the mean of the Pollaczek-Khinchine formula, which is exact for memoryless services and
close for others (tests/predict/test_share_need.py simulates the queue). The tail is that of wait and service together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import round_duration
from cotenant.units.value import Value

_STEPS: Final = 26
"""Bisection steps: to less than 1e-7."""
_EQUAL_MEANS: Final = 1e-6
"""Two means closer than this count as equal, because their difference is a divisor."""
_EVEN_POWER: Final = 0.16
"""Waits for services of equal duration fall off faster than their mean suggests, and more so at low load. This power of
the load approximates the exact tail at every load (our fit; the test simulates it)."""
_BELIEF_ROUNDS: Final = 20
"""Number of measured requests that a profile counts for."""
_BELIEF_DOUBT: Final = 0.35
_MEASURED_DOUBT: Final = 0.1
_MIN_TOLERABLE_PPM: Final = 800_000
"""Lower limit of the tolerable share, however wide the objective is: longer requests also overlap more often."""
_USUAL_TAIL: Final = 1.25
"""p99 over mean of services that were not measured: what inference alone shows."""


def tolerable_ppm(mean_ns: float, slo_ns: int, busy: float, most_ppm: int, reserve_ppm: int) -> int:
    """Return the share at which a request loses no more than a part `reserve_ppm` of its objective.

    A service that may take three times its duration is not harmed by a few percent, whereas offline work would lose
    far more: each time it finds the device in use, it waits until its cost is paid off. `busy` is the utilization
    by requests alone at their peak: waits grow with the inverse square of the remainder. Never more than `most_ppm`.
    """
    idle_part = max(1 - busy, 0.0)
    lost_part = max(
        reserve_ppm / WHOLE_PPM * idle_part * idle_part * slo_ns / max(mean_ns, 1.0),
        (WHOLE_PPM - most_ppm) / max(most_ppm, 1),
    )
    return min(max(round(WHOLE_PPM / (1 + lost_part)), _MIN_TOLERABLE_PPM), most_ppm)


class AloneLatency(Value, frozen=True):
    """Duration of a request alone on the whole device, from its first launch to its result, without queueing."""

    mean_ns: float
    tail_ns: float
    """The quantile to which the objective applies."""
    doubt: float = _MEASURED_DOUBT
    """Both durations may be wrong by a factor exp(doubt) either way."""
    duty: float = 1.0
    """Part of it on the device; the remainder does not depend on the share."""
    curve: tuple[tuple[float, float], ...] = ()
    """Share and relative duration, shares ascending; empty: proportional."""

    def stretch(self, share: float) -> float:
        """Return the relative duration at this share; never less than at a larger one."""
        if not self.curve:
            return 1 - self.duty + self.duty / share
        higher = [point for point in self.curve if point[0] >= share]
        lower = [point for point in self.curve if point[0] < share]
        min_times = max((times for _, times in higher), default=1.0)
        if not lower:
            least, times = self.curve[0]
            return max(times, min_times) * max(1.0, least / share)
        lower_share, lower_times = lower[-1]
        higher_share, higher_times = higher[0] if higher else (1.0, 1.0)
        lower_times = max(lower_times, min_times, higher_times)
        higher_times = max(higher_times, min_times)
        part = (
            (1 / share - 1 / higher_share) / (1 / lower_share - 1 / higher_share) if higher_share > lower_share else 1.0
        )
        return max(1.0, higher_times + part * (lower_times - higher_times))


class Objective(Value, frozen=True):
    """A latency objective, and the arrival process under which it must hold."""

    quantile: float = 0.99
    headroom: float = 0.1
    """Part of the objective that is kept as reserve."""
    dispersion: float = 1.0
    """Variance over mean of the arrivals in a window: 1 for a Poisson process, more for bursts of that size."""
    least: float = 0.01


class Need(Value, frozen=True):
    """The smallest sufficient share in millionths, and whether the whole device is sufficient."""

    share: Estimate
    is_within_reach: bool
    why: str


def need_ppm(alone: AloneLatency, slo_ns: int, load: Estimate, objective: Objective | None = None) -> Need:
    """Return the need at this request rate; if the objective is out of reach, it is the whole device."""
    rules = objective or Objective()
    target_ns = slo_ns * (1 - rules.headroom)
    factor = math.exp(alone.doubt)

    def least(times: float, per_second: float) -> float | None:
        share = _smallest_share(
            lambda share: _is_within(target_ns, alone, share, per_second, rules, times), rules.least
        )
        return share if share is None else share * WHOLE_PPM

    low, point, high = least(1 / factor, load.low), least(1.0, load.point), least(factor, load.high)
    whole_ns = latency_ns(alone, 1.0, load.point, rules)
    whole = "no end" if math.isinf(whole_ns) else round_duration(round(whole_ns))
    each = round_duration(round(alone.mean_ns))
    why = f"{load.point:.3g} requests a second of {each} each: p{100 * rules.quantile:g} "
    if point is None:
        why += f"{whole} with the whole device, beyond reach of {round_duration(round(target_ns))}"
    else:
        why += f"{whole} with the whole device, {round_duration(round(target_ns))} with {point / 10_000:.3g}%"
    whole_ppm = float(WHOLE_PPM)
    return Need(
        Estimate(
            whole_ppm if low is None else low,
            whole_ppm if point is None else point,
            whole_ppm if high is None else high,
            load.coverage,
        ),
        point is not None,
        why,
    )


def latency_ns(
    alone: AloneLatency, share: float, per_second: float, objective: Objective | None = None, times: float = 1.0
) -> float:
    """Return the quantile of wait plus service at this share, with services `times` as long; infinite in overload.

    A service is modelled as a fixed part and an exponential part; a tail beyond that makes all of it variable.
    Bursts are modelled as groups that arrive together, with the request as the last of its group. At low load, the
    wait is the remainder of one service, uniformly distributed.
    """
    rules = objective or Objective()
    stay = _stay(alone, share, per_second, rules, times)
    if stay is None:
        return math.inf
    low, high = 0.0, stay.most_ns
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail_probability(middle, stay) > 1 - rules.quantile else (low, middle)
    return float(stay.fixed_ns + max(high, stay.residual_ns))


def _is_within(
    target_ns: float, alone: AloneLatency, share: float, per_second: float, rules: Objective, times: float
) -> bool:
    """Return whether the latency is at most the target: as `latency_ns` finds it, with one evaluation."""
    stay = _stay(alone, share, per_second, rules, times)
    if stay is None:
        return False
    rest_ns, step_ns = target_ns - stay.fixed_ns, stay.most_ns / 2**_STEPS
    if rest_ns < max(step_ns, stay.residual_ns):
        return False
    return rest_ns >= stay.most_ns or _tail_probability(rest_ns // step_ns * step_ns, stay) <= 1 - rules.quantile


class _Stay(NamedTuple):
    """Components of wait and service of a request."""

    fixed_ns: float
    variable_ns: float
    """Mean of the variable part of a service."""
    wait_ns: float
    """Mean wait of the requests that wait."""
    waits: float
    """Part of the requests that wait."""
    residual_ns: float
    """Lower limit of the wait from the remainder of one service."""
    most_ns: float
    """Upper limit of the quantile of wait plus variable part."""


def _stay(alone: AloneLatency, share: float, per_second: float, rules: Objective, times: float) -> _Stay | None:
    """Return the components; None in overload."""
    stretched = times * alone.stretch(share)
    mean_ns = alone.mean_ns * stretched
    tail_ns = max(alone.tail_ns * stretched, mean_ns)
    busy = per_second * mean_ns / SECOND_NS
    if busy >= 1:
        return None
    tail = math.log(1 / (1 - rules.quantile))
    variable_ns = max((tail_ns - mean_ns) / (tail - 1), tail_ns / tail if tail_ns > tail * mean_ns else 0.0)
    fixed_ns = max(tail_ns - tail * variable_ns, 0.0)
    group = max(1.0, rules.dispersion)
    varied = min((variable_ns / mean_ns) ** 2 / group, 1.0)
    wait_ns = group * mean_ns * (1 + varied) / (2 * (1 - busy)) * busy ** (_EVEN_POWER * (1 - varied))
    fixed_ns += (group - 1) * mean_ns
    residual_ns = group * max(mean_ns - variable_ns, 0.0) * max(1 - (1 - rules.quantile) / busy, 0.0) if busy else 0.0
    return _Stay(fixed_ns, variable_ns, wait_ns, busy, residual_ns, (variable_ns + wait_ns) * 2 * tail)


def _tail_probability(than_ns: float, stay: _Stay) -> float:
    """Return the probability that variable part and wait together take longer than this."""
    variable_ns, wait_ns, waits = stay.variable_ns, stay.wait_ns, stay.waits
    longer, shorter = max(variable_ns, wait_ns), min(variable_ns, wait_ns)
    if longer <= 0:
        return 0.0
    by_itself = math.exp(-than_ns / variable_ns) if variable_ns > 0 else 0.0
    if longer - shorter < _EQUAL_MEANS * longer:
        both = (1 + than_ns / longer) * math.exp(-than_ns / longer)
    else:
        rest = math.exp(-than_ns / shorter) if shorter > 0 else 0.0
        both = (longer * math.exp(-than_ns / longer) - shorter * rest) / (longer - shorter)
    return (1 - waits) * by_itself + waits * both


def alone_of(
    use: TaskUse | None, requests: int = 0, active_ns: int = 0, lost_ns: int = 0, tail: float = 0.0
) -> AloneLatency | None:
    """Return the duration of a request, from its profile and increasingly from measurements; None: unknown.

    `active_ns`: time in which it had work or was about to; `lost_ns`: time it lost to neighbours, both over
    `requests`. `tail`: measured quantile over mean of services, or 0.
    """
    believed_ns = use.round_ns if use is not None else 0
    measured_ns = max(active_ns - lost_ns, 0) / requests if requests > 0 else 0.0
    if not believed_ns and not measured_ns:
        return None
    weight = requests / (requests + _BELIEF_ROUNDS) if believed_ns and measured_ns else float(measured_ns > 0)
    mean_ns = measured_ns**weight * believed_ns ** (1 - weight)
    doubt = weight * _MEASURED_DOUBT + (1 - weight) * _BELIEF_DOUBT
    duty = use.duty_ppm / WHOLE_PPM if use is not None and use.duty_ppm else 1.0
    return AloneLatency(mean_ns, mean_ns * max(tail or _USUAL_TAIL, 1.0), doubt, duty)


def _smallest_share(is_enough: Callable[[float], bool], min_share: float) -> float | None:
    """Return the smallest share at which `is_enough` holds, which is monotone; None: it never does."""
    if not is_enough(1.0):
        return None
    low, high = min_share, 1.0
    if is_enough(low):
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
