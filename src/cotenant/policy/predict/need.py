"""How much of the device must online work keep? The least share at which its tail latency is within the objective.

Two things make a request late: a smaller share stretches it, and others come while it is served. The first is a curve
over the share, or in proportion where none is known. The second is a queue with one server: the wait is nothing with
the chance that nobody is there, and falls off exponentially otherwise, with the mean of Pollaczek and Khinchine's
formula: exact for services without memory, near for others (tests/policy/test_need.py plays the queue). The tail asked
for is that of wait and service together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.domain.estimate import Estimate
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.use import TaskUse
from cotenant.domain.value import Value
from cotenant.format.quantity import round_duration

_STEPS: Final = 26
"""Halvings: to less than a ten-millionth."""
_ALIKE: Final = 1e-6
"""Two means closer than this are one: their difference divides."""
_EVEN: Final = 0.16
"""Waits for services that are all alike fall off faster than their mean tells, the more the less load there is: this
power of the load comes near to the exact tail at every load (our fit; the test plays it)."""
_BELIEF_ROUNDS: Final = 20
"""A profile counts for as much as so many measured requests."""
_BELIEF_DOUBT: Final = 0.35
_MEASURED_DOUBT: Final = 0.1
_MILDEST_PPM: Final = 900_000
"""However wide the objective is: what makes requests longer makes them meet more often, too."""
_USUAL_TAIL: Final = 1.25
"""p99 over mean of services that were not measured yet: what inference alone shows (docs/placement.md)."""


def mild_ppm(mean_ns: float, slo_ns: int, busy: float, most_ppm: int) -> int:
    """The share at which a request loses no more of its objective than it would of its own time at the most.

    A service that may take three times as long as it does is not harmed by a few percent, and offline work by far more:
    each time that it finds the device in use it has to wait for what it cost to be paid off. `busy` is the part of the
    time that requests take alone, at their densest: waits grow with the square of what that leaves.
    """
    left = max(1 - busy, 0.0)
    spared = (WHOLE_PPM - most_ppm) / max(most_ppm, 1) * max(left * left * slo_ns / max(mean_ns, 1.0), 1.0)
    return min(max(round(WHOLE_PPM / (1 + spared)), _MILDEST_PPM), most_ppm)


class Alone(Value, frozen=True):
    """A request by itself on the whole device, from its first launch to its result: no wait for others in it."""

    mean_ns: float
    tail_ns: float
    """The quantile that the objective is about."""
    doubt: float = _MEASURED_DOUBT
    """Both may be wrong by a factor exp(doubt) either way."""
    duty: float = 1.0
    """Part of it spent on the device: the rest takes no longer on a smaller share."""
    curve: tuple[tuple[float, float], ...] = ()
    """Share, and how many times as long a request takes there, shares ascending; none: in proportion."""

    def stretch(self, share: float) -> float:
        """How many times as long a request takes at this share; never less than at a larger one."""
        if not self.curve:
            return 1 - self.duty + self.duty / share
        above = [point for point in self.curve if point[0] >= share]
        below = [point for point in self.curve if point[0] < share]
        floor = max((times for _, times in above), default=1.0)
        if not below:
            least, times = self.curve[0]
            return max(times, floor) * max(1.0, least / share)
        first, first_times = below[-1]
        then, then_times = above[0] if above else (1.0, 1.0)
        first_times = max(first_times, floor, then_times)
        then_times = max(then_times, floor)
        part = (1 / share - 1 / then) / (1 / first - 1 / then) if then > first else 1.0
        return max(1.0, then_times + part * (first_times - then_times))


class Wants(Value, frozen=True):
    """What is to be kept, and under what arrivals."""

    quantile: float = 0.99
    headroom: float = 0.1
    """Part of the objective that is left free."""
    dispersion: float = 1.0
    """Variance over mean of how many come in a window: 1 is chance, more comes in bursts of as many."""
    least: float = 0.01


class Need(Value, frozen=True):
    """The least share that does, in millionths; and whether the whole device does at all."""

    share: Estimate
    is_within_reach: bool
    why: str


def need_ppm(alone: Alone, slo_ns: int, load: Estimate, wants: Wants | None = None) -> Need:
    """For so many requests per second. Beyond reach: the whole device is the answer, and not enough."""
    rules = wants or Wants()
    target_ns = slo_ns * (1 - rules.headroom)
    factor = math.exp(alone.doubt)

    def least(times: float, per_second: float) -> float | None:
        found = _least_share(lambda share: _is_within(target_ns, alone, share, per_second, rules, times), rules.least)
        return found if found is None else found * WHOLE_PPM

    low, point, high = least(1 / factor, load.low), least(1.0, load.point), least(factor, load.high)
    whole_ns = latency_ns(alone, 1.0, load.point, rules)
    whole = "no end" if math.isinf(whole_ns) else round_duration(round(whole_ns))
    each = round_duration(round(alone.mean_ns))
    why = f"{load.point:.3g} requests a second of {each} each: p{100 * rules.quantile:g} "
    if point is None:
        why += f"{whole} with the whole device, beyond reach of {round_duration(round(target_ns))}"
    else:
        why += f"{whole} with the whole device, {round_duration(round(target_ns))} with {point / 10_000:.3g}%"
    most = float(WHOLE_PPM)
    return Need(
        Estimate(
            most if low is None else low,
            most if point is None else point,
            most if high is None else high,
            load.coverage,
        ),
        point is not None,
        why,
    )


def latency_ns(alone: Alone, share: float, per_second: float, wants: Wants | None = None, times: float = 1.0) -> float:
    """The quantile of wait and service at this share, services `times` as long as said; infinite in overload.

    A service is taken for a fixed part and one that varies without memory; a tail beyond what that gives is kept, and
    makes all of it vary. Bursts are taken for groups that come at once, and the request for the last of its group. At
    little load, who waits at all waits for what is left of one service: any part of it is as likely.
    """
    rules = wants or Wants()
    stay = _stay(alone, share, per_second, rules, times)
    if stay is None:
        return math.inf
    low, high = 0.0, stay.most_ns
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _later(middle, stay) > 1 - rules.quantile else (low, middle)
    return float(stay.fixed_ns + max(high, stay.met_ns))


def _is_within(target_ns: float, alone: Alone, share: float, per_second: float, rules: Wants, times: float) -> bool:
    """Whether the latency is at most this: as `latency_ns` finds it, at one look instead of one for each halving."""
    stay = _stay(alone, share, per_second, rules, times)
    if stay is None:
        return False
    rest_ns, step_ns = target_ns - stay.fixed_ns, stay.most_ns / 2**_STEPS
    if rest_ns < max(step_ns, stay.met_ns):
        return False
    return rest_ns >= stay.most_ns or _later(rest_ns // step_ns * step_ns, stay) <= 1 - rules.quantile


class _Stay(NamedTuple):
    """What wait and service of a request are made of."""

    fixed_ns: float
    varies_ns: float
    """Mean of the part of a service that varies."""
    wait_ns: float
    """Mean of the wait of those who wait,"""
    waits: float
    """which is this part of all."""
    met_ns: float
    """What the rest of one service adds at least."""
    most_ns: float
    """The quantile of wait and what varies is not above this."""


def _stay(alone: Alone, share: float, per_second: float, rules: Wants, times: float) -> _Stay | None:
    """None: overload, the queue has no end."""
    stretched = times * alone.stretch(share)
    mean_ns = alone.mean_ns * stretched
    tail_ns = max(alone.tail_ns * stretched, mean_ns)
    busy = per_second * mean_ns / SECOND_NS
    if busy >= 1:
        return None
    tail = math.log(1 / (1 - rules.quantile))
    varies_ns = max((tail_ns - mean_ns) / (tail - 1), tail_ns / tail if tail_ns > tail * mean_ns else 0.0)
    fixed_ns = max(tail_ns - tail * varies_ns, 0.0)
    group = max(1.0, rules.dispersion)
    varied = min((varies_ns / mean_ns) ** 2 / group, 1.0)
    wait_ns = group * mean_ns * (1 + varied) / (2 * (1 - busy)) * busy ** (_EVEN * (1 - varied))
    fixed_ns += (group - 1) * mean_ns
    met_ns = group * max(mean_ns - varies_ns, 0.0) * max(1 - (1 - rules.quantile) / busy, 0.0) if busy else 0.0
    return _Stay(fixed_ns, varies_ns, wait_ns, busy, met_ns, (varies_ns + wait_ns) * 2 * tail)


def _later(than_ns: float, stay: _Stay) -> float:
    """The chance that the part that varies and the wait, which only some have, take longer than this together."""
    varies_ns, wait_ns, waits = stay.varies_ns, stay.wait_ns, stay.waits
    longer, shorter = max(varies_ns, wait_ns), min(varies_ns, wait_ns)
    if longer <= 0:
        return 0.0
    by_itself = math.exp(-than_ns / varies_ns) if varies_ns > 0 else 0.0
    if longer - shorter < _ALIKE * longer:
        both = (1 + than_ns / longer) * math.exp(-than_ns / longer)
    else:
        rest = math.exp(-than_ns / shorter) if shorter > 0 else 0.0
        both = (longer * math.exp(-than_ns / longer) - shorter * rest) / (longer - shorter)
    return (1 - waits) * by_itself + waits * both


def alone_of(
    use: TaskUse | None, requests: int = 0, active_ns: int = 0, lost_ns: int = 0, tail: float = 0.0
) -> Alone | None:
    """What is known of a request: what its profile says, and more and more what was measured; None: nothing.

    `active_ns` is the time in which it had work or was about to, `lost_ns` what it lost of that to neighbours, over so
    many requests; `tail` is the quantile over the mean of services, where somebody measured it.
    """
    believed_ns = use.round_ns if use is not None else 0
    measured_ns = max(active_ns - lost_ns, 0) / requests if requests > 0 else 0.0
    if not believed_ns and not measured_ns:
        return None
    weight = requests / (requests + _BELIEF_ROUNDS) if believed_ns and measured_ns else float(measured_ns > 0)
    mean_ns = measured_ns**weight * believed_ns ** (1 - weight)
    doubt = weight * _MEASURED_DOUBT + (1 - weight) * _BELIEF_DOUBT
    duty = use.duty_ppm / WHOLE_PPM if use is not None and use.duty_ppm else 1.0
    return Alone(mean_ns, mean_ns * max(tail or _USUAL_TAIL, 1.0), doubt, duty)


def _least_share(is_enough: Callable[[float], bool], least: float) -> float | None:
    """Latency falls with the share: from where on it is; None: nowhere."""
    if not is_enough(1.0):
        return None
    low, high = least, 1.0
    if is_enough(low):
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
