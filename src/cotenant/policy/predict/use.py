"""What does a task do with a device alone, in a few numbers? What its profile says.

A profile knows kernels, not requests. Kernels repeat: the largest count of which nearly all others are multiples is
how many requests (or training steps) were recorded. Of an online task the longest gap of each is taken for the pause
before the next one; what is left of the idle time is its own. All of it is a belief.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.histogram import bucket_middle
from cotenant.domain.profile import Profile
from cotenant.domain.use import WIDTHS_LIMIT, TaskUse
from cotenant.policy.predict import kernels
from cotenant.policy.predict.slowdown import UNKNOWN, Use

_SMS: Final = {
    "K80": 13,
    "P100": 56,
    "V100": 80,
    "T4": 40,
    "A100": 108,
    "A30": 56,
    "A10": 72,
    "A40": 84,
    "L4": 58,
    "L40": 142,
    "H100 PCIe": 114,
    "H100": 132,
    "H200": 132,
    "RTX 3080": 68,
    "RTX 3090": 82,
    "RTX 4090": 128,
}
"""SMs by what a device's name says, the longer word first where one begins another (the vendor's data sheets)."""
_ALIKE: Final = 0.05
_MOST: Final = 0.9
_RARE: Final = 0.01


def sms_of(device: str) -> int:
    """How many SMs a device of this name has; 0: not known."""
    words = device.replace("-", " ").split()
    for word in sorted(_SMS, key=len, reverse=True):
        parts = word.split()
        if any(words[place : place + len(parts)] == parts for place in range(len(words))):
            return _SMS[word]
    return 0


def use_of(profile: Profile, sms: int, *, is_online: bool) -> TaskUse | None:
    """The facts of a profile recorded on a device of so many SMs (0: not known); None: there are none in it."""
    device_ns = profile.device_ns
    timed = [timing for timing in profile.timings if timing.expected_ns > 0]
    if not timed or not profile.span_ns or not profile.busy_ns:
        return None
    rounds = rounds_of(profile)
    pauses = _pauses(profile, rounds) if is_online else 0.0
    own_ns = min(profile.busy_ns + profile.idle_ns * (1 - pauses), profile.span_ns)
    launches = sum(max(timing.launches, timing.device.count) for timing in timed)
    usual = [timing.mean_device_ns for timing in timed if timing.expected_ns >= _RARE * device_ns]
    bound_ns = sum(timing.expected_ns for timing in timed if timing.memory_bound)
    return TaskUse(
        duty_ppm=_ppm(profile.busy_ns / own_ns),
        widths=few_widths(kernels.widths(profile, sms)) if sms else (),
        memory_ppm=_ppm(bound_ns / device_ns),
        kernel_ns=round(device_ns / launches),
        longest_ns=round(max(usual)),
        round_ns=round(own_ns / rounds),
        round_device_ns=round(device_ns / rounds),
        active_ppm=_ppm(own_ns / profile.span_ns),
    )


def rounds_of(profile: Profile) -> int:
    """How often what the task does repeats: requests of a service, steps of a training."""
    counts = [(timing.launches, timing.expected_ns) for timing in profile.timings if timing.expected_ns > 0]
    whole = sum(part for _, part in counts)
    for rounds in sorted({count for count, _ in counts if count > 0}, reverse=True):
        fitting = sum(part for count, part in counts if _is_multiple(count / rounds))
        if fitting >= _MOST * whole:
            return rounds
    return 1


def assumed(use: TaskUse | None) -> Use:
    """What the law of slowdowns takes; whatever is not known is taken to be all of it."""
    if use is None:
        return UNKNOWN
    return Use(
        (use.duty_ppm or WHOLE_PPM) / WHOLE_PPM,
        tuple((width / WHOLE_PPM, part / WHOLE_PPM) for width, part in use.widths) or UNKNOWN.widths,
        use.memory_ppm / WHOLE_PPM,
        float(use.kernel_ns),
        (use.active_ppm or WHOLE_PPM) / WHOLE_PPM,
    )


def _is_multiple(times: float) -> bool:
    return times >= 1 - _ALIKE and abs(times - round(times)) <= _ALIKE * times


def _pauses(profile: Profile, rounds: int) -> float:
    """Part of all gaps that the longest ones make up, one for each round."""
    gaps = [(bucket_middle(bucket), count) for timing in profile.timings for bucket, count in timing.gap.buckets]
    left, pauses_ns = rounds, 0.0
    for gap_ns, count in sorted(gaps, reverse=True):
        taken = min(left, count)
        pauses_ns += taken * gap_ns
        left -= taken
    whole_ns = sum(gap_ns * count for gap_ns, count in gaps)
    return pauses_ns / whole_ns if whole_ns else 0.0


def few_widths(widths: tuple[tuple[float, float], ...]) -> tuple[tuple[int, int], ...]:
    """As many as are told apart: those that are near each other become one, as wide as they are in the mean."""
    bins: dict[int, tuple[float, float]] = {}
    for width, part in widths:
        place = min(int(width * WIDTHS_LIMIT), WIDTHS_LIMIT - 1)
        held, time = bins.get(place, (0.0, 0.0))
        bins[place] = (held + width * part, time + part)
    return tuple((_ppm(held / time), _ppm(time)) for _, (held, time) in sorted(bins.items()))


def _ppm(part: float) -> int:
    return min(max(round(part * WHOLE_PPM), 0), WHOLE_PPM)
