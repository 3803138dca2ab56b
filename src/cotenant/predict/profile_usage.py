"""Use of a device by a task alone, derived from its profile.

A profile contains kernels, not requests. The largest launch count of which nearly all others are multiples is the
number of recorded requests or training steps. For an online task the longest gap of each is taken as the pause before
the next one; the remaining idle time belongs to the request. All of this is an estimate.
"""

from __future__ import annotations

from typing import Final

from cotenant.predict import kernel_scaling as kernels
from cotenant.predict.usage import UNKNOWN, WIDTHS_LIMIT, TaskUse, Use
from cotenant.profile.profile import Profile
from cotenant.units.histogram import bucket_middle
from cotenant.units.share import WHOLE_PPM

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
"""SMs by words in a device name, the longer word first where one begins another (vendor data sheets)."""
_MULTIPLE_TOLERANCE: Final = 0.05
_MIN_FITTING_PART: Final = 0.9
_RARE_PART: Final = 0.01


def sms_of(device: str) -> int:
    """Return the number of SMs of a device with this name; 0: unknown."""
    words = device.replace("-", " ").split()
    for word in sorted(_SMS, key=len, reverse=True):
        parts = word.split()
        if any(words[index : index + len(parts)] == parts for index in range(len(words))):
            return _SMS[word]
    return 0


def use_of(profile: Profile, sms: int, *, is_online: bool) -> TaskUse | None:
    """Return the use in a profile recorded on a device with `sms` SMs (0: unknown); None: the profile has none."""
    device_ns = profile.device_ns
    timed = [timing for timing in profile.timings if timing.expected_ns > 0]
    if not timed or not profile.span_ns or not profile.busy_ns:
        return None
    rounds = rounds_of(profile)
    pauses = _pauses(profile, rounds) if is_online else 0.0
    own_ns = min(profile.busy_ns + profile.idle_ns * (1 - pauses), profile.span_ns)
    launches = sum(max(timing.launches, timing.device.count) for timing in timed)
    usual = [timing.mean_device_ns for timing in timed if timing.expected_ns >= _RARE_PART * device_ns]
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
    """Return the number of recorded repetitions: requests of a service, steps of a training."""
    counts = [(timing.launches, timing.expected_ns) for timing in profile.timings if timing.expected_ns > 0]
    total_ns = sum(part_ns for _, part_ns in counts)
    for rounds in sorted({count for count, _ in counts if count > 0}, reverse=True):
        fitting = sum(part_ns for count, part_ns in counts if _is_multiple(count / rounds))
        if fitting >= _MIN_FITTING_PART * total_ns:
            return rounds
    return 1


def assumed_use(use: TaskUse | None) -> Use:
    """Return the use as the slowdown model takes it; unknown parts are assumed to be the maximum."""
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
    return times >= 1 - _MULTIPLE_TOLERANCE and abs(times - round(times)) <= _MULTIPLE_TOLERANCE * times


def _pauses(profile: Profile, rounds: int) -> float:
    """Return the part of all gap time that the longest gaps make up, one for each repetition."""
    gaps = [(bucket_middle(bucket), count) for timing in profile.timings for bucket, count in timing.gap.buckets]
    remaining, pauses_ns = rounds, 0.0
    for gap_ns, count in sorted(gaps, reverse=True):
        taken = min(remaining, count)
        pauses_ns += taken * gap_ns
        remaining -= taken
    total_ns = sum(gap_ns * count for gap_ns, count in gaps)
    return pauses_ns / total_ns if total_ns else 0.0


def few_widths(widths: tuple[tuple[float, float], ...]) -> tuple[tuple[int, int], ...]:
    """Merge similar widths into at most `WIDTHS_LIMIT`, each at its mean."""
    bins: dict[int, tuple[float, float]] = {}
    for width, part in widths:
        index = min(int(width * WIDTHS_LIMIT), WIDTHS_LIMIT - 1)
        held, time = bins.get(index, (0.0, 0.0))
        bins[index] = (held + width * part, time + part)
    return tuple((_ppm(held / time), _ppm(time)) for _, (held, time) in sorted(bins.items()))


def _ppm(part: float) -> int:
    return min(max(round(part * WHOLE_PPM), 0), WHOLE_PPM)
