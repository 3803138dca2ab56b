"""What does a share of online work mean at the gate, and how do online equals divide what they have?

Online work that keeps a part N of its device takes 1/N as long as alone, in the mean: it loses (1 - N) / N of its time
to those below, and that is what the gate's `delay` bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cotenant.domain.gpu import WHOLE_PPM

LEAST_PPM: Final = 10_000
"""Nobody is asked to keep less: (1 - N) / N has no bound of its own."""

OFFLINE_LEAST_PERCENT: Final = 10


def delay_of(online_ppm: int) -> int:
    """What online work may lose of its time, in millionths; above a million for shares below a half."""
    kept_ppm = min(max(online_ppm, LEAST_PPM), WHOLE_PPM)
    return ((WHOLE_PPM - kept_ppm) * WHOLE_PPM + kept_ppm // 2) // kept_ppm


def share_of(delay_ppm: int) -> int:
    """The share that online work keeps if it may lose so much of its time."""
    whole = WHOLE_PPM * WHOLE_PPM
    kept_ppm = (whole + (WHOLE_PPM + delay_ppm) // 2) // (WHOLE_PPM + delay_ppm)
    return max(kept_ppm, LEAST_PPM)


def offline_percent(online_ppm: int, headroom_ppm: int) -> int:
    """What offline programs get of the SMs under MPS, in whole percent: what online does not keep, and some to spare.

    At least a tenth: a program that starts while online keeps nearly all runs on long after that.
    """
    return max((WHOLE_PPM - online_ppm - headroom_ppm) * 100 // WHOLE_PPM, OFFLINE_LEAST_PERCENT)


Shares: TypeAlias = tuple[tuple[int, int], ...]
"""Slot and share, ascending."""


class Equal(NamedTuple):
    """A tenant of a device, as far as it matters to those it may have to share with."""

    slot: int
    generation: int
    priority: int
    promised: bool
    """Whether it has an objective."""
    limit_ppm: int = 0
    """The share that its user gave it; 0: none."""


def shares_among(tenants: Iterable[Equal], needs: Mapping[int, int]) -> Shares:
    """What those with objectives get, by slot, wherever two or more of one priority have one; a need of 0 is not known.

    Whom its user gave a share keeps that, and the others divide the rest.
    Equals without an objective are left a part as if they had one, though they are given no share: beside shares that
    are the whole device, one without a share would wait for all the others at each of its launches.
    """
    by_priority: dict[int, list[Equal]] = {}
    for tenant in tenants:
        by_priority.setdefault(tenant.priority, []).append(tenant)
    shares: list[tuple[int, int]] = []
    for equals in by_priority.values():
        takers = {equal.slot for equal in equals if equal.promised and equal.slot in needs}
        if len(takers) > 1:
            free = {equal.slot: needs.get(equal.slot, 0) for equal in equals if not equal.limit_ppm}
            parts = divided(_filled(free), WHOLE_PPM - sum(equal.limit_ppm for equal in equals))
            shares += [(slot, share_ppm) for slot, share_ppm in parts if slot in takers]
    return tuple(sorted(shares))


def _filled(needs: Mapping[int, int]) -> dict[int, int]:
    """Of whom nobody knows what it needs is taken to need what the others do in the mean."""
    known = [need_ppm for need_ppm in needs.values() if need_ppm > 0]
    mean_ppm = sum(known) // len(known) if known else 1
    return {slot: need_ppm if need_ppm > 0 else mean_ppm for slot, need_ppm in needs.items()}


def divided(needs: Mapping[int, int], whole_ppm: int = WHOLE_PPM) -> Shares:
    """What each of several equals gets of the device or a part of it, in proportion to what it needs.

    Nothing for one alone: it gets what the others leave. Nothing either where there is too little to divide.
    Nobody gets less than a tenth of an equal part: one whose need grows must be able to show it. These shares are
    conserving, so that whatever one leaves is lent to the others.
    """
    least = whole_ppm // (10 * len(needs)) if len(needs) > 1 else 0
    if least <= 0:
        return ()
    wanted = {slot: max(need_ppm, 1) for slot, need_ppm in sorted(needs.items())}
    rest, total = whole_ppm - least * len(wanted), sum(wanted.values())
    return tuple((slot, least + rest * need // total) for slot, need in wanted.items())
